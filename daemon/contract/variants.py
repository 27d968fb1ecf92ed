"""The stages whose output is published as a variant: a part of `daemon.contract.plan`. Light: the daemon reads it."""

from __future__ import annotations

from daemon.contract.stages import MIB, StageSpec

VARIANT_STAGES: tuple[StageSpec, ...] = (
    StageSpec(
        "pytorch", "handlers.pytorch.stage:run", 1, needs=("merge",), artifact=True,
        about="a standard transformers folder: config, safetensors, tokenizer, chat template", heavy=False, threads=1,
        settings=("merge.trust_remote_code",), libraries=("transformers", "tokenizers"),
    ),
    StageSpec(
        "onnx", "handlers.onnx.export.stage:run", 4, needs=("merge",), artifact=True,
        about="ONNX graphs, with a KV cache where the model decodes, dynamic batch and length, fp32",
        memory_fixed=1200 * MIB, memory_fp32=2.0, disk_fp32=1.1,
        settings=("export.opset", "onnx.cache", "onnx.profile", "onnx.external_data", "onnx.optimize", "onnx.layers_per_graph"),
        libraries=("torch", "transformers", "tokenizers", "sentencepiece", "onnx", "onnxscript", "onnxslim", "onnxruntime"),
    ),
    StageSpec(
        "onnx-int8", "handlers.onnx.quantize.int8:run", 2, needs=("onnx",), artifact=True, arithmetic="integers",
        about="the ONNX graph with int8 weights, dynamic activations, per channel",
        memory_fixed=400 * MIB, memory_fp32=3.0, disk_fp32=0.6, libraries=("onnx", "onnxruntime"),
        form=("onnx", "int8"),
    ),
    StageSpec(
        "onnx-fp16", "handlers.onnx.quantize.fp16:run", 1, needs=("onnx",), artifact=True, arithmetic="half",
        about="the ONNX graph in half precision, norms and angles in fp32",
        memory_fixed=700 * MIB, memory_fp32=3.0, disk_fp32=1.7, settings=("validation.prompts", "validation.samples"),
        libraries=("onnx", "onnxruntime"), form=("onnx", "fp16"),
    ),
    StageSpec(
        "onnx-int8-static", "handlers.onnx.quantize.int8_static:run", 2, needs=("onnx",), artifact=True, arithmetic="integers",
        about="the ONNX graph with int8 weights, and activations of ranges measured on texts",
        memory_fixed=1200 * MIB, memory_fp32=3.0, disk_fp32=1.7,
        settings=("onnx.calibration_samples", "validation.prompts", "validation.samples"),
        libraries=("onnx", "onnxruntime"), form=("onnx", "int8-static"),
    ),
    StageSpec(
        "onnx-int8-weight", "handlers.onnx.quantize.weight_only:int8", 2, needs=("onnx",), artifact=True, arithmetic="blocks",
        about="the ONNX graph with 8-bit weights in blocks, activations in fp32, or int8 where that is as good",
        memory_fixed=700 * MIB, memory_fp32=3.0, disk_fp32=0.8,
        settings=("onnx.block_size", "onnx.symmetric", "onnx.accuracy_level", "validation.prompts", "validation.samples"),
        libraries=("onnx", "onnxruntime"), form=("onnx", "int8-weight"),
    ),
    StageSpec(
        "onnx-int4", "handlers.onnx.quantize.weight_only:int4", 2, needs=("onnx",), artifact=True, arithmetic="blocks",
        about="the ONNX graph with 4-bit weights in blocks, activations in fp32, or int8 where that is as good",
        memory_fixed=700 * MIB, memory_fp32=3.0, disk_fp32=0.5,
        settings=(
            "onnx.block_size", "onnx.symmetric", "onnx.algorithm", "onnx.accuracy_level", "validation.prompts", "validation.samples",
        ),
        libraries=("onnx", "onnxruntime"), form=("onnx", "int4"),
    ),
    StageSpec(
        "onnx-activations", "handlers.onnx.activations.stage:run", 1, needs=("merge", "onnx"), artifact=True,
        about="the ONNX graph with hidden states, attentions, embeddings or feed-forward outputs as further outputs",
        memory_fixed=1200 * MIB, memory_fp32=3.2, disk_fp32=2.2,
        settings=("onnx.layers", "onnx.kinds", "export.opset"), libraries=("torch", "transformers", "onnx", "onnxruntime"),
    ),
    StageSpec(
        "onnx-activations-fp16", "handlers.onnx.activations.forms:half", 1, needs=("onnx-activations",), artifact=True, arithmetic="half",
        about="the ONNX graph with activations, in half precision",
        memory_fixed=400 * MIB, memory_fp32=3.0, disk_fp32=1.6, libraries=("onnx", "onnxruntime"),
        form=("onnx-activations", "fp16"),
    ),
    StageSpec(
        "onnx-activations-int8", "handlers.onnx.activations.forms:integers", 2, needs=("onnx-activations",), artifact=True,
        arithmetic="integers",
        about="the ONNX graph with activations, with int8 weights",
        memory_fixed=400 * MIB, memory_fp32=3.0, disk_fp32=0.6, libraries=("onnx", "onnxruntime"),
        form=("onnx-activations", "int8"),
    ),
    StageSpec(
        "onnx-genai-fp32", "handlers.onnx.genai.stage:fp32", 1, needs=("merge",), artifact=True,
        about="a folder that onnxruntime-genai runs, fp32",
        memory_fixed=700 * MIB, memory_fp32=2.4, disk_fp32=1.1, settings=("export.opset",),
        libraries=("torch", "transformers", "onnx", "onnxruntime", "onnxruntime-genai"),
    ),
    StageSpec(
        "onnx-genai-fp16", "handlers.onnx.genai.stage:fp16", 1, needs=("merge",), artifact=True, arithmetic="half",
        about="a folder that onnxruntime-genai runs, in half precision, for GPUs and the CPU",
        memory_fixed=700 * MIB, memory_fp32=2.4, disk_fp32=0.6, settings=("export.opset",),
        libraries=("torch", "transformers", "onnx", "onnxruntime", "onnxruntime-genai"), form=("onnx-genai-fp32", "fp16"),
    ),
    StageSpec(
        "onnx-genai-int4", "handlers.onnx.genai.int4:run", 1, needs=("merge",), artifact=True, arithmetic="blocks",
        about="a folder that onnxruntime-genai runs, with 4-bit weights in blocks, activations in fp32 or int8",
        memory_fixed=700 * MIB, memory_fp32=3.6, disk_fp32=0.4,
        settings=(
            "export.opset", "onnx.block_size", "onnx.symmetric", "onnx.algorithm", "onnx.accuracy_level", "validation.prompts",
            "validation.samples",
        ),
        libraries=("torch", "transformers", "onnx", "onnxruntime", "onnxruntime-genai"), form=("onnx-genai-fp32", "int4"),
    ),
)  # fmt: skip
