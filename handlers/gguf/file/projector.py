"""The towers of a model that reads pictures, as the file `mmproj-….gguf` that llama.cpp reads beside that of the language model.

Keys and names are those that llama.cpp's own converter writes (convert_hf_to_gguf.py with `--mmproj`: conversion/base.py, qwenvl.py,
qwen3vl.py, gemma.py, smolvlm.py) and that its library mtmd reads (tools/mtmd/clip-impl.h, clip.cpp). LLaVA's is not written: that library
puts the token of a CLIP tower's whole picture behind the patches, and reads the patches as if it stood before them (models/llava.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gguf
import numpy as np

from daemon.contract.values import Json
from handlers.child.variants import NotPossible
from handlers.gguf.file.architectures import Part, Planned, config_of_text, width

MODEL = "clip"
"""What llama.cpp calls the architecture of such a file."""
_WINDOW = 112
"""Pixels of a side of the windows of Qwen2.5-VL's tower, which llama.cpp does not read from the file."""
_TANH = frozenset({"gelu_pytorch_tanh", "gelu_new"})

_VIT = {
    "embeddings.patch_embedding": "v.patch_embd", "embeddings.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln",
    "encoder.layers.#.self_attn.q_proj": "v.blk.#.attn_q", "encoder.layers.#.self_attn.k_proj": "v.blk.#.attn_k",
    "encoder.layers.#.self_attn.v_proj": "v.blk.#.attn_v", "encoder.layers.#.self_attn.out_proj": "v.blk.#.attn_out",
    "encoder.layers.#.layer_norm1": "v.blk.#.ln1", "encoder.layers.#.layer_norm2": "v.blk.#.ln2",
    "encoder.layers.#.mlp.fc1": "v.blk.#.ffn_up", "encoder.layers.#.mlp.fc2": "v.blk.#.ffn_down",
}  # fmt: skip
"""Names inside a tower of SigLIP → llama.cpp's; # is a number, and endings stay."""
_QWEN = {
    "patch_embed.proj": "v.patch_embd", "pos_embed": "v.position_embd", "merger.ln_q": "v.post_ln", "merger.norm": "v.post_ln",
    "merger.mlp.#": "mm.#", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2", "blocks.#.norm1": "v.blk.#.ln1",
    "blocks.#.norm2": "v.blk.#.ln2", "blocks.#.attn.proj": "v.blk.#.attn_out", "blocks.#.attn.qkv": "v.blk.#.attn_qkv",
    "blocks.#.mlp.gate_proj": "v.blk.#.ffn_gate", "blocks.#.mlp.up_proj": "v.blk.#.ffn_up",
    "blocks.#.mlp.down_proj": "v.blk.#.ffn_down", "blocks.#.mlp.linear_fc1": "v.blk.#.ffn_up",
    "blocks.#.mlp.linear_fc2": "v.blk.#.ffn_down", "deepstack_merger_list.#.norm": "v.deepstack.#.norm",
    "deepstack_merger_list.#.linear_fc1": "v.deepstack.#.fc1", "deepstack_merger_list.#.linear_fc2": "v.deepstack.#.fc2",
}  # fmt: skip
_CONNECTORS = {
    "mm_input_projection_weight": "mm.input_projection.weight", "mm_soft_emb_norm": "mm.soft_emb_norm",
    "modality_projection.proj": "mm.model.fc",
}  # fmt: skip
"""Names inside what stands between tower and language model."""
_PLACES = (
    (re.compile(r"(?:model\.)?(?:vision_tower|vision_model)\.(?:vision_model\.)?(.+)"), _VIT),
    (re.compile(r"(?:model\.)?visual\.(.+)"), _QWEN),
    (re.compile(r"(?:model\.)?(?:multi_modal_projector|connector)\.(.+)"), _CONNECTORS),
)


@dataclass(frozen=True)
class _Kind:
    projector: str
    """As llama.cpp names it."""
    keys: Callable[[gguf.GGUFWriter, Json, Json], None]
    """Given config.json and how pictures are prepared."""
    activations: frozenset[str]
    left_out: tuple[str, ...] = ()
    """Beginnings of names inside the tower."""
    shifted: tuple[str, ...] = ()
    """Tensors of llama.cpp's to which 1 is added, as transformers does when it runs."""
    split: bool = False
    """Queries, keys and values are stored apart."""


def describe(writer: gguf.GGUFWriter, config: Json, pictures: Json) -> None:
    """Write the keys. `pictures`: preprocessor_config.json. Raises NotPossible, and KeyError for what a configuration does not say."""
    kind, tower = _kind(config), config["vision_config"]
    used = str(tower.get("hidden_act", sorted(kind.activations)[0]))
    if used not in kind.activations:
        raise NotPossible(f"the activation of its tower is {used}, and llama.cpp's {sorted(kind.activations)[0]}")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(kind.projector)
    writer.add_vision_projection_dim(width(config_of_text(config)))
    writer.add_vision_patch_size(int(tower["patch_size"]))
    writer.add_vision_embedding_length(int(tower["hidden_size"]))
    writer.add_vision_feed_forward_length(int(tower["intermediate_size"]))
    writer.add_vision_block_count(_blocks(tower))
    writer.add_vision_head_count(int(tower.get("num_heads") or tower["num_attention_heads"]))
    writer.add_vision_image_mean([float(value) for value in pictures["image_mean"]])
    writer.add_vision_image_std([float(value) for value in pictures["image_std"]])
    kind.keys(writer, config, pictures)


