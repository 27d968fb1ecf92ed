"""The formats `litert…`: for LiteRT (TensorFlow Lite), the runtime of Android and of small devices."""

from __future__ import annotations

import functools
from pathlib import Path

from daemon.contract.formats.declaration import EXAMPLE_FILES, MODEL_FILES, Format, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import EIGHT_BITS, EXACT, FOUR_BITS

USAGE = Path(__file__).with_name("usage.md")
TRAITS: frozenset[Trait] = frozenset({"cache", "padding", "tokenizer"})
TOOLCHAIN = "litert"
_ENGINE = "handlers.litert.engine"
NO_PHONE = (
    "by LiteRT's interpreter with XNNPACK on this computer's CPU, from Python; it was not run on a phone, and no delegate for graphics or"
    " neural processors was tried"
)


_variant = functools.partial(
    Variant, version=1, toolchain=TOOLCHAIN, disk_fixed=16 * MIB, traits=TRAITS, usage=USAGE, library="litert",
    also_for=frozenset({"android", "edge"}), elsewhere=NO_PHONE,
)  # fmt: skip
_smaller = functools.partial(
    _variant, arithmetic="blocks", needs=("litert",), memory_fixed=700 * MIB, memory_fp32=1.2, form_of="litert",
    limits=Limits("litert", cache=1e-2, padding=1e-2, noise_share=0.25, toolchain=TOOLCHAIN),
)  # fmt: skip

FORMAT = Format(
    name="litert",
    about="LiteRT (TensorFlow Lite) models for Android and small devices: one file whose prefill and decode share their weights.",
    order=92,
    files={
        "*.tflite": "graphs", "graphs.json": "runtime", "opener.py": "example", "feeding.py": "example", "session.py": "example",
        **EXAMPLE_FILES, **MODEL_FILES,
    },
    runtimes=("LiteRT",),
    modules={"litert_torch": "litert-torch", "ai_edge_litert": "ai-edge-litert", "ai_edge_quantizer": "ai-edge-quantizer"},
    options="handlers.litert.options:LiteRtOptions",
    section="litert",
    engines={
        "litert": {
            "causal": f"{_ENGINE}:LiteRtCausal", "seq2seq": f"{_ENGINE}:LiteRtSeq2Seq", "encoder": f"{_ENGINE}:LiteRtEncoder",
        },
    },
    data_engines=frozenset({"litert"}),
    variants=(
        _variant(
            "litert", "handlers.litert.stage:plain",
            about="LiteRT's models in fp32, with fixed sizes; prefill and decode are signatures of one file",
            needs=("static-programs",), memory_fixed=1500 * MIB, memory_fp32=4.8, disk_fp32=1.1, thresholds=EXACT,
            limits=Limits("litert", cache=1e-3, padding=1e-3, merged=1e-2, toolchain=TOOLCHAIN, memory_fp32=3.0),
        ),
        _smaller(
            "litert-int8", "handlers.litert.stage:int8", disk_fp32=0.35, level="int8", fallback="litert", thresholds=EIGHT_BITS,
            about="LiteRT's models with 8-bit weights, a scale a row, and activations that are rounded to 8 bits as they come",
        ),
        _smaller(
            "litert-int4", "handlers.litert.stage:int4", disk_fp32=0.3, level="int4", fallback="litert-int8", thresholds=FOUR_BITS,
            about="LiteRT's models with 4-bit weights in blocks, tables and the head in 8 bits, and activations that are rounded to 8 bits",
            settings=("litert.block_size",),
        ),
    ),
    notes=Path(__file__).with_name("notes.md"),
    families={
        "decoders": "run by LiteRT with XNNPACK and compared with the live model: prefill in pieces, cached decoding, rows of unequal"
        " lengths, greedy text",
        "encoder-decoders": "run by LiteRT with XNNPACK and compared with the live model: an encoder, and a decoder with its cache",
        "encoders and heads": "run by LiteRT with XNNPACK and compared with the live model, by the outputs of their task",
    },
)  # fmt: skip
