"""The formats `coreml…`: for iPhones, iPads and Macs."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from daemon.contract.formats.declaration import EXAMPLE_FILES, MODEL_FILES, Format, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import EIGHT_BITS, EXACT, FOUR_BITS

USAGE = Path(__file__).with_name("usage.md")
TRAITS: frozenset[Trait] = frozenset({"cache", "padding", "tokenizer"})
TOOLCHAIN = "coreml"
_ENGINE = "handlers.coreml.engine"
NO_APPLE = (
    "its program was read from the package and evaluated operator by operator, with sums in fp32; unless the check ran on a Mac, Apple's"
    " runtime did not run it, and it was not run on an iPhone, on a GPU or on the Neural Engine"
)

LIMITS = Limits(
    "coreml", weights=True, loose=True, cache=2e-2, padding=2e-2, noise_share=0.25, toolchain=TOOLCHAIN, memory_fp32=2.5,
    timed=sys.platform == "darwin",  # elsewhere it is evaluated by numpy, which nobody deploys
)  # fmt: skip


_variant = functools.partial(
    Variant, version=1, toolchain=TOOLCHAIN, arithmetic="half", disk_fixed=16 * MIB, limits=LIMITS, traits=TRAITS, usage=USAGE,
    library="coreml", deploys="at its targets", elsewhere=NO_APPLE,
)  # fmt: skip
_smaller = functools.partial(
    _variant, needs=("coreml",), memory_fixed=900 * MIB, memory_fp32=4.0, disk_fp32=0.6, form_of="coreml",
    also_for=frozenset({"ios", "laptop"}),
)  # fmt: skip


FORMAT = Format(
    name="coreml",
    about="Core ML packages for iPhones, iPads and Macs (iOS 18, macOS 15); a language model keeps its cache as states.",
    order=100,
    options="handlers.coreml.options:CoreMlOptions",
    section="coreml",
    engines={
        "coreml": {"causal": f"{_ENGINE}:CoreMlCausal", "seq2seq": f"{_ENGINE}:CoreMlSeq2Seq", "encoder": f"{_ENGINE}:CoreMlEncoder"},
    },
    data_engines=frozenset({"coreml"}),
    files={
        "*.mlpackage/*": "graphs", "graphs.json": "runtime", "session.py": "example",
        "opener.py": "example", "feeding.py": "example", **EXAMPLE_FILES, **MODEL_FILES,
    },
    runtimes=("Core ML",),
    modules={"coremltools": "coremltools"},
    variants=(
        _variant(
            "coreml", "handlers.coreml.stage:plain", about="Core ML packages (ML programs) in fp16, for a few numbers of tokens at once",
            needs=("static-programs",), memory_fixed=1500 * MIB, memory_fp32=5.0, disk_fp32=1.2, settings=("coreml.precision",),
            thresholds=EXACT, targets=frozenset({"ios"}), also_for=frozenset({"laptop"}),
        ),
        _smaller(
            "coreml-int8", "handlers.coreml.stage:int8", about="Core ML packages with 8-bit weights, a scale a row",
            level="int8-weight", fallback="coreml", thresholds=EIGHT_BITS,
        ),
        _smaller(
            "coreml-int4", "handlers.coreml.stage:int4", level="int4", fallback="coreml-int8", thresholds=FOUR_BITS,
            about="Core ML packages with 4-bit weights in blocks; tables and the head in 8 bits", settings=("coreml.block_size",),
        ),
        _smaller(
            "coreml-palettized", "handlers.coreml.stage:palettized", fallback="coreml-int8", thresholds=FOUR_BITS,
            about="Core ML packages with weights as places in tables of 16 numbers; tables of tokens and the head in 8 bits",
            settings=("coreml.palette_rows",),
        ),
    ),
    notes=Path(__file__).with_name("notes.md"),
    families={
        "decoders": "evaluated operator by operator from the package and compared with the live model: prefill in pieces, cached decoding,"
        " rows of unequal lengths, greedy text; not run by Apple's runtime",
        "encoder-decoders": "evaluated operator by operator from the packages and compared with the live model: an encoder, and a decoder"
        " with its cache; not run by Apple's runtime",
        "encoders and heads": "evaluated operator by operator from the package and compared with the live model, by the outputs of their"
        " task; not run by Apple's runtime",
    },
)  # fmt: skip
