"""The engine of transformers folders, on PyTorch. Imported only inside workers.

It computes in fp32, whatever the stored dtype: bf16 and fp16 weights are exact in fp32, so what is compared is the
model itself without the rounding of low-precision arithmetic.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from daemon.errors import Permanent
from handlers.validate.engines import EngineSpec


class TorchEngine:
    """A transformers folder, loaded with `AutoModelForCausalLM.from_pretrained` in fp32."""

    adapted = False
    """There is an adapter that can be switched off."""

    @staticmethod
    def prepare(spec: EngineSpec) -> None:
        """Import the module of the model's class, which transformers would otherwise do inside the timed loading."""
        with contextlib.suppress(Exception):  # whatever is wrong with the folder, loading it will say so
            config = json.loads(Path(spec.base or spec.folder, "config.json").read_text())
            getattr(transformers, config["architectures"][0])

    def __init__(self, spec: EngineSpec) -> None:
        torch.set_num_threads(spec.threads)
        self._tokenizer: Any = None
        self._tokenizer_folders = [Path(spec.folder)]
        self._model = self._load(spec)
        self._model.eval()
        plain = self._plain()
        self._takes = frozenset(inspect.signature(plain.forward).parameters)
        config = plain.config.get_text_config()
        self.vocabulary: int | None = getattr(config, "vocab_size", None)
        self.context_length: int | None = getattr(config, "max_position_embeddings", None)
        end = plain.generation_config.eos_token_id if plain.generation_config else None
        self.end_tokens: tuple[int, ...] = () if end is None else tuple(end) if isinstance(end, list) else (end,)

    def _plain(self) -> Any:
        """The model itself, without a wrapper around it."""
        return self._model

    def _load(self, spec: EngineSpec) -> Any:
        return load_model(Path(spec.folder))

    @torch.inference_mode()
    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """See `Engine.step`; `position_ids` are left out for models that compute them from the mask alone."""
        inputs: dict[str, Any] = {
            "input_ids": torch.from_numpy(input_ids),
            "attention_mask": torch.from_numpy(attention_mask),
            "use_cache": True,
            "past_key_values": cache,
        }
        if "position_ids" in self._takes:
            inputs["position_ids"] = torch.from_numpy(position_ids)
        output = self._model(**inputs)
        return output.logits.float().numpy(), output.past_key_values

    def encode(self, text: str) -> list[int]:
        """See `Engine.encode`."""
        return list(self._loaded_tokenizer()(text)["input_ids"])

    def text(self, ids: list[int]) -> str:
        """See `Engine.text`."""
        return str(self._loaded_tokenizer().decode(ids, skip_special_tokens=True))

    def _loaded_tokenizer(self) -> Any:
        if self._tokenizer is None:
            folder = next((folder for folder in self._tokenizer_folders if has_tokenizer(folder)), None)
            if folder is None:
                raise Permanent(
                    "tokenizer-not-found", "load the tokenizer", "the folder holds no tokenizer files",
                    "put the tokenizer's files beside the model", path=self._tokenizer_folders[0],
                )  # fmt: skip
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return self._tokenizer


def load_model(folder: Path) -> Any:
    """The causal language model of a transformers folder in fp32; Permanent when weights would be made up."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True, output_loading_info=True)
    model, info = loaded
    lost = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if lost:
        cause = f"{len(lost)} weights are missing from its files or have another shape, for example {lost[0]}"
        raise Permanent("missing-weights", "load the model", cause, "restore the model's files", path=folder)
    return model


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer of its own, in any of the forms that transformers reads."""
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
    return any((folder / name).is_file() for name in names)
