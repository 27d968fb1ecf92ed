"""Tiny models that read pictures or sound, with random weights, and their processors. Nothing of ckptd is imported here.

Sizes are the least that each family's code takes. Processors are those of the family, with small pictures, written as the hub's folders
have them: files that a class would write which needs torchvision are written as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, INNER, VOCABULARY = 64, 128, 512
TOKENS = ("<pad>", "<end>", "<image>", "<start_of_image>", "<end_of_image>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>",
          "<|vision_end|>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<|startoftranscript|>", "<|en|>",
          "<|transcribe|>", "<|notimestamps|>", "<|translate|>", "<|nospeech|>", "<unk>", "|")  # fmt: skip
"""Each stands in the tokenizer's vocabulary at its place here."""
IMAGE, BEGIN, END, PAD, VIDEO, SEES, SEEN = range(2, 9)
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048, "initializer_range": 0.15, "pad_token_id": 0,
    "eos_token_id": 1, "bos_token_id": 1,
}  # fmt: skip
TOWER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
    "initializer_range": 0.3,
}  # fmt: skip
PICTURE = {"height": 32, "width": 32}
EIGHT_BITS = ("pytorch-bnb-int8", "pytorch-w8a8")
"""Of most families no form in 4 bits is tried, since random weights have no margin for them."""


@dataclass(frozen=True)
class Family:
    """How to make a model, what its adapter changes, and how its folder is made readable."""

    make: Callable[[Any], Any]
    """Given transformers, the model."""
    targets: tuple[str, ...]
    """Modules of both towers, by the ends of their names."""
    auto: str
    processor: Callable[[Path], None]
    """Writes the files of tokenizer and processor into a folder."""
    media: str = "image"
    smaller: tuple[str, ...] = EIGHT_BITS
    """Quantized forms that are tried too: not those in which random weights leave an answer no margin."""
    plain: tuple[str, ...] = ("pytorch", "pytorch-fp16", "pytorch-bf16")
    """Forms of transformers that are not quantized."""


def _make(name: str, model: str, **options: Any) -> Callable[[Any], Any]:
    return lambda transformers: getattr(transformers, model)(getattr(transformers, name)(**options))


