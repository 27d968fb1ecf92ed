"""The formats `coreml…`: for iPhones, iPads and Macs."""

from __future__ import annotations

import sys
from pathlib import Path

from daemon.contract.formats.declaration import EXAMPLE_FILES, MODEL_FILES, Format, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import EIGHT_BITS, EXACT, FOUR_BITS, Thresholds
from handlers.coreml.options import CoreMlOptions

USAGE = Path(__file__).with_name("usage.md")
TRAITS: frozenset[Trait] = frozenset({"cache", "padding", "tokenizer"})
TOOLCHAIN = "coreml"
_ENGINE = "handlers.coreml.engine"
NO_APPLE = (
    "its program was read from the package and evaluated operator by operator, with sums in fp32; unless the check ran on a Mac, Apple's"
    " runtime did not run it, and it was not run on an iPhone, on a GPU or on the Neural Engine"
)

LIMITS = Limits(
    "coreml", weights=True, cache=2e-2, padding=2e-2, noise_share=0.25, toolchain=TOOLCHAIN, memory_fp32=2.5,
    timed=sys.platform == "darwin",  # elsewhere it is evaluated by numpy, which nobody deploys
)  # fmt: skip


def _smaller(name: str, about: str, thresholds: Thresholds, *, level: str = "", fallback: str, setting: str = "") -> Variant:
    return Variant(
        f"coreml-{name}", f"handlers.coreml.stage:{name}", 1, toolchain=TOOLCHAIN, arithmetic="half", about=about,
        needs=("coreml",), memory_fixed=900 * MIB, memory_fp32=4.0, disk_fp32=0.6, disk_fixed=16 * MIB,
        settings=(setting,) if setting else (), form_of="coreml", level=level or None, fallback=fallback,  # type: ignore[arg-type]
        limits=LIMITS,
        thresholds=thresholds, traits=TRAITS, usage=USAGE, library="coreml",
        deploys="at its targets", also_for=frozenset({"ios", "laptop"}), elsewhere=NO_APPLE,
    )  # fmt: skip


FORMAT = Format(
    name="coreml",
    about="Core ML packages for iPhones, iPads and Macs (iOS 18, macOS 15); a language model keeps its cache as states.",
    order=100,
    options=CoreMlOptions,
    section="coreml",
    engines={
        "coreml": {"causal": f"{_ENGINE}:CoreMlCausal", "seq2seq": f"{_ENGINE}:CoreMlSeq2Seq", "encoder": f"{_ENGINE}:CoreMlEncoder"},
    },
    files={
        "*.mlpackage/*": "graphs", "graphs.json": "runtime", "session.py": "example",
        "opener.py": "example", "feeding.py": "example", **EXAMPLE_FILES, **MODEL_FILES,
    },
    runtimes=("Core ML",),
    modules={"coremltools": "coremltools"},
    variants=(
        Variant(
            "coreml", "handlers.coreml.stage:plain", 1, toolchain=TOOLCHAIN, arithmetic="half",
            about="Core ML packages (ML programs) in fp16, for a few numbers of tokens at once",
            needs=("static-programs",), memory_fixed=1500 * MIB, memory_fp32=5.0, disk_fp32=1.2, disk_fixed=16 * MIB,
            settings=("coreml.precision",),
            limits=LIMITS,
            thresholds=EXACT,
            traits=TRAITS, usage=USAGE, library="coreml", targets=frozenset({"ios"}),
            deploys="at its targets", also_for=frozenset({"laptop"}), elsewhere=NO_APPLE,
        ),
        _smaller("int8", "Core ML packages with 8-bit weights, a scale a row", EIGHT_BITS,
                 level="int8-weight", fallback="coreml"),
        _smaller("int4", "Core ML packages with 4-bit weights in blocks; tables and the head in 8 bits",
                 FOUR_BITS, level="int4", fallback="coreml-int8", setting="coreml.block_size"),
        _smaller("palettized", "Core ML packages with weights as places in tables of 16 numbers; tables of tokens and the head in 8 bits",
                 FOUR_BITS, fallback="coreml-int8", setting="coreml.palette_rows"),
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