def plan(config: Json, shapes: dict[str, tuple[int, ...]]) -> Iterator[Planned]:
    """The tensors of the file, in the order of the model's. Raises NotPossible for a weight that llama.cpp does not know."""
    kind = _kind(config)
    for source, shape in shapes.items():
        for pattern, names in _PLACES:
            if (match := pattern.fullmatch(source)) and not match[1].startswith(kind.left_out or ("-",)):
                yield from _planned(kind, config, source, shape, _named(names, match[1], source))


def _planned(kind: _Kind, config: Json, source: str, shape: tuple[int, ...], name: str) -> Iterator[Planned]:
    if len(shape) == 5:  # a convolution over two pictures one after the other, which are the same
        if shape[2] != 2:
            raise NotPossible(f"its tower reads {shape[2]} pictures at a time, and llama.cpp 2")
        for at, ending in enumerate(("", ".1")):
            yield Planned(f"{name}{ending}", (*shape[:2], *shape[3:]), (Part(source, _picked(at), whole=True),))
    elif kind.split and ".attn_qkv." in name:
        for at, letter in enumerate("qkv"):
            part = Part(source, _third(at), whole=True)
            yield Planned(name.replace("attn_qkv", f"attn_{letter}"), (shape[0] // 3, *shape[1:]), (part,))
    elif name.startswith("v.deepstack."):
        number = re.search(r"\d+", name)
        assert number is not None
        layer = config["vision_config"]["deepstack_visual_indexes"][int(number[0])]
        yield Planned(name.replace(f".{number[0]}.", f".{layer}.", 1), shape, (Part(source),))
    elif name in kind.shifted:
        yield Planned(name, shape, (Part(source, lambda array: array + np.float32(1)),))
    else:
        yield Planned(name, shape, (Part(source),))


def _picked(at: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.ascontiguousarray(array[:, :, at])


def _third(at: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.ascontiguousarray(array.reshape(3, -1, *array.shape[1:])[at])


def _named(names: dict[str, str], rest: str, source: str) -> str:
    stem, _, ending = rest.rpartition(".")
    for known, end in ((stem, f".{ending}"), (rest, "")):
        number = re.search(r"(?<=\.)\d+", known)
        name = names.get(re.sub(r"(?<=\.)\d+", "#", known, count=1))
        if name is not None:
            return (name.replace("#", number[0]) if number else name) + end
    raise NotPossible(f"llama.cpp has no tensor for its weight {source}")


def _kind(config: Json) -> _Kind:
    kind = KINDS.get(str(config.get("model_type")))
    if kind is None:
        raise NotPossible(f"models of the type {config.get('model_type')} that read pictures are not written as GGUF")
    return kind


def _blocks(tower: Json) -> int:
    return int(tower.get("depth") or tower["num_hidden_layers"])


def _qwen2_5(writer: gguf.GGUFWriter, config: Json, pictures: Json) -> None:
    tower = config["vision_config"]
    whole = tower["fullatt_block_indexes"]
    period = int(whole[0]) + 1
    if whole != list(range(period - 1, _blocks(tower), period)):
        raise NotPossible(f"the layers of its tower that see everything are {whole}, and llama.cpp's are each last of so many")
    if tower.get("window_size", _WINDOW) != _WINDOW:
        raise NotPossible(f"the windows of its tower are {tower['window_size']} pixels wide, and llama.cpp's {_WINDOW}")
    writer.add_vision_use_silu(True)
    writer.add_vision_n_wa_pattern(period)
    writer.add_vision_image_size(560)
    writer.add_vision_attention_layernorm_eps(1e-6)


def _qwen3(writer: gguf.GGUFWriter, config: Json, pictures: Json) -> None:
    tower = config["vision_config"]
    writer.add_vision_use_gelu(True)
    writer.add_vision_spatial_merge_size(int(tower["spatial_merge_size"]))
    writer.add_vision_image_size(int(int(tower["num_position_embeddings"]) ** 0.5) * int(tower["patch_size"]))
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_is_deepstack_layers([layer in tower["deepstack_visual_indexes"] for layer in range(_blocks(tower))])


def _siglip(writer: gguf.GGUFWriter, tower: Json) -> None:
    writer.add_vision_use_gelu(True)
    writer.add_vision_image_size(int(tower["image_size"]))
    writer.add_vision_attention_layernorm_eps(float(tower.get("layer_norm_eps", 1e-6)))


def _gemma3(writer: gguf.GGUFWriter, config: Json, pictures: Json) -> None:
    tower = config["vision_config"]
    _siglip(writer, tower)
    side = int(tower["image_size"]) // int(tower["patch_size"])
    writer.add_vision_projector_scale_factor(side // int(int(config.get("mm_tokens_per_image", 256)) ** 0.5))


def _idefics3(writer: gguf.GGUFWriter, config: Json, pictures: Json) -> None:
    _siglip(writer, config["vision_config"])
    writer.add_vision_projector_scale_factor(int(config.get("scale_factor", 2)))
    writer.add_vision_preproc_image_size(int(pictures.get("size", {}).get("longest_edge", config["vision_config"]["image_size"])))


KINDS: dict[str, _Kind] = {
    "qwen2_5_vl": _Kind("qwen2.5vl_merger", _qwen2_5, frozenset({"silu"}), split=True),
    "qwen3_vl": _Kind("qwen3vl_merger", _qwen3, _TANH),
    "gemma3": _Kind("gemma3", _gemma3, _TANH, left_out=("head.",), shifted=("mm.soft_emb_norm.weight",)),
    "idefics3": _Kind("idefics3", _idefics3, _TANH),
}
"""Model type of transformers → how llama.cpp reads its pictures."""
