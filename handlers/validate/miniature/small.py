"""Makes the miniature of a model: the same configuration with small widths, tensors and adapter keys of the same names, random values.

Called by `stock.py`, in a process of its own. All layers are kept, so that layer numbers, patterns and adapter_config.json stay as they
are, byte by byte; widths, heads and vocabulary shrink. What can't be made small raises Unlike: there is none then, and nothing proved.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from daemon.contract.models.safetensors import DTYPES, TensorInfo, read_header
from daemon.contract.values import Json
from handlers.models.folder import SINGLE, ModelFolder
from handlers.tensors.sources import StoredSource
from handlers.validate.engines.adapters.loading import in_base

TOKENS = 256
"""Of the vocabulary, unless the adapter trained rows further on."""
MOST = 150_000_000
"""Parameters of the largest miniature."""
_UNITS = (8, 16, 32, 64, 128)
"""Widths that a head may be given."""
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_SHARED_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_WIDTHS = (*_HIDDEN, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "word_embed_proj_dim", "embedding_size", "rotary_dim")
_ROPE_LISTS = ("short_factor", "long_factor")
_SAMPLED = 64
"""Rows of a tensor that is stored twice by which it shows whether both are the same."""


class Unlike(Exception):
    """A model of which there is no miniature; the message says why, as a clause."""


def make(base: Path, adapters: list[Path], out: Path) -> list[int]:
    """Write the miniature of the base into `out`/base and those of the adapters into `out`/adapter-0 and so on; token ids to run it on."""
    configs = [json.loads((folder / "adapter_config.json").read_text(encoding="utf-8")) for folder in adapters]
    tokens = max([TOKENS, *(1 + token for config in configs for token in _trained(config.get("trainable_token_indices")))])
    real = ModelFolder(base)
    config = shrunk(real.config, tokens)
    (out / "config").mkdir(parents=True)
    (out / "config" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(7)
    settings = AutoConfig.from_pretrained(out / "config", local_files_only=True)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    if (count := sum(value.numel() for value in built.parameters())) > MOST:
        raise Unlike(f"with small widths it still has {count:,} parameters")
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(_drawn(name, tuple(value.shape)))
    _write_base(model, real, config, out / "base")
    for number, folder in enumerate(adapters):  # PEFT changes the model that it wraps
        model = AutoModelForCausalLM.from_pretrained(out / "base", dtype=torch.float32, local_files_only=True)
        _write_adapter(model, folder, out / f"adapter-{number}")
    return ids_of(tokens)


def ids_of(tokens: int) -> list[int]:
    """Give token ids from all over the vocabulary, and the last ones, which an adapter may have trained."""
    return [*torch.linspace(3, tokens - 1, 8).long().tolist(), *range(tokens - 6, tokens), 3, 4]


def shrunk(config: Json, tokens: int) -> Json:
    """Give a configuration with narrow heads, few of them in the same ratio, and so many tokens; all else is kept. Raises Unlike."""
    small = {key: shrunk(value, tokens) if key.endswith("_config") and isinstance(value, dict) else value for key, value in config.items()}
    small.pop("quantization_config", None)
    for key, value in small.items():
        if key.endswith("_token_id"):
            small[key] = (
                [token % tokens for token in value] if isinstance(value, list) else value % tokens if isinstance(value, int) else value
            )
    heads, hidden = _first(config, _HEADS), _first(config, _HIDDEN)
    if heads is None or hidden is None:
        return small
    width = config.get("head_dim") or hidden // heads
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    partial = config.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or config.get("rotary_pct") or 1.0
    unit = next((size for size in _UNITS if size < width and width % size == 0 and _even(size * partial)), width)
    shared = _first(config, _SHARED_HEADS) or heads
    fewer = next((count for count in range(max(1, shared // 2), 0, -1) if shared % count == 0 and heads % count == 0), 1)
    ratio = (heads // fewer * unit) / (heads * width)
    for key in _WIDTHS:
        if isinstance(size := config.get(key), int):
            step = heads // fewer * 8 if key in _HIDDEN else 8  # some classes want their width to be a multiple of the heads
            exact = size * ratio
            small[key] = int(exact) if size == heads * width else max(step, round(exact / step) * step)
    for key in (*_HEADS, *_SHARED_HEADS):
        if isinstance(config.get(key), int) and (key in _HEADS or config[key] == shared):
            small[key] = config[key] // fewer
    if config.get("head_dim"):
        small["head_dim"] = unit
    if "rotary_dim" in small:
        small["rotary_dim"] = config["rotary_dim"] * unit // width
    small["vocab_size"] = tokens
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(config.get(key), dict):
            small[key] = _rope(config[key], int(unit * partial) // 2)
    return small


def _rope(settings: Json, frequencies: int) -> Json:
    """Give rotary settings for so many frequencies."""
    smaller: dict[str, Any] = {key: _rope(value, frequencies) if isinstance(value, dict) else value for key, value in settings.items()}
    return {**smaller, **{key: smaller[key][:frequencies] for key in _ROPE_LISTS if isinstance(smaller.get(key), list)}}


def _even(width: float) -> bool:
    return width == int(width) and int(width) >= 4 and int(width) % 2 == 0


def _first(config: Json, keys: tuple[str, ...]) -> int | None:
    return next((value for key in keys if isinstance(value := config.get(key), int)), None)


def _trained(indices: Any) -> Iterator[int]:
    """Yield all tokens that trainable_token_indices names."""
    for tokens in indices.values() if isinstance(indices, dict) else [indices]:
        yield from tokens or ()


def _drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Give random values with which a model of any depth still answers by all of its weights."""
    values = torch.randn(shape)
    if len(shape) > 1:
        return values.div_(shape[-1] ** 0.5)
    return values.mul_(0.1) if name.endswith("bias") else values.mul_(0.1).add_(1.0)


