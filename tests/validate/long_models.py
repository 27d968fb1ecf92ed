"""Small models that reach a few hundred tokens, trained for seconds on texts as long as that, and what is made of them.

Each is a whole fine-tune: the folder is the checkpoint, the merged model and the live model at once, so that all differences are the
artifact's.
"""

from __future__ import annotations

import pkgutil
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.jobs.plan import spec_of
from handlers.validate.length.text import fill
from tests import models
from tests.onnx.conftest import make_context, silent
from tests.onnx.small import derived
from tests.validate.bench import Bench, measured

REACH = 512
WINDOW = 64
ORIGINAL = 128
_SMALL: Mapping[str, Any] = {
    "vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 32,
    "num_key_value_heads": 2, "max_position_embeddings": REACH, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
    "initializer_range": 0.02, "tie_word_embeddings": True,
}  # fmt: skip


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL)
_LLAMA3 = _rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL)
_LONGROPE = _rope("longrope", original_max_position_embeddings=ORIGINAL, factor=4.0, short_factor=[1.0] * 16,
                  long_factor=[1.0 + 0.2 * place for place in range(16)])  # fmt: skip
_KINDS = ["sliding_attention", "full_attention"]
KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen2-off": ("Qwen2", {"use_sliding_window": False, "sliding_window": WINDOW}),
    "gemma3": ("Gemma3Text", {"sliding_window": WINDOW // 2, "layer_types": _KINDS, "query_pre_attn_scalar": 16}),
    "linear": ("Llama", _rope("linear", factor=4.0)),
    "dynamic": ("Llama", {**_rope("dynamic", factor=4.0), "max_position_embeddings": ORIGINAL}),
    "yarn": ("Llama", _YARN),
    "llama3": ("Llama", _LLAMA3),
    "longrope": ("Phi3", {**_LONGROPE, "original_max_position_embeddings": ORIGINAL}),
    "gpt2": ("GPT2", {"n_embd": 256, "n_layer": 2, "n_head": 8, "n_positions": REACH}),
}
"""Name → class and settings."""


def make_model(folder: Path, kind: str, *, steps: int = 60, seed: int = 0) -> Path:
    """A model that has read long texts for `steps` steps, about a tenth of a second each."""
    import torch
    import transformers

    name, settings = KINDS[kind]
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    shared = {
        key: value for key, value in _SMALL.items() if kind != "gpt2" or key.endswith("_id") or key in ("vocab_size", "initializer_range")
    }
    config = getattr(transformers, f"{name}Config")(**{**shared, **settings})
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    tokenizer = models.make_tokenizer()
    bodies = [tokenizer(text)["input_ids"] for text in models.TEXTS]
    length = min(REACH, (config.max_position_embeddings if kind != "dynamic" else REACH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    random = np.random.default_rng(seed)
    model.train()
    for _ in range(steps):
        order = random.permutation(len(bodies))
        ids = torch.tensor([fill(bodies[order[0]], [bodies[place] for place in order[1:]], length)])
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)  # as the class that the model's type asks for
    return folder


@dataclass(frozen=True)
class LongLab:
    """Models by kind and their artifacts, made when they are asked for."""

    folder: Path

    def made(self, kind: str, variant: str) -> Path:
        """A sound artifact. Read only."""
        target = self.folder / kind / variant
        if not target.is_dir():
            if variant == "pytorch":
                return make_model(target, kind)
            scratch = self.folder / "scratch" / kind / variant
            source = self.made(kind, "onnx" if variant in ("onnx-fp16", "onnx-int8", "onnx-int4") else "pytorch")
            if variant == "onnx" or variant.startswith("onnx-genai"):
                context = make_context(scratch, variant, {"merge": source}, source)
                pkgutil.resolve_name(spec_of(variant).entry)(context, silent())
                shutil.copytree(context.staging, target)
            else:
                shutil.copytree(derived(variant.removeprefix("onnx-"), source, scratch).folder, target)
        return target

    def source(self, kind: str, variant: str) -> Path | None:
        """What a form was made of."""
        return self.made(kind, "onnx") if variant in ("onnx-fp16", "onnx-int8", "onnx-int4") else None

    def bench(self, kind: str, scratch: Path) -> Bench:
        """The live model of a kind, measured."""
        merged = self.made(kind, "pytorch")
        return measured(merged, None, merged, scratch, halves=True)
