"""The format `onnx`: graphs that onnxruntime runs, in fp32 and in five smaller forms, all derived from one export.

The limits are measured on a two-layer model: fp32 graphs stay below 1e-5, and a graph with a blanked cache or without its mask goes
above 2. Dynamic int8 scales activations by the largest value of the whole tensor, so a row depends on its neighbours: there correct
graphs reach 0.36 where their error against the live model is 0.42. On trained models of three layers (Qwen3, Llama, GPT-2) fp16 stays
below 2e-4 in both, static int8 below 1e-4, 8-bit and 4-bit weights below 5e-3. Rounded weights are the same with and without a cache, so
the share of the error by which their limits may rise is small; static int8 rounds each row alike too. A cache with one wrong token goes
above 0.12. What the limits find, and why the thresholds of 4 bits are not tighter: docs/validation.md, "Where the limits come from".
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.declaration import EXAMPLE_FILES, MODEL_FILES, Format, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import COARSE_EIGHT_BITS, EXACT, FOUR_BITS, HALF, Thresholds

USAGE = Path(__file__).with_name("usage.md")
TRAITS: frozenset[Trait] = frozenset({"onnx", "graphs", "cache", "padding", "dynamic axes", "tokenizer"})
RUNTIME = ("onnx", "onnxruntime")
TWIN = "handlers.validate.twins.onnx.form:OnnxForm"
TEXTS = ("validation.prompts", "validation.data", "validation.samples")
"""What measures on texts depends on them."""
CACHE = ("onnx.kv_cache", "onnx.calibration_samples", *TEXTS)
"""What a rounded KV cache depends on."""
BLOCKS = ("onnx.block_size", "onnx.symmetric", "onnx.accuracy_level", *CACHE)

COMPLEX = "it turns queries and keys by complex numbers, for which ONNX has no operators"
INFINITE = "in a batch with padding its graph gives numbers that are not finite"
MEDIA = frozenset({"beit", "clip", "convnext", "deit", "dinov2", "hubert", "swin", "vit", "wav2vec2"})
"""Types of models of pictures and sound whose graphs were tried (docs/models.md). Forms that need texts are not made of them."""
USUAL = (
    "model.onnx", "encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx", "decoder_model_merged.onnx",
)  # fmt: skip
"""Files of the graphs in a folder without graphs.json."""

FORMAT = Format(
    name="onnx",
    about="ONNX graphs for onnxruntime, and for every other runtime that supports the operators of the standard.",
    order=20,
    files={
        **dict.fromkeys(USUAL, "graphs"), "*.onnx": "graphs", "*.onnx*data": "weights", "graphs.json": "runtime",
        "quantization.json": "document", **EXAMPLE_FILES, **MODEL_FILES,
    },
    runtimes=("ONNX Runtime",),
    recommended_first=frozenset({"laptop"}),
    options="handlers.onnx.options:OnnxOptions",
    section="onnx",
    engines={
        "onnx": {
            "causal": "handlers.validate.engines.graphs.onnx_causal:OnnxEngine",
            "seq2seq": "handlers.validate.engines.graphs.onnx_tasks:OnnxSeq2Seq",
            "encoder": "handlers.validate.engines.graphs.onnx_tasks:OnnxEncoder",
            "media-encoder": "handlers.validate.engines.graphs.onnx_media:OnnxMedia",
        },
    },
    data_engines=frozenset({"onnx"}),
    variants=(
        Variant(
            "onnx", "handlers.onnx.export.stage:run", 7,
            about="ONNX graphs, with a KV cache where the model decodes, dynamic batch and length, fp32",
            needs=("merge",), memory_fixed=1200 * MIB, memory_fp32=2.0, disk_fp32=1.1, layerwise=8, kv_cache="onnx.cache", text_only=True,
            media_types=MEDIA,
            not_types=(("deepseek_v2", COMPLEX), ("llama4_text", COMPLEX), ("helium", INFINITE)),
            settings=(
                "export.opset", "onnx.cache", "onnx.profile", "onnx.exporter", "onnx.external_data", "onnx.optimize",
                "onnx.layers_per_graph",
            ),
            toolchain_if=(("onnx.exporter", "optimum", "optimum"),),
            libraries=("torch", "transformers", "tokenizers", "sentencepiece", "onnx", "onnxscript", "onnxslim", "onnxruntime"),
            limits=Limits("onnx", cache=1e-3, padding=1e-3, merged=1e-2),
            thresholds=EXACT,
            traits=TRAITS, usage=USAGE, library="onnx",
            targets=frozenset({"cpu-server"}), also_for=frozenset({"laptop", "android", "browser", "edge"}),
        ),
        Variant(
            "onnx-int8", "handlers.onnx.quantize.int8:run", 2, arithmetic="integers",
            about="the ONNX graph with int8 weights per channel, and activations quantized at run time",
            needs=("onnx",), memory_fixed=400 * MIB, memory_fp32=0.8, disk_fp32=0.6, settings=CACHE, libraries=RUNTIME,
            form_of="onnx", level="int8", fallback="onnx-int8-weight",
            limits=Limits("onnx", twin=TWIN, memory_fp32=0.9, cache=0.5, padding=0.5, noise_share=1.5),
            thresholds=COARSE_EIGHT_BITS,
            traits=TRAITS, usage=USAGE, library="onnx",
            targets=frozenset({"cpu-server", "android", "browser", "edge"}), also_for=frozenset({"laptop"}),
        ),
        Variant(
            "onnx-fp16", "handlers.onnx.quantize.fp16:run", 2, arithmetic="half",
            about="the ONNX graph in half precision, with norms and angles in fp32",
            needs=("onnx",), memory_fixed=700 * MIB, memory_fp32=3.0, disk_fp32=1.7, settings=TEXTS, libraries=RUNTIME,
            form_of="onnx", level="fp16", fallback="onnx",
            limits=Limits("onnx", twin=TWIN, cache=0.02, padding=0.02, noise_share=1.5),
            thresholds=HALF,
            traits=TRAITS, usage=USAGE, library="onnx",
            also_for=frozenset({"nvidia", "laptop", "browser"}),
        ),
        Variant(
            "onnx-int8-static", "handlers.onnx.quantize.int8_static:run", 4, arithmetic="integers",
            about="the ONNX graph with int8 weights, and activations with ranges measured on texts",
            text_only=True, needs=("onnx", "calibration"), memory_fixed=1200 * MIB, memory_fp32=3.0, disk_fp32=1.7,
            settings=CACHE, libraries=RUNTIME,
            form_of="onnx", level="int8-static", fallback="onnx-int8-weight",
            limits=Limits("onnx", twin=TWIN, cache=0.1, padding=0.1, noise_share=0.25),
            thresholds=COARSE_EIGHT_BITS,
            traits=TRAITS, usage=USAGE, library="onnx",
            also_for=frozenset({"cpu-server", "laptop", "android", "edge"}),
        ),
        Variant(
            "onnx-int8-weight", "handlers.onnx.quantize.weight_only:int8", 3, arithmetic="blocks",
            about="the ONNX graph with 8-bit weights in blocks, and activations in fp32, or in int8 if that is as accurate",
            text_only=True, needs=("onnx",), memory_fixed=700 * MIB, memory_fp32=0.6, disk_fp32=0.8, settings=BLOCKS, libraries=RUNTIME,
            form_of="onnx", level="int8-weight", fallback="onnx-fp16",
            limits=Limits("onnx", twin=TWIN, memory_fp32=0.9, cache=0.1, padding=0.1, noise_share=0.25),
            thresholds=Thresholds(agreement=0.95, kl=0.005, error=0.5),  # closer than with a scale a row
            traits=TRAITS, usage=USAGE, library="onnx",
            also_for=frozenset({"cpu-server", "laptop", "android", "edge"}),
        ),
        Variant(
            "onnx-int4", "handlers.onnx.quantize.weight_only:int4", 3, arithmetic="blocks",
            about="the ONNX graph with 4-bit weights in blocks, and activations in fp32, or in int8 if that is as accurate",
            text_only=True, needs=("onnx",), memory_fixed=700 * MIB, memory_fp32=0.35, disk_fp32=0.5, settings=(*BLOCKS, "onnx.algorithm"),
            libraries=RUNTIME,
            form_of="onnx", level="int4", fallback="onnx-int4-fine",
            limits=Limits("onnx", twin=TWIN, memory_fp32=0.7, cache=0.1, padding=0.1, noise_share=0.25),
            thresholds=FOUR_BITS,
            traits=TRAITS, usage=USAGE, library="onnx",
            targets=frozenset({"laptop", "edge"}), also_for=frozenset({"cpu-server", "android", "browser"}),
        ),
        Variant(
            "onnx-int4-fine", "handlers.onnx.quantize.weight_only:int4_fine", 1, arithmetic="blocks",
            about="like onnx-int4, with half the block, zero points, and values that are searched: a little larger and more exact",
            text_only=True, needs=("onnx",), memory_fixed=700 * MIB, memory_fp32=0.4, disk_fp32=0.5, settings=BLOCKS, libraries=RUNTIME,
            form_of="onnx", fallback="onnx-mixed",
            limits=Limits("onnx", twin=TWIN, memory_fp32=0.7, cache=0.1, padding=0.1, noise_share=0.25),
            thresholds=FOUR_BITS,
            traits=TRAITS, usage=USAGE, library="onnx",
            also_for=frozenset({"cpu-server", "laptop", "android", "browser", "edge"}),
        ),
        Variant(
            "onnx-mixed", "handlers.onnx.mixed.stage:run", 1, arithmetic="blocks",
            about="the ONNX graph with weights in 4, 8 or 32 bits, layer by layer as few as its limits allow",
            text_only=True, needs=("onnx", "merge"), memory_fixed=900 * MIB, memory_fp32=4.0, disk_fp32=0.8,
            settings=("export.target", "onnx.block_size", "onnx.algorithm", "onnx.accuracy_level", "validation.thresholds.onnx-mixed",
                      *CACHE),
            libraries=RUNTIME,
            form_of="onnx", fallback="onnx-int8-weight",
            limits=Limits("onnx", twin=TWIN, cache=0.1, padding=0.1, noise_share=0.25),
            thresholds=COARSE_EIGHT_BITS,
            traits=TRAITS, usage=USAGE, library="onnx",
            also_for=frozenset({"cpu-server", "laptop", "android", "browser", "edge"}),
        ),
    ),
    families={
        "decoders": (
            "Qwen3, Qwen3-MoE, Llama, GPT-2: prefill, cached steps, padded batches, beyond the window; Gemma, Mistral, Phi and"
            " others with the same code"
        ),
        "encoder-decoders": "MarianMT, T5, BART: both decoders, their caches, padded batches",
        "encoders and heads": (
            "BERT, RoBERTa, DistilBERT, ModernBERT: every task, padded batches; in fp32, fp16 and int8 also ViT, DeiT, DINOv2, BEiT,"
            " ConvNeXt, Swin, CLIP, Wav2Vec2 and HuBERT with pictures or sounds"
        ),
    },
)  # fmt: skip
