"""The formats `openvino…`: for Intel's processors and graphics, and other CPUs."""

from __future__ import annotations

import functools
from pathlib import Path

from daemon.contract.formats.declaration import EXAMPLE_FILES, MODEL_FILES, Format, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import EIGHT_BITS, EXACT, FOUR_BITS

USAGE = Path(__file__).with_name("usage.md")
TRAITS: frozenset[Trait] = frozenset({"cache", "padding", "dynamic axes", "tokenizer"})
TOOLCHAIN = "openvino"
_ENGINE = "handlers.openvino.engine"
TWIN = "handlers.openvino.twin.form:OpenVinoForm"
DEFAULTS = "on the CPU, with settings that compute in fp32; by default OpenVINO takes bf16, an int8 cache and int8 activations where it can"


_variant = functools.partial(
    Variant, version=1, toolchain=TOOLCHAIN, disk_fixed=16 * MIB, traits=TRAITS, usage=USAGE,
    also_for=frozenset({"cpu-server", "laptop", "edge"}), elsewhere=DEFAULTS,
)  # fmt: skip
_smaller = functools.partial(
    _variant, arithmetic="blocks", disk_fp32=0.4, form_of="openvino",
    limits=Limits("openvino", twin=TWIN, cache=1e-2, padding=1e-2, noise_share=0.25, toolchain=TOOLCHAIN),
)  # fmt: skip

FORMAT = Format(
    name="openvino",
    about="OpenVINO's own files, for CPUs, Intel graphics and NPUs; a language model runs in OpenVINO GenAI too, with its tokenizer.",
    order=70,
    files={
        "openvino_tokenizer.*": "tokenizer", "openvino_detokenizer.*": "tokenizer", "*.xml": "graphs", "*.bin": "weights",
        "graphs.json": "runtime", "session.py": "example", **EXAMPLE_FILES, **MODEL_FILES,
    },
    runtimes=("OpenVINO", "OpenVINO GenAI", "optimum-intel"),
    recommended_first=frozenset({"laptop"}),
    modules={"openvino": "openvino", "openvino_genai": "openvino_genai", "openvino_tokenizers": "openvino_tokenizers", "nncf": "nncf"},
    options="handlers.openvino.options:OpenVinoOptions",
    section="openvino",
    engines={
        "openvino": {
            "causal": f"{_ENGINE}:OpenVinoEngine", "seq2seq": f"{_ENGINE}:OpenVinoSeq2Seq", "encoder": f"{_ENGINE}:OpenVinoEncoder",
        },
    },
    data_engines=frozenset({"openvino"}),
    variants=(
        _variant(
            "openvino", "handlers.openvino.stage:plain",
            about="OpenVINO's files in fp32, with the tokenizer as a model too; a decoder keeps its cache to itself",
            needs=("onnx",), text_only=True, memory_fixed=600 * MIB, memory_fp32=3.5, disk_fp32=1.1, thresholds=EXACT,
            limits=Limits("openvino", cache=1e-3, padding=1e-3, merged=1e-2, toolchain=TOOLCHAIN, memory_fp32=2.5),
        ),
        _smaller(
            "openvino-int8", "handlers.openvino.stage:int8",
            about="OpenVINO's files with 8-bit weights, a scale a row", level="int8-weight", fallback="openvino",
            needs=("openvino",), memory_fixed=700 * MIB, memory_fp32=3.5, thresholds=EIGHT_BITS,
        ),
        _smaller(
            "openvino-int4", "handlers.openvino.stage:int4",
            about="OpenVINO's files with 4-bit weights in groups, their scales found with texts; tables and the head in 8 bits",
            needs=("openvino", "calibration"), memory_fixed=900 * MIB, memory_fp32=4.5, level="int4", fallback="openvino-int8",
            settings=("openvino.group_size", "openvino.calibration_samples", "validation.prompts", "validation.data", "validation.samples"),
            thresholds=FOUR_BITS,
        ),
    ),
    notes=Path(__file__).with_name("notes.md"),
    families={
        "decoders": "run by OpenVINO and compared with the live model: prefill, cached decoding, left-padded batches, greedy text",
        "encoder-decoders": "run by OpenVINO and compared with the live model: an encoder, decoders of the first step and the later ones",
        "encoders and heads": "run by OpenVINO and compared with the live model, by the outputs of their task",
    },
)  # fmt: skip
