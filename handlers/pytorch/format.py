"""The format `pytorch`: the merged model as transformers' own folder, in its own dtype and in smaller forms.

The smaller forms are checked as transformers loads them, on the CPU, in the arithmetic that their folder names; which kernels a GPU runs
instead is said in `elsewhere`. What the limits find, and why the thresholds of 4 bits are not tighter: docs/validation.md, "Where the
limits come from".
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.declaration import MODEL_FILES, Format, Limits, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import EIGHT_BITS, EXACT, FOUR_BITS, HALF, Thresholds

_QUANTIZE, _ENGINE = "handlers.pytorch.quantize", "handlers.pytorch.engine"
USAGE = Path(__file__).with_name("usage.md")
USAGE_SMALL = USAGE.with_name("usage_quantized.md")
LIBRARIES = ("torch", "transformers", "tokenizers")
SETTINGS = ("merge.trust_remote_code", "merge.max_shard_size")
GPU = "a GPU computes 16-bit products with kernels of its own, and the check ran those of the CPU"
BITSANDBYTES = "the check ran bitsandbytes' kernels for the CPU; those for a GPU were not run"
SERVERS = "neither vLLM nor a GPU was run: the check ran transformers, which unpacks the weights and computes in 16 bits"
MATRICES = 1000 * MIB
"""Beside interpreter and libraries: the largest matrix of a large model in fp32, and copies of it."""

W8A8 = Thresholds(agreement=EIGHT_BITS.agreement, kl=EIGHT_BITS.kl, error=1.5)
"""Activations are rounded to 8 bits and sums to 16, so that single logits may be farther off."""

FAILING = (
    ("zamba2", "transformers 5.23 goes on from its cache otherwise than in one pass"),
    ("recurrent_gemma", "transformers 5.23 goes on from its cache, and reads batches with padding, otherwise than in one pass"),
    ("minimax", "transformers 5.23 reads batches with padding otherwise than single texts"),
    ("rwkv", "transformers 5.23 reads batches with padding otherwise than single texts"),
)
"""Model type → what was measured of transformers' own model of it (docs/models.md)."""

