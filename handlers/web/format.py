"""The formats `web…`: for web pages, by transformers.js and onnxruntime-web."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

from daemon.contract.formats.declaration import EXAMPLE_FILES, MODEL_FILES, Format, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import COARSE_EIGHT_BITS, EXACT, FOUR_BITS

USAGE = Path(__file__).with_name("usage.md")
TRAITS: frozenset[Trait] = frozenset({"cache", "padding", "dynamic axes", "tokenizer"})
TOOLCHAIN = "web"
TWIN = "handlers.validate.twins.onnx.form:PageForm"
TYPES = frozenset(
    name
    for rows in tomllib.loads(Path(__file__).with_name("known.toml").read_text(encoding="utf-8")).values() if isinstance(rows, list)
    for row in rows for name in row["types"]
)  # fmt: skip
"""The model types that transformers.js loads for any task."""
_ENGINE = "handlers.web.engine"
_MEMORY = 1400 * MIB
"""A browser with its processes, and the check."""
ELSEWHERE = "in Chromium on the CPU, with one thread; not with WebGPU, nor in other browsers"


def _rounded(cache: float, noise_share: float) -> Limits:
    return Limits(
        "web", twin=TWIN, cache=cache, padding=cache, noise_share=noise_share, toolchain=TOOLCHAIN, memory_fixed=_MEMORY, memory_fp32=1.5
    )  # fmt: skip


_variant = functools.partial(
    Variant, version=1, text_only=True, model_types=TYPES,
    memory_fixed=400 * MIB, libraries=("onnx", "tokenizers", "sentencepiece"), traits=TRAITS,
    usage=USAGE, library="transformers.js", deploys="at its targets", elsewhere=ELSEWHERE,
)  # fmt: skip

FORMAT = Format(
    name="web",
    about="The ONNX graphs in the layout of transformers.js, for web pages, with a page that shows the model.",
    order=28,
    files={
        "onnx/*.onnx": "graphs", "onnx/*": "weights", "graphs.json": "runtime",
        "index.html": "example", "app.js": "example", "hosting.js": "example", **EXAMPLE_FILES, **MODEL_FILES,
        "config.json": "extended config",
    },
    runtimes=("transformers.js", "onnxruntime-web"),
    recommended_first=frozenset({"browser"}),
    engines={
        "web": {"causal": f"{_ENGINE}:WebEngine", "seq2seq": f"{_ENGINE}:WebSeq2Seq", "encoder": f"{_ENGINE}:WebEncoder"},
    },
    data_engines=frozenset({"web"}),
    variants=(
        _variant(
            "web", "handlers.web.stage:plain", about="the ONNX graph in fp32 as transformers.js loads it, with a page",
            needs=("onnx",), memory_fp32=0.3, disk_fp32=1.1, thresholds=EXACT, also_for=frozenset({"browser"}),
            limits=Limits("web", cache=1e-3, padding=1e-3, toolchain=TOOLCHAIN, memory_fixed=_MEMORY, memory_fp32=4.0),
        ),
        _variant(
            "web-int8", "handlers.web.stage:int8",
            about="the ONNX graph with int8 weights as transformers.js loads it (dtype q8), with a page",
            needs=("onnx-int8",), memory_fp32=0.1, disk_fp32=0.6, form_of="web", level="int8", fallback="web",
            limits=_rounded(cache=0.5, noise_share=1.5), thresholds=COARSE_EIGHT_BITS, targets=frozenset({"browser"}),
        ),
        _variant(
            "web-int4", "handlers.web.stage:int4",
            about="the ONNX graph with 4-bit weights as transformers.js loads it (dtype q4), with a page",
            needs=("onnx-int4",), memory_fp32=0.1, disk_fp32=0.5, form_of="web", level="int4", fallback="web-int8",
            limits=_rounded(cache=0.1, noise_share=0.25), thresholds=FOUR_BITS, also_for=frozenset({"browser"}),
        ),
    ),
    notes=Path(__file__).with_name("notes.md"),
    families={
        "decoders": "loaded by transformers.js in Chromium and compared with the live model: prefill, cached decoding, left-padded batches,"
        " greedy text; of the types that transformers.js knows",
        "encoder-decoders": "loaded by transformers.js in Chromium and compared with the live model: T5, MarianMT with one vocabulary",
        "encoders and heads": "loaded by transformers.js in Chromium and compared with the live model, by the outputs of their task",
    },
)  # fmt: skip
