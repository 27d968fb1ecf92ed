"""The commands that people convert models with, each beside the stage of ckptd that makes the same: for `formats.py`.

A peer is a command of another project, in the Python that has it: a toolchain of ckptd's where that holds it, else one that
`--peer NAME=PYTHON` names. `{model}` is the merged model in a transformers folder, `{out}` a new folder or file, `{python}` that Python.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """One command, and what it is compared with."""

    name: str
    variant: str
    """The variant that holds what it makes."""
    command: tuple[str, ...]
    toolchain: str = ""
    """The toolchain that holds it; "" where only `--peer` can name its Python."""
    verifies: str = "nothing"
    """What it looks at after it has converted."""
    files: str = "**/*"
    """What of its output is the model, for the size."""


PEERS: tuple[Peer, ...] = (
    Peer(
        "optimum-onnx", "onnx",
        ("{python}", "-m", "optimum.exporters.onnx", "--model", "{model}", "--task", "text-generation-with-past", "{out}"),
        toolchain="optimum", verifies="outputs for one random input", files="**/*.onnx*",
    ),
    Peer(
        "optimum-intel", "openvino",
        ("{python}", "-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", "{model}", "--task",
         "text-generation-with-past", "--weight-format", "fp32", "{out}"),
        files="**/openvino_model.*",
    ),
    Peer(
        "olive", "onnx",
        ("{python}", "-m", "olive", "capture-onnx-graph", "--use_dynamo_exporter", "--model_name_or_path", "{model}", "--output_path",
         "{out}"), files="**/*.onnx*",
    ),
    Peer(
        "mlx-lm", "mlx-int4",
        ("{python}", "-m", "mlx_lm", "convert", "--hf-path", "{model}", "--mlx-path", "{out}", "--quantize", "--q-bits", "4"),
        toolchain="mlx", files="**/*.safetensors",
    ),
    Peer(
        "onnxruntime-genai", "onnx-genai-int4",
        ("{python}", "-m", "onnxruntime_genai.models.builder", "--input", "{model}", "--output", "{out}", "--precision", "int4",
         "--execution_provider", "cpu", "--cache_dir", "{out}.cache"),
        toolchain="-", files="**/*.onnx*",
    ),
)  # fmt: skip
"""`toolchain` "-": the Python that runs the benchmark has it."""
LLAMA_CPP = (("bf16", "gguf-bf16"), ("q8_0", "gguf-q8_0"))
"""Types of llama.cpp's converter, a script of its checkout, and the variants that are the same to the byte."""
