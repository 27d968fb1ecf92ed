"""The format `onnx-genai`: folders that onnxruntime-genai runs, tokenizer, cache and search included."""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.declaration import MODEL_FILES, Format, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import EXACT, FOUR_BITS, HALF

USAGE = Path(__file__).with_name("usage.md")
TRAITS: frozenset[Trait] = frozenset({"onnx", "cache", "padding", "dynamic axes", "tokenizer"})
LIBRARIES = ("torch", "transformers", "onnx", "onnxruntime", "onnxruntime-genai")
TWIN = "handlers.validate.twins.onnx.form:OnnxForm"
_DEFAULT, _LLAMA, _LINEAR = ("default",), ("default", "llama3"), ("default", "linear")
ROPES = (
    *((name, _DEFAULT) for name in ("ernie4_5", "gemma", "gemma2", "granite", "nemotron", "phi", "phi3")),
    *((name, _LLAMA) for name in ("internlm3", "iquestcoder", "llama")), *((name, _LINEAR) for name in ("mistral", "qwen2", "qwen3")),
)  # fmt: skip
"""Model type, and the scalings of rotary angles with which builder and torch agree."""
TYPES = frozenset(name for name, _ in ROPES)
"""The model types of the architectures in `handlers.onnx.genai.source`."""

FORMAT = Format(
    name="onnx-genai",
    about="Folders that onnxruntime-genai runs on CPUs and GPUs, with tokenizer, cache and search.",
    order=40,
    files={
        "model.onnx": "graphs", "model.onnx.data": "weights", "genai_config.json": "runtime", **MODEL_FILES,
    },
    runtimes=("onnxruntime-genai",),
    recommended_first=frozenset({"laptop"}),
    options="handlers.onnx.options:OnnxOptions",
    section="onnx",
    engines={"onnx-genai": {"causal": "handlers.validate.engines.graphs.genai:GenaiEngine"}},
    data_engines=frozenset({"onnx-genai"}),
    variants=(
        Variant(
            "onnx-genai-fp32", "handlers.onnx.genai.stage:fp32", 2,
            about="a folder that onnxruntime-genai runs, fp32",
            needs=("merge",), text_only=True, model_types=TYPES, ropes=ROPES, apart_from_vocabulary=True,
            memory_fixed=700 * MIB, memory_fp32=2.4, disk_fp32=1.1, settings=("export.opset",), libraries=LIBRARIES,
            limits=Limits("onnx-genai", twin=TWIN, cache=1e-3, padding=1e-3, merged=1e-2),
            thresholds=EXACT,
            traits=TRAITS, usage=USAGE, library="onnxruntime-genai",
            also_for=frozenset({"cpu-server", "laptop"}),
        ),
        Variant(
            "onnx-genai-fp16", "handlers.onnx.genai.stage:fp16", 2, arithmetic="half",
            about="a folder that onnxruntime-genai runs, in half precision, for GPUs and the CPU",
            needs=("merge",), text_only=True, model_types=TYPES, ropes=ROPES, apart_from_vocabulary=True,
            memory_fixed=700 * MIB, memory_fp32=2.4, disk_fp32=0.6, settings=("export.opset",), libraries=LIBRARIES,
            form_of="onnx-genai-fp32", level="fp16", fallback="onnx-genai-fp32",
            limits=Limits("onnx-genai", twin=TWIN, cache=0.05, padding=0.05, noise_share=1.5),
            thresholds=HALF,
            traits=TRAITS, usage=USAGE, library="onnxruntime-genai",
            also_for=frozenset({"nvidia", "laptop"}),
        ),
        Variant(
            "onnx-genai-int4", "handlers.onnx.genai.int4:run", 3, arithmetic="blocks",
            about="a folder that onnxruntime-genai runs, with 4-bit weights in blocks, and activations in fp32 or int8",
            needs=("merge",), text_only=True, model_types=TYPES, ropes=ROPES, apart_from_vocabulary=True,
            memory_fixed=700 * MIB, memory_fp32=3.6, disk_fp32=0.4,
            settings=(
                "export.opset", "onnx.block_size", "onnx.symmetric", "onnx.algorithm", "onnx.accuracy_level", "validation.prompts",
                "validation.data", "validation.samples",
            ),
            libraries=LIBRARIES,
            form_of="onnx-genai-fp32", level="int4", fallback="onnx-genai-fp16",
            limits=Limits("onnx-genai", twin=TWIN, cache=0.5, padding=0.5, noise_share=1.5),
            thresholds=FOUR_BITS,
            traits=TRAITS, usage=USAGE, library="onnxruntime-genai",
            also_for=frozenset({"cpu-server", "laptop", "edge"}),
        ),
    ),
    families={
        "decoders": "Qwen3, Llama: logits, decoding, padded batches; others that onnxruntime-genai's builder knows, with the same code",
        "encoder-decoders": "not possible: the export says so",
        "encoders and heads": "not possible: the export says so",
    },
)  # fmt: skip
