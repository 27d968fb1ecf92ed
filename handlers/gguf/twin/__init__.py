"""GGUF files beside the model that their own weights give: read by the package gguf, run by llama.cpp, and nothing of what writes them."""

STRUCTURE = 2e-3
"""Largest |Δ| between llama.cpp with the weights in fp32 and the twin, in standard deviations of the outputs: sound models stay below
1e-4."""
BY_TABLE = 1e-2
"""The same where the activation is GELU, which llama.cpp looks up in a table of halves: sound models stay below 2.5e-3; and of
Qwen2.5-VL, below 7e-3."""