def _seeing(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """With a projector of Gemma 3 that lets a picture through: transformers begins with zeros there."""

    def made(transformers: Any) -> Any:
        model = make(transformers)
        model.model.multi_modal_projector.mm_input_projection_weight.data.normal_(0.0, 0.3)
        return model

    return made


def tokenizer(*, named: bool = True) -> Any:
    """A byte-level tokenizer that knows TOKENS and one merge, without which llama.cpp takes none: no text decides what it is. `named`: it
    says what marks a picture, as those of some families do."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {letter: len(TOKENS) + place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    letters["it"] = len(TOKENS) + len(letters)
    made = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(TOKENS)} | letters, merges=[("i", "t")]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in TOKENS[:-1]])
    marks = {"image_token": "<image>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"} if named else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", extra_special_tokens=marks,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def template(mark: str) -> str:
    """A chat template that writes `mark` where a picture is."""
    return (
        "{% for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}{% else %}"
        "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}" + mark + "{% endif %}{% endfor %}"
        "{% endif %}<end>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )


def _write(folder: Path, name: str, value: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(value, indent=2))


def _spoken(folder: Path, speaker: Any, mark: str) -> None:
    speaker.chat_template = template(mark)
    speaker.save_pretrained(folder)


def _qwen(kind: str, patch: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        _spoken(folder, tokenizer(named=False), "<|vision_start|><|image_pad|><|vision_end|>")
        common = {
            "min_pixels": 3136,
            "max_pixels": 12544,
            "size": {"shortest_edge": 3136, "longest_edge": 12544},
            "patch_size": patch,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        }
        _write(folder, "preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": kind, **common})
        video = "Qwen3VLVideoProcessor" if "3" in kind else "Qwen2VLVideoProcessor"
        _write(folder, "video_preprocessor_config.json", {"video_processor_type": video, "processor_class": kind, **common})

    return write


def _sided(kind: str, processor: str, size: Any = PICTURE, mark: str = "<image>", **more: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        _spoken(folder, tokenizer(), mark)
        own = {key: value for key, value in more.items() if key.startswith("image_processor_")}
        common = {"do_resize": True, "size": size, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "do_normalize": True}
        picture = {"image_processor_type": processor, "processor_class": kind, **common}
        _write(folder, "preprocessor_config.json", picture | {key.removeprefix("image_processor_"): value for key, value in own.items()})
        _write(folder, "processor_config.json", {"processor_class": kind, **{key: value for key, value in more.items() if key not in own}})

    return write


def _heard(kind: str, extractor: str, **more: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        if kind:
            tokenizer(named=False).save_pretrained(folder)
        named = {"processor_class": kind} if kind else {}
        _write(folder, "preprocessor_config.json", {"feature_extractor_type": extractor, "sampling_rate": 16000, **named, **more})

    return write


def _pictured(processor: str, size: Any = PICTURE, **more: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        _write(folder, "preprocessor_config.json", {
            "image_processor_type": processor, "do_resize": True, "size": size, "do_normalize": True, "do_rescale": True,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], **more,
        })  # fmt: skip

    return write


def _whisper(transformers: Any) -> Any:
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=16, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, max_source_positions=100, max_target_positions=64,
        init_std=0.15, pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=12, suppress_tokens=None,
        begin_suppress_tokens=None,
    ))  # fmt: skip
    model.generation_config.forced_decoder_ids = None
    return model


_ATTENTION = ("q_proj", "k_proj", "v_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
_INTERLEAVED = {**_ROPE, "mrope_section": [3, 3, 2]}
"""Pairs by thirds, all of which llama.cpp turns."""
_MARKS = {"image_token_id": PAD, "video_token_id": VIDEO, "vision_start_token_id": SEES, "vision_end_token_id": SEEN}
_WAVES = {
    "vocab_size": 32, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": INNER,
    "conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 8], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "initializer_range": 0.2, "apply_spec_augment": False, "num_labels": 4, "classifier_proj_size": 32,
    "feat_extract_norm": "layer", "do_stable_layer_norm": True,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "qwen2.5-vl": Family(
        _make("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration", text_config={**TEXT, "rope_parameters": _ROPE}, vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": WIDTH, "fullatt_block_indexes": [1],
            "patch_size": 14, "window_size": 112, "initializer_range": 0.3,
        }, **_MARKS), (*_ATTENTION, *_MLP, "attn.qkv", "attn.proj"), "AutoModelForImageTextToText", _qwen("Qwen2_5_VLProcessor", 14),
        smaller=("pytorch-bnb-int8", "pytorch-w4a16"),
    ),
    "qwen3-vl": Family(
        _make("Qwen3VLConfig", "Qwen3VLForConditionalGeneration", text_config={**TEXT, "rope_parameters": _INTERLEAVED}, vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": WIDTH, "patch_size": 16,
            "deepstack_visual_indexes": [0], "num_position_embeddings": 16, "initializer_range": 0.3,
        }, **_MARKS), (*_ATTENTION, *_MLP, "attn.qkv", "linear_fc1"), "AutoModelForImageTextToText", _qwen("Qwen3VLProcessor", 16),
    ),
    "gemma3": Family(
        _seeing(_make("Gemma3Config", "Gemma3ForConditionalGeneration",
              text_config={**TEXT, "query_pre_attn_scalar": 16, "sliding_window": 32},
              vision_config={**TOWER, "vision_use_head": False}, mm_tokens_per_image=4, image_token_index=IMAGE, boi_token_index=BEGIN,
              eoi_token_index=END)), (*_ATTENTION, "o_proj", *_MLP, "out_proj", "fc1"), "AutoModelForImageTextToText",
        _sided("Gemma3Processor", "Gemma3ImageProcessor", mark="<start_of_image>", image_seq_length=4),
    ),
    "smolvlm": Family(
        _make("Idefics3Config", "Idefics3ForConditionalGeneration", text_config={"model_type": "llama", **TEXT}, vision_config=TOWER,
              image_token_id=IMAGE, scale_factor=2, pad_token_id=0), (*_ATTENTION, *_MLP, "out_proj", "modality_projection.proj"),
        "AutoModelForImageTextToText",
        _sided("Idefics3Processor", "Idefics3ImageProcessor", {"longest_edge": 64}, image_seq_len=4,
               image_processor_max_image_size={"longest_edge": 32}, image_processor_do_image_splitting=True),
    ),
    "llava": Family(
        _make("LlavaConfig", "LlavaForConditionalGeneration", text_config={"model_type": "llama", **TEXT},
              vision_config={"model_type": "clip_vision_model", **TOWER}, image_token_index=IMAGE, image_token_id=IMAGE,
              vision_feature_layer=-1), (*_ATTENTION, *_MLP, "linear_1", "fc2"), "AutoModelForImageTextToText",
        _sided("LlavaProcessor", "CLIPImageProcessor", patch_size=8, vision_feature_select_strategy="default",
               image_processor_crop_size=PICTURE, num_additional_image_tokens=1),
    ),
    "whisper": Family(
        _whisper, (*_ATTENTION, "out_proj", "fc1", "fc2"), "AutoModelForSpeechSeq2Seq",
        _heard("WhisperProcessor", "WhisperFeatureExtractor", feature_size=16, chunk_length=2, hop_length=160, n_fft=400, n_samples=32000,
               nb_max_frames=200, padding_value=0.0, return_attention_mask=False), "audio",
    ),
    "vit": Family(
        _make("ViTConfig", "ViTForImageClassification", **TOWER, num_labels=5), ("query", "value", "q_proj", "v_proj", "fc1", "classifier"),
        "AutoModelForImageClassification", _pictured("ViTImageProcessor"), smaller=EIGHT_BITS[1:],
    ),
    "vit-bare": Family(
        _make("ViTConfig", "ViTModel", **TOWER), ("q_proj", "v_proj", "fc1"), "AutoModel", _pictured("ViTImageProcessor"),
    ),
    "dinov2": Family(
        _make("Dinov2Config", "Dinov2ForImageClassification", **{**TOWER, "num_labels": 5}), ("query", "value", "q_proj", "v_proj", "fc1"),
        "AutoModelForImageClassification",
        _pictured("BitImageProcessor", {"shortest_edge": 32}, crop_size=PICTURE, do_center_crop=True, do_convert_rgb=True),
    ),
    "deit": Family(
        _make("DeiTConfig", "DeiTForImageClassification", **TOWER, num_labels=5), ("query", "value", "q_proj", "v_proj", "fc1"),
        "AutoModelForImageClassification", _pictured("DeiTImageProcessor", crop_size=PICTURE, do_center_crop=True), smaller=(),
        plain=("pytorch",),
    ),
    "beit": Family(
        _make("BeitConfig", "BeitForImageClassification", **{**TOWER, "num_labels": 5, "use_relative_position_bias": True}),
        ("query", "value", "q_proj", "v_proj", "fc1"),
        "AutoModelForImageClassification", _pictured("BeitImageProcessor"), smaller=(), plain=("pytorch",),
    ),
    "convnext": Family(
        _make("ConvNextConfig", "ConvNextForImageClassification", hidden_sizes=[16, 32], depths=[1, 2], num_stages=2, image_size=32,
              num_labels=5, initializer_range=0.3, layer_scale_init_value=1.0), ("pwconv1", "pwconv2"), "AutoModelForImageClassification",
        _pictured("ConvNextImageProcessor", {"shortest_edge": 32}, crop_pct=0.875), smaller=(), plain=("pytorch",),
    ),
    "swin": Family(
        _make("SwinConfig", "SwinForImageClassification", image_size=32, patch_size=4, embed_dim=16, depths=[1, 2], num_heads=[2, 4],
              window_size=4, num_labels=5, initializer_range=0.3), ("query", "value", "q_proj", "v_proj", "fc1"),
        "AutoModelForImageClassification", _pictured("ViTImageProcessor"), smaller=(), plain=("pytorch",),
    ),
    "clip": Family(
        _make("CLIPConfig", "CLIPModel", text_config={**TEXT, "hidden_size": 32, "intermediate_size": 64, "projection_dim": 24},
              vision_config={**TOWER, "projection_dim": 24}, projection_dim=24), ("q_proj", "v_proj", "fc1"), "AutoModel",
        _sided("CLIPProcessor", "CLIPImageProcessor", {"shortest_edge": 32}, image_processor_crop_size=PICTURE),
    ),
    "wav2vec2": Family(
        _make("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", **_WAVES), ("q_proj", "v_proj", "intermediate_dense"),
        "AutoModelForAudioClassification",
        _heard("", "Wav2Vec2FeatureExtractor", feature_size=1, padding_value=0.0, do_normalize=True, return_attention_mask=True), "audio",
    ),
    "wav2vec2-ctc": Family(
        _make("Wav2Vec2Config", "Wav2Vec2ForCTC", **_WAVES), ("q_proj", "v_proj", "intermediate_dense"), "AutoModelForCTC",
        _heard("", "Wav2Vec2FeatureExtractor", feature_size=1, padding_value=0.0, do_normalize=True, return_attention_mask=True), "audio",
    ),
    "hubert-ctc": Family(
        _make("HubertConfig", "HubertForCTC", **{**_WAVES, "feat_extract_norm": "group", "do_stable_layer_norm": False}),
        ("q_proj", "v_proj", "intermediate_dense"), "AutoModelForCTC",
        _heard("", "Wav2Vec2FeatureExtractor", feature_size=1, padding_value=0.0, do_normalize=True, return_attention_mask=False), "audio",
        (), ("pytorch",),
    ),
}  # fmt: skip
