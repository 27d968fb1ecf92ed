"""The formats that need a toolchain, and what the tests of their exports expect of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Expected:
    """One format."""

    variants: tuple[str, ...]
    """What is exported."""
    versions: frozenset[str]
    """Libraries that the report names with their versions."""
    installs: str
    """The distribution that the README has people install."""
    says: tuple[str, ...] = ()
    """What README and report say of what was not run."""
    twin: float = 0.0
    """Largest error of a sound form beside its twin."""
    tried: tuple[str, ...] = ()
    """Variants that are made of wrong models, the most exact first; () for `variants`."""
    caught: int = 2
    """How many of them must fail: fewer bits may hide a small damage."""
    hidden: Mapping[str, int] = field(default_factory=dict)
    """Source of `sabotage` → how many, where it is another number."""
    reason: str = ""
    """What the reasons of each say, unless its damage is in `hidden`: it is no chance by which the check fails."""


FORMATS = {
    "gguf": Expected(
        ("gguf-q4_k_m", "gguf-q5_k_m", "gguf-q6_k", "gguf-q8_0", "gguf-f16", "gguf-bf16", "gguf-adapter"),
        frozenset({"gguf", "llama_cpp_python"}), "llama-cpp-python", twin=4e-4, tried=("gguf-f16", "gguf-q8_0", "gguf-q4_k_m"),
    ),
    "openvino": Expected(
        ("openvino", "openvino-int8", "openvino-int4"), frozenset({"openvino", "nncf"}), "openvino-genai", twin=1e-4,
    ),
    # A page of noise in one matrix changes less than eight bits may: only the graph in fp32 shows it.
    "web": Expected(
        ("web", "web-int8", "web-int4"), frozenset(), "", ("WebGPU",), twin=1e-3, hidden={"corrupted block": 1},
    ),
    "mlx": Expected(
        ("mlx", "mlx-int8", "mlx-int4"), frozenset({"mlx", "mlx-lm"}), "mlx-lm", ("Apple GPU",), caught=3, hidden={"rope theta": 2},
        reason="not those of the merge",
    ),
    "litert": Expected(
        ("litert", "litert-int8", "litert-int4"), frozenset({"litert-torch", "ai-edge-litert", "ai-edge-quantizer"}), "ai-edge-litert",
        ("not run on a phone",),
    ),
    "executorch": Expected(
        ("executorch", "executorch-int8", "executorch-8da4w"), frozenset({"executorch", "torchao"}), "executorch", ("not run on a phone",),
    ),
    # Another base of the rotary embedding is told by no weight, and tables of 16 numbers hide it.
    "coreml": Expected(
        ("coreml", "coreml-int8", "coreml-int4", "coreml-palettized"), frozenset({"coremltools"}), "coremltools",
        ("evaluated operator by operator", "runtime did not run it"), caught=4, hidden={"rope theta": 3},
    ),
}  # fmt: skip
"""Toolchain → what is expected of its exports."""