FORMAT = Format(
    name="pytorch",
    about="The merged model in the form that transformers reads, for PyTorch and other programs that read safetensors.",
    order=10,
    files={
        "model.safetensors": "weights", "model-*-of-*.safetensors": "weights", "model.safetensors.index.json": "weights", "*.py": "code",
        **MODEL_FILES,
    },
    runtimes=("transformers", "vLLM", "SGLang", "TGI"),
    options="handlers.pytorch.options:PytorchOptions",
    section="pytorch",
    engines={
        "torch-stored": {
            "causal": f"{_ENGINE}:StoredEngine", "seq2seq": f"{_ENGINE}:StoredSeq2Seq", "encoder": f"{_ENGINE}:StoredEncoder",
            "media-encoder": f"{_ENGINE}:StoredMediaEncoder", "media-seq2seq": f"{_ENGINE}:StoredSpeech",
        },
    },
    data_engines=frozenset({"torch-stored"}),
    variants=(
        Variant(
            "pytorch", "handlers.pytorch.stage:run", 2,
            about="a standard transformers folder: config, safetensors, tokenizer, chat template",
            needs=("merge",), heavy=False, threads=1, failing_types=FAILING,
            settings=("merge.trust_remote_code",), libraries=("transformers", "tokenizers"),
            limits=Limits("torch", pytorch=True, cache=1e-3, padding=1e-3),
            thresholds=EXACT,
            traits=frozenset({"merged", "tokenizer"}),
            usage=USAGE,
            library="transformers",
            also_for=frozenset({"cpu-server", "nvidia"}),
        ),
        Variant(
            "pytorch-fp16", f"{_QUANTIZE}.half:fp16", 1,
            about="the transformers folder with weights in fp16",
            needs=("merge",), memory_fixed=500 * MIB, disk_fp32=0.5, disk_fixed=64 * MIB, threads=1, settings=SETTINGS, libraries=LIBRARIES,
            form_of="pytorch", level="fp16", fallback="pytorch-bf16",
            limits=Limits("torch-stored", pytorch=True, cache=0.05, padding=0.05, memory_fp32=1.5, noise_share=1.5),
            also_for=frozenset({"nvidia"}),
            thresholds=HALF,
            traits=frozenset({"tokenizer", "cache", "padding"}), usage=USAGE, library="transformers", elsewhere=GPU,
        ),
        Variant(
            "pytorch-bf16", f"{_QUANTIZE}.half:bf16", 1,
            about="the transformers folder with weights in bf16",
            needs=("merge",), memory_fixed=500 * MIB, disk_fp32=0.5, disk_fixed=64 * MIB, threads=1, settings=SETTINGS, libraries=LIBRARIES,
            form_of="pytorch", level="bf16", fallback="pytorch",
            limits=Limits("torch-stored", pytorch=True, cache=0.2, padding=0.2, memory_fp32=1.5, noise_share=1.5),
            targets=frozenset({"nvidia"}),
            thresholds=Thresholds(agreement=0.95, kl=0.005, error=0.5),  # 8 bits of mantissa
            traits=frozenset({"tokenizer", "cache", "padding"}), usage=USAGE, library="transformers", elsewhere=GPU,
        ),
        Variant(
            "pytorch-bnb-int8", f"{_QUANTIZE}.bnb:int8", 1,
            about="the transformers folder with linear layers in int8 by bitsandbytes, which transformers loads by itself",
            needs=("merge",), memory_fixed=MATRICES, memory_fp32=0.05, disk_fp32=0.4, disk_fixed=64 * MIB, settings=SETTINGS,
            libraries=(*LIBRARIES, "bitsandbytes"),
            form_of="pytorch", level="bnb-int8", fallback="pytorch-bf16",
            limits=Limits("torch-stored", pytorch=True, cache=0.5, padding=0.5, memory_fixed=1000 * MIB, memory_fp32=1.0, noise_share=1.5),
            thresholds=W8A8,
            traits=frozenset({"tokenizer", "cache", "padding"}), usage=USAGE_SMALL, library="transformers", elsewhere=BITSANDBYTES,
        ),
        Variant(
            "pytorch-bnb-nf4", f"{_QUANTIZE}.bnb:nf4", 1,
            about="the transformers folder with linear layers in 4 bits (nf4) by bitsandbytes, which transformers loads by itself",
            needs=("merge",), memory_fixed=MATRICES, memory_fp32=0.05, disk_fp32=0.3, disk_fixed=64 * MIB, settings=SETTINGS,
            libraries=(*LIBRARIES, "bitsandbytes"),
            form_of="pytorch", level="nf4", fallback="pytorch-bnb-int8",
            limits=Limits("torch-stored", pytorch=True, cache=0.5, padding=0.5, memory_fixed=1000 * MIB, memory_fp32=1.0, noise_share=1.5),
            thresholds=FOUR_BITS,
            traits=frozenset({"tokenizer", "cache", "padding"}), usage=USAGE_SMALL, library="transformers", elsewhere=BITSANDBYTES,
        ),
        Variant(
            "pytorch-w8a8", f"{_QUANTIZE}.compressed:w8a8", 1,
            about="linear layers with int8 weights, and activations that servers quantize to int8 as they run (for vLLM)",
            needs=("merge",), memory_fixed=MATRICES, memory_fp32=0.05, disk_fp32=0.4, disk_fixed=64 * MIB, settings=SETTINGS,
            libraries=(*LIBRARIES, "compressed-tensors"),
            form_of="pytorch", level="w8a8", fallback="pytorch-bf16",
            limits=Limits("torch-stored", pytorch=True, cache=0.5, padding=0.5, memory_fixed=1000 * MIB, memory_fp32=1.5, noise_share=1.5),
            also_for=frozenset({"nvidia"}),
            thresholds=W8A8,
            traits=frozenset({"tokenizer", "cache", "padding"}), usage=USAGE_SMALL, library="transformers", elsewhere=SERVERS,
        ),
        Variant(
            "pytorch-w4a16", f"{_QUANTIZE}.compressed:w4a16", 1,
            about="linear layers with 4-bit weights in groups, rounded with their errors corrected (GPTQ, for vLLM)",
            needs=("merge", "calibration"), memory_fixed=1500 * MIB, memory_fp32=0.15, disk_fp32=0.3, disk_fixed=64 * MIB,
            settings=(*SETTINGS, "pytorch", "validation.prompts", "validation.data", "validation.samples"),
            libraries=(*LIBRARIES, "compressed-tensors"),
            form_of="pytorch", level="w4a16", fallback="pytorch-w8a8",
            limits=Limits("torch-stored", pytorch=True, cache=0.5, padding=0.5, memory_fixed=1000 * MIB, memory_fp32=1.5, noise_share=1.5),
            also_for=frozenset({"nvidia"}),
            thresholds=FOUR_BITS,
            traits=frozenset({"tokenizer", "cache", "padding"}), usage=USAGE_SMALL, library="transformers", elsewhere=SERVERS,
        ),
    ),
    families={
        "decoders": (
            "all forms compared with base + adapter, including greedy decoding; the bitsandbytes forms also with what transformers saves"
            " itself, bit by bit; the error correction of pytorch-w4a16 for Qwen2, Qwen3, Llama, Gemma 1–3, Mistral, Phi, Phi-3, GPT-NeoX,"
            " GPT-J, OPT, Bloom, OLMo 2, SmolLM 3, Granite, Cohere, StableLM, StarCoder 2 and gpt-oss; GPT-2 and models whose experts are"
            " stored one by one not in pytorch-w8a8 and -w4a16; Qwen2.5-VL, Qwen3-VL, Gemma 3, Idefics 3 (SmolVLM) and"
            " LLaVA also with pictures"
        ),
        "encoder-decoders": (
            "compared with base + adapter, including greedy decoding, Whisper with sounds; not in pytorch-w8a8 and -w4a16"
        ),
        "encoders and heads": (
            "compared with base + adapter, ViT, DINOv2, CLIP and Wav2Vec2 with pictures or sounds; pytorch-w4a16 without error correction,"
            " DINOv2 not in pytorch-w8a8 and -w4a16"
        ),
    },
)  # fmt: skip
