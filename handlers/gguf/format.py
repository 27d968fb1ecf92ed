"""The formats `gguf-…`: for llama.cpp, Ollama, LM Studio and what else is built on llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from daemon.contract.formats.declaration import Format, Level, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import COARSE_EIGHT_BITS, EIGHT_BITS, EXACT, FOUR_BITS, Thresholds

USAGE = Path(__file__).with_name("usage.md")
TRAITS: frozenset[Trait] = frozenset({"cache", "padding", "dynamic axes", "tokenizer"})
TOOLCHAIN = "gguf"
TWIN = "handlers.gguf.twin.form:GgufForm"
TYPES = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt2",
     "qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl_text"}
)  # fmt: skip
"""The model types that `handlers.gguf.file.architectures` writes."""
READERS = frozenset({"qwen2_5_vl", "qwen3_vl", "gemma3", "idefics3"})
"""Those that read pictures, whose towers `handlers.gguf.file.projector` writes."""
DEFAULTS = "on the CPU with a cache in fp32 and without flash attention; llama.cpp's default cache is fp16, and other builds use a GPU"
TEXTS = ("gguf.calibration_samples", "validation.prompts", "validation.data", "validation.samples")


def _variant(
    name: str, about: str, size: float, thresholds: Thresholds, *, fallback: str | None, level: Level | None = None, texts: bool = False,
    arithmetic: Literal["half", "blocks"] = "blocks",
) -> Variant:  # fmt: skip
    return Variant(
        f"gguf-{name}", f"handlers.gguf.stage:{name}", 1, toolchain=TOOLCHAIN, arithmetic=arithmetic, about=about,
        needs=("pytorch", "calibration") if texts else ("pytorch",), text_only=True, model_types=TYPES,
        media_types=READERS, memory_fixed=700 * MIB, memory_fp32=1.0 if texts else 0.1,
        disk_fp32=size + (1.0 if texts else 0.0), disk_fixed=16 * MIB,
        settings=TEXTS if texts else (), form_of="gguf-f16" if level else None, level=level, fallback=fallback,
        limits=Limits(
            "gguf", weights=True, loose=True, twin=TWIN, cache=1e-2, padding=1e-2, noise_share=0.25, toolchain=TOOLCHAIN,
            memory_fp32=size + 0.2, disk_fp32=1.0,
        ),
        thresholds=thresholds, traits=TRAITS, usage=USAGE, library="gguf",
        also_for=frozenset({"ollama", "laptop", "cpu-server", "edge"}), elsewhere=DEFAULTS,
    )  # fmt: skip


FORMAT = Format(
    name="gguf",
    about="One file with weights, vocabulary and chat template for llama.cpp, Ollama and LM Studio, with a Modelfile.",
    order=80,
    files={"*.gguf": "weights", "Modelfile": "runtime", "README.md": "document"},
    runtimes=("llama.cpp", "Ollama", "LM Studio"),
    recommended_first=frozenset({"laptop"}),
    modules={"gguf": "gguf", "llama_cpp": "llama_cpp_python"},
    options="handlers.gguf.options:GgufOptions",
    section="gguf",
    engines={
        "gguf": {"causal": "handlers.gguf.engine:GgufEngine"},
        "gguf-adapter": {"causal": "handlers.gguf.engine:GgufAdapterEngine"},
    },
    data_engines=frozenset({"gguf"}),
    variants=(
        _variant("q4_k_m", "4-bit weights in blocks of 256, some of them in 6 bits (Q4_K_M)", 0.16,
                 FOUR_BITS, fallback="gguf-q5_k_m", level="int4", texts=True),
        _variant("q5_k_m", "5-bit weights in blocks of 256, some of them in 6 bits (Q5_K_M)", 0.19,
                 COARSE_EIGHT_BITS, fallback="gguf-q6_k", texts=True),
        _variant("q6_k", "6-bit weights in blocks of 256 (Q6_K)", 0.22, EIGHT_BITS, fallback="gguf-q8_0", texts=True),
        _variant("q8_0", "8-bit weights in blocks of 32 (Q8_0)", 0.28, EIGHT_BITS, fallback="gguf-f16", level="int8-weight"),
        _variant("f16", "weights in fp16", 0.52, EXACT, fallback=None, arithmetic="half"),
        _variant("bf16", "weights in bf16: without loss for a model that was trained in it", 0.52, EXACT, fallback=None, arithmetic="half"),
        Variant(
            "gguf-adapter", "handlers.gguf.adapter.stage:run", 1, toolchain=TOOLCHAIN,
            about="only the adapter, as a GGUF file for llama.cpp and Ollama, to be put over the GGUF file of its base",
            needs=("pytorch-adapter",), text_only=True, model_types=TYPES,
            heavy=False, threads=1, memory_fixed=500 * MIB, disk_fixed=16 * MIB, disk_stored=0.2,
            limits=Limits("gguf-adapter", cache=1e-2, padding=1e-2, noise_share=0.25, toolchain=TOOLCHAIN, memory_fp32=1.3),
            thresholds=EXACT, traits=frozenset({"cache", "padding"}),
            usage=Path(__file__).parent / "adapter" / "usage.md", deploys="over its base", elsewhere=DEFAULTS,
        ),
    ),
    notes=Path(__file__).with_name("notes.md"),
    families={
        "decoders": "run by llama.cpp and compared with the live model: prefill, cached decoding, batches of unequal lengths, greedy text;"
        " pictures, where the model reads them",
        "encoder-decoders": "not possible: the export says so",
        "encoders and heads": "not possible: the export says so",
    },
)  # fmt: skip
