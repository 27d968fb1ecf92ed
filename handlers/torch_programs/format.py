"""The formats `torchscript`, `pt2` and `pt2-aoti`: PyTorch's own programs, in fp32, for C++ (libtorch) and Python without transformers.

They are the model's own operators in its own order, so the limits are those of fp32 graphs.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from daemon.contract.formats.declaration import EXAMPLE_FILES, MODEL_FILES, Format, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import EXACT

USAGE = Path(__file__).with_name("usage.md")
TRAITS: frozenset[Trait] = frozenset({"graphs", "cache", "padding", "dynamic axes", "tokenizer"})
LIBRARIES = ("torch", "transformers", "tokenizers", "sentencepiece")
_ENGINE = "handlers.torch_programs.engine"
LIMITS = Limits("torch-program", cache=1e-3, padding=1e-3, merged=1e-2, memory_fp32=2.5)
NO_GPU = "it ran in Python on a CPU, and not from C++; on a GPU it was neither traced nor run"

_variant = functools.partial(
    Variant, needs=("merge",), libraries=LIBRARIES, thresholds=EXACT, traits=TRAITS, usage=USAGE, library="pytorch",
    kv_cache="always", text_only=True,
    also_for=frozenset({"cpu-server"}),
)  # fmt: skip

FORMAT = Format(
    name="torch-programs",
    about="Programs that PyTorch runs without transformers and without the model's Python code: TorchScript, and torch.export's .pt2.",
    order=60,
    files={
        "*.pt*": "graphs", "graphs.json": "runtime", "program.py": "example", **EXAMPLE_FILES, **MODEL_FILES,
    },
    runtimes=("PyTorch", "libtorch"),
    engines={
        "torch-program": {
            "causal": f"{_ENGINE}:ProgramEngine", "seq2seq": f"{_ENGINE}:ProgramSeq2Seq", "encoder": f"{_ENGINE}:ProgramEncoder",
        },
    },
    variants=(
        _variant(
            "torchscript", "handlers.torch_programs.stage:torchscript", 2,
            about="TorchScript: traced programs with a KV cache, dynamic batch and length, fp32, for libtorch and PyTorch",
            memory_fixed=900 * MIB, memory_fp32=3.0, disk_fp32=1.05, disk_fixed=64 * MIB, limits=replace(LIMITS, memory_fp32=2.0),
            elsewhere=NO_GPU,
        ),
        _variant(
            "pt2", "handlers.torch_programs.stage:pt2", 2,
            about="torch.export's programs (.pt2) with a KV cache, dynamic batch and length, fp32, for PyTorch and its compilers",
            memory_fixed=1200 * MIB, memory_fp32=3.0, disk_fp32=1.1, disk_fixed=64 * MIB, limits=LIMITS, elsewhere=NO_GPU,
        ),
        _variant(
            "pt2-aoti", "handlers.torch_programs.stage:pt2_aoti", 1,
            about="torch.export's programs compiled to C++ (AOTInductor), with a KV cache, dynamic batch and length, fp32, for PyTorch",
            memory_fixed=2000 * MIB, memory_fp32=4.0, disk_fp32=4.0, disk_fixed=128 * MIB, programs=("$CXX", "g++", "clang++"),
            limits=LIMITS,
            elsewhere="it ran in Python on this kind of processor, not from C++; it needs the same release of torch, and on x86-64 AVX2",
        ),
    ),
    families={
        "decoders": "compared with the live model: prefill, cached decoding, left-padded batches, greedy text",
        "encoder-decoders": "compared with the live model: an encoder, and decoders of the first step and of the later ones",
        "encoders and heads": "compared with the live model, by the outputs of their task",
    },
)  # fmt: skip