def _write_base(model: Any, real: ModelFolder, config: Json, out: Path) -> None:
    """Write the miniature in the dtype, under the names and with the doubles of the real files."""
    dtype: torch.dtype = getattr(torch, real.main_dtype)
    model.to(dtype).save_pretrained(out, max_shard_size="5GB")
    tensors = load_file(out / SINGLE)
    names = _names(set(tensors), real, model.base_model_prefix)
    named = {names[name]: tensor for name, tensor in tensors.items()}
    state = model.state_dict()
    for name in real.headers.keys() - named.keys():
        if name in state:  # stored beside the one that it is tied to
            same = _same_values(real, name, [other for other in named if real.headers[other].shape == real.headers[name].shape])
            named[name] = state[name].clone() if same else state[name] * -0.5
    save_file(named, out / SINGLE, metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps({**config, "dtype": real.main_dtype}), encoding="utf-8")


def _names(mine: set[str], real: ModelFolder, prefix: str) -> Mapping[str, str]:
    """Give name in transformers' own files → name in the real ones, which may lack the prefix of the body or have it. Raises Unlike."""
    forms = ({name: name for name in mine}, {name: name.removeprefix(f"{prefix}.") for name in mine}, {n: f"{prefix}.{n}" for n in mine})
    for form in forms:
        if set(form.values()) <= real.headers.keys():
            return form
    lost = sorted(mine - real.headers.keys())
    raise Unlike(f"transformers stores {lost[0]}, which is not the name of a tensor of the base")


def _same_values(real: ModelFolder, name: str, others: list[str]) -> bool:
    """Tell whether a tensor has the first rows that one of the others has."""

    def rows(info: TensorInfo, key: str) -> torch.Tensor:
        source = StoredSource(key, real.path_of(info), info)
        out = torch.empty(min(_SAMPLED, info.shape[0]), *info.shape[1:])
        source.rows(0, len(out), out)
        return out

    mine = rows(real.headers[name], name)
    return any(torch.equal(mine, rows(real.headers[other], other)) for other in others)


def _write_adapter(model: Any, folder: Path, out: Path) -> None:
    """Write random values under the real adapter's keys. PEFT says which shapes they have over the small model. Raises Unlike."""
    out.mkdir()
    shutil.copyfile(folder / "adapter_config.json", out / "adapter_config.json")
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise Unlike("the adapter is no safetensors file")
    whole = dict(model.named_parameters(remove_duplicate=False))
    wrapped = PeftModel(model, PeftConfig.from_pretrained(str(folder)))
    shapes = {key: value.shape for key, value in get_peft_model_state_dict(wrapped, save_embedding_layers=False).items()}
    tensors = {}
    own: dict[Any, torch.Tensor] = {}
    for key, info in read_header(path).items():
        mine = whole.get(in_base(key))
        if key not in shapes and mine is None:
            raise Unlike(f"PEFT knows no {key}")
        shape = shapes[key] if key in shapes or mine is None else mine.shape
        # What training saves twice is twice the same: a trained copy by its name, the base's own weight whatever it is called.
        owner: Any = key if mine is None else id(mine) if ".base_layer." in key or ".original_module." in key else in_base(key)
        if owner not in own:
            own[owner] = torch.randn(shape) * 0.2 if ".lora_" in key and "magnitude" not in key else _drawn(key, tuple(shape))
        tensors[key] = own[owner].to(getattr(torch, DTYPES[info.dtype][0])).clone()
    save_file(tensors, out / path.name, metadata={"format": "pt"})
