"""The format `onnx-activations`: the ONNX graph with activations as further outputs, for interpretability and for probes."""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.declaration import EXAMPLE_FILES, MODEL_FILES, Format, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import COARSE_EIGHT_BITS, EXACT

USAGE = Path(__file__).with_name("usage.md")
TWIN = "handlers.validate.twins.onnx.form:OnnxForm"
TRAITS: frozenset[Trait] = frozenset({"onnx", "graphs", "cache", "padding", "dynamic axes", "tokenizer"})

FORMAT = Format(
    name="onnx-activations",
    about="The ONNX graph with hidden states, attentions, embeddings or feed-forward outputs as additional outputs.",
    order=30,
    files={
        "*.onnx": "graphs", "*.onnx*data": "weights", "graphs.json": "runtime", "activations.json": "runtime",
        "activations.py": "example", "hosting.js": "example", **EXAMPLE_FILES, **MODEL_FILES,
    },
    runtimes=("ONNX Runtime",),
    options="handlers.onnx.options:OnnxOptions",
    section="onnx",
    variants=(
        Variant(
            "onnx-activations", "handlers.onnx.activations.stage:run", 3,
            about="the ONNX graph with hidden states, attentions, embeddings or feed-forward outputs as additional outputs",
            needs=("merge", "onnx"), text_only=True, memory_fixed=1200 * MIB, memory_fp32=3.2, disk_fp32=2.2,
            settings=("onnx.layers", "onnx.kinds", "export.opset"), libraries=("torch", "transformers", "onnx", "onnxruntime"),
            limits=Limits("onnx", cache=1e-3, padding=1e-3, merged=1e-2),
            thresholds=EXACT,
            traits=TRAITS, usage=USAGE, library="onnx", deploys="not",
        ),
        Variant(
            "onnx-activations-fp16", "handlers.onnx.activations.forms:half", 1, arithmetic="half",
            about="the ONNX graph with activations, in half precision",
            needs=("onnx-activations",), memory_fixed=400 * MIB, memory_fp32=3.0, disk_fp32=1.6, libraries=("onnx", "onnxruntime"),
            form_of="onnx-activations", level="fp16", fallback="onnx-activations",
            limits=Limits("onnx", twin=TWIN, cache=0.05, padding=0.05, merged=0.1),
            thresholds=EXACT,
            traits=TRAITS, usage=USAGE, library="onnx", deploys="not",
        ),
        Variant(
            "onnx-activations-int8", "handlers.onnx.activations.forms:integers", 2, arithmetic="integers",
            about="the ONNX graph with activations, with int8 weights",
            needs=("onnx-activations",), memory_fixed=400 * MIB, memory_fp32=3.0, disk_fp32=0.6, libraries=("onnx", "onnxruntime"),
            form_of="onnx-activations", level="int8", fallback="onnx-activations-fp16",
            limits=Limits("onnx", twin=TWIN, cache=1.0, padding=1.0, noise_share=1.5),
            thresholds=COARSE_EIGHT_BITS,
            traits=TRAITS, usage=USAGE, library="onnx", deploys="not",
        ),
    ),
    families={
        "decoders": "Qwen3, and Llama and GPT-2 with other heads: every kind of activation compared with torch's",
        "encoder-decoders": "not possible: the export says so",
        "encoders and heads": "BERT, ModernBERT, DeBERTa-v2, DistilBERT, ELECTRA: every kind of activation compared with torch's",
    },
)  # fmt: skip
