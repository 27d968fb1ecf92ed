"""The engine of transformers folders, on PyTorch: what all models share, and language models. Imported only inside workers.

It computes in fp32, whatever the stored dtype: bf16 and fp16 weights are exact in fp32, so what is compared is the
model itself without the rounding of low-precision arithmetic.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.caches import STATES, kept_besides
from daemon.contract.values import Json
from handlers.child import foreign
from handlers.models import products
from handlers.models.files import FOREIGN_TOKENIZER, has_tokenizer
from handlers.validate.engines.generation_rules import end_tokens
from handlers.validate.engines.media.reading import ReadsMedia
from handlers.validate.engines.pytorch.folder import POOLER, load_model, renamed_tensors
from handlers.validate.engines.reach import reach_of
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.engines.task_profile import context_length

WHOLE_TOKENIZER = "give the folder all files of its tokenizer, as its author published them"
_LAST = "logits_to_keep"
"""The argument by which a language model of transformers computes the logits of so many last positions."""
APART = 1e-3
"""Standard deviations of the logits beyond which two ways to read the same tokens differ by more than rounding."""
_CACHES = ("past_key_values", "cache_params", "state")
"""The arguments by which a language model takes its cache, and the fields in which it gives it: keys and values (of hybrids, states too), a
state-space model's states, RWKV's."""


class TorchModel:
    """A transformers folder, loaded with its task's auto class in fp32."""

    adapted = False
    """There is an adapter that can be switched off."""
    _tokenizer_folders: list[Path]
    """Those whose first one with a tokenizer, or with a processor, counts."""
    _bare = False
    _values = "original"
    _usual = False

    @staticmethod
    def prepare(spec: EngineSpec) -> None:
        """Import the module of the model's class, which transformers would otherwise do inside the timed loading."""
        with contextlib.suppress(Exception):  # whatever is wrong with the folder, loading it will say so
            file = Path(spec.folder, "config.json")
            config = json.loads((file if file.is_file() else Path(spec.base or "", file.name)).read_text(encoding="utf-8"))
            getattr(transformers, config["architectures"][0])

    def __init__(self, spec: EngineSpec) -> None:
        torch.set_num_threads(spec.threads)
        self._task = spec.task
        self._tokenizer: Any = None
        self._tokenizer_folders = [Path(folder) for folder in (spec.folder, *spec.processors)]
        self._model = self._load(spec)
        self._model.eval()
        plain = self._plain()
        self._takes = frozenset(inspect.signature(plain.forward).parameters)
        config = plain.config.get_text_config()
        self.vocabulary: int | None = getattr(config, "vocab_size", None)
        self.input_vocabulary = self.vocabulary
        about = ("model_type", "max_position_embeddings", "pad_token_id")  # by getattr, since some configurations name them otherwise
        self.context_length: int | None = context_length({key: getattr(config, key, None) for key in about})
        self.reach = reach_of(config)
        self.pad: int = getattr(config, "pad_token_id", None) or 0

    @property
    def bare(self) -> bool:
        """Whether the adapter is left out now."""
        return self._bare

    @property
    def values(self) -> str:
        """The base's values, as `merge.base` names them."""
        return self._values

    @contextlib.contextmanager
    def as_users_run_it(self) -> Iterator[None]:
        """Inside, nothing is computed faster than transformers does by itself: what is timed is what users get."""
        self._usual = True
        try:
            yield
        finally:
            self._usual = False

    def _products(self) -> contextlib.AbstractContextManager[Any]:
        """Give what surrounds each run of the model."""
        return contextlib.nullcontext() if self._usual else products.faster()

    def _plain(self) -> Any:
        """Give the model itself, without a wrapper around it."""
        return self._model

    def _load(self, spec: EngineSpec) -> Any:
        return load_model(Path(spec.folder), spec.task, POOLER if spec.sentence else ())

    def encode(self, text: str) -> list[int]:
        ids = self.token_ids(text)
        self._refuse_unknown(ids)
        return ids

    def token_ids(self, text: str) -> list[int]:
        """Give what `encode` does, whether the model knows the tokens or not."""
        return list(self._loaded_tokenizer()(text)["input_ids"])

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """See `Loaded.encode_pair`; all tokens are of segment 0 where the tokenizer makes no segments."""
        encoded = self._loaded_tokenizer()(first, second, return_token_type_ids=True)
        ids = list(encoded["input_ids"])
        self._refuse_unknown(ids)
        return ids, list(encoded.get("token_type_ids", [0] * len(ids)))

    def _refuse_unknown(self, ids: list[int]) -> None:
        """Raise Permanent where the tokenizer gives tokens that the model has no embedding for: torch would say "index out of range"."""
        weight = None
        with contextlib.suppress(NotImplementedError, AttributeError):  # a model's own code may have no such method
            weight = self._plain().get_input_embeddings().weight
        rows, highest = 0 if weight is None else int(weight.shape[0]), max(ids, default=0)
        if rows and highest >= max(rows, self.vocabulary or 0):
            raise Permanent(
                FaultCode.TOKENIZER_MISMATCH, "encode a text",
                f"the tokenizer gives it token {highest}, but the model has embeddings for tokens 0 to {rows - 1} only",
                FOREIGN_TOKENIZER,
            )  # fmt: skip

    def text(self, ids: list[int]) -> str:
        return str(self._loaded_tokenizer().decode(ids, skip_special_tokens=True))

    def whole_text(self, ids: list[int]) -> str:
        """Give the text of token ids, with special tokens."""
        return str(self._loaded_tokenizer().decode(ids, skip_special_tokens=False))

    def tokenizer_json(self) -> str | None:
        """Give the tokenizer as transformers loads it, as a tokenizer.json; None where it can't be written so."""
        backend = getattr(self._loaded_tokenizer(), "backend_tokenizer", None)
        return None if backend is None else str(backend.to_str())

    def vocabulary_map(self) -> dict[str, int] | None:
        """Give token → id of a tokenizer that has no tokenizer.json."""
        tokenizer = self._loaded_tokenizer()
        return None if getattr(tokenizer, "backend_tokenizer", None) is not None else dict(tokenizer.get_vocab())

    def chat_templates(self) -> dict[str, str]:
        """Give name → chat template, as transformers loads them."""
        template = self._loaded_tokenizer().chat_template
        return template if isinstance(template, dict) else {"default": template} if template else {}

    def renamed_tensors(self) -> dict[str, str]:
        """Give tensor of the files → name in the model, of those that transformers renames as it loads them."""
        return renamed_tensors(self._plain(), self._tokenizer_folders[0])

    def generation_settings(self) -> Json | None:
        """Give the settings of generation that the model was loaded with; None for one that generates nothing."""
        settings = self._plain().generation_config if self._plain().can_generate() else None
        return None if settings is None else json.loads(settings.to_json_string(use_diff=True))

    def generation_defaults(self) -> Json:
        """Give what transformers takes for settings of generation that are not set."""
        return dict(transformers.GenerationConfig._get_default_generation_params())

    @property
    def special_tokens(self) -> frozenset[int]:
        """Ids of the tokenizer's special tokens."""
        return frozenset(self._loaded_tokenizer().all_special_ids)

    @property
    def mask_token(self) -> int | None:
        """Id of the token that stands for a hidden one; None where the tokenizer has none."""
        token = self._loaded_tokenizer().mask_token_id
        return None if token is None else int(token)

    def _loaded_tokenizer(self) -> Any:
        if self._tokenizer is None:
            folder = next((folder for folder in self._tokenizer_folders if has_tokenizer(folder)), None)
            if folder is None:
                raise Permanent(
                    FaultCode.TOKENIZER_NOT_FOUND, "load the tokenizer", "the folder holds no tokenizer files",
                    "put the tokenizer's files into the model's folder", path=self._tokenizer_folders[0],
                )  # fmt: skip
            with foreign.reading(
                "load the tokenizer", folder, reader="transformers", code=FaultCode.TOKENIZER_UNREADABLE, remedy=WHOLE_TOKENIZER
            ):
                self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return self._tokenizer


class TorchEngine(ReadsMedia, TorchModel):
    """A language model."""

    batches = True
    """Texts can be decoded in one batch; see `BatchingDriver`."""
    same_kernels = True
    """A single row is computed by the code that computes a batch, which this project did not make."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        generation = self._plain().generation_config
        self._cache_name = next((name for name in _CACHES if name in self._takes), _CACHES[0])
        self.logits_held = _LAST not in self._takes
        """Whether the first pass over a prompt gives the logits of all its positions."""
        self.end_tokens = end_tokens({"eos_token_id": generation.eos_token_id if generation else None}, {})

    @torch.inference_mode()
    def generate(self, ids: list[int], tokens: int) -> list[int]:
        """Give at most `tokens` tokens after `ids` by transformers' `generate`, with the settings that were loaded and without sampling."""
        row = torch.tensor([ids])
        settings = self._plain().generation_config
        reader = {"tokenizer": self._loaded_tokenizer()} if settings is not None and settings.stop_strings else {}  # which it asks for
        made = self._model.generate(input_ids=row, attention_mask=torch.ones_like(row), max_new_tokens=tokens, do_sample=False, **reader)
        return [int(token) for token in made[0, len(ids) :]]

    def _keeps_cache(self) -> bool:
        """Tell whether anybody will go on from where a step ends."""
        return True

    @torch.inference_mode()
    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """See `Engine.step`; `position_ids` are left out for models that compute them from the mask alone."""
        return self._run(input_ids, attention_mask, position_ids, cache)

    @torch.inference_mode()
    def copied(self, cache: Any) -> Any:
        """Give a cache that can be gone on from without changing this one."""
        return copy.deepcopy(cache)

    @torch.inference_mode()
    def prefill(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray) -> tuple[np.ndarray, Any]:
        """As `step` without a cache, but with the logits (B, 1, V) of the last position, where the model can leave out the others."""
        return self._run(input_ids, attention_mask, position_ids, None, **({_LAST: 1} if _LAST in self._takes else {}))

    @torch.inference_mode()
    def kept(
        self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any, keep: list[int]
    ) -> tuple[np.ndarray, Any]:
        """As `step`, with the logits (B, len(keep), V) of these of the new tokens alone."""
        rows = keep or [input_ids.shape[1] - 1]
        if self._goes_singly(input_ids, cache):
            logits, cache = self._run(input_ids, attention_mask, position_ids, cache)
            return logits[:, rows][:, : len(keep)], cache
        less = {_LAST: torch.tensor(rows)} if _LAST in self._takes else {}
        logits, cache = self._run(input_ids, attention_mask, position_ids, cache, **less)
        return (logits if less else logits[:, rows])[:, : len(keep)], cache

    def _goes_singly(self, input_ids: np.ndarray, cache: Any) -> bool:
        """Tell whether these tokens must be read one after the other: some models go on from their states by single tokens alone."""
        return cache is not None and input_ids.shape[1] > 1 and self._forgets

    @functools.cached_property
    def _forgets(self) -> bool:
        """Whether the states are lost where several tokens follow others, as in the scan of Mamba in transformers 5.23, whose `generate`
        never does so: found out by reading six tokens at once and in two parts."""
        if kept_besides(json.loads(self._plain().config.to_json_string(use_diff=False))) != STATES:
            return False
        ids, mask, places = np.arange(1, 7)[None] % (self.vocabulary or 7), np.ones((1, 6), np.int64), np.arange(6)[None]
        whole, _ = self._pass(ids, mask, places, None)
        _, cache = self._pass(ids[:, :3], mask[:, :3], places[:, :3], None)
        rest, _ = self._pass(ids[:, 3:], mask, places[:, 3:], cache)
        return bool(np.abs(rest - whole[:, 3:]).max() > APART * whole.std())

    def _run(
        self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any, **more: Any
    ) -> tuple[np.ndarray, Any]:
        if not self._goes_singly(input_ids, cache):
            return self._pass(input_ids, attention_mask, position_ids, cache, **more)
        logits, past = list[np.ndarray](), attention_mask.shape[1] - input_ids.shape[1]
        for place in range(input_ids.shape[1]):
            new = slice(place, place + 1)
            row, cache = self._pass(input_ids[:, new], attention_mask[:, : past + place + 1], position_ids[:, new], cache)
            logits.append(row)
        return np.concatenate(logits, axis=1), cache

    def _pass(
        self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any, **more: Any
    ) -> tuple[np.ndarray, Any]:
        if self._cache_name != _CACHES[0]:
            attention_mask = attention_mask[:, -input_ids.shape[1] :]  # states have no positions: it is of the new tokens alone
        inputs: dict[str, Any] = {
            "input_ids": torch.from_numpy(input_ids),
            "attention_mask": torch.from_numpy(attention_mask),
            "use_cache": self._keeps_cache(),
            self._cache_name: cache,
            **more,
        }
        if "position_ids" in self._takes:
            inputs["position_ids"] = torch.from_numpy(position_ids)
        with self._products():
            output = self._model(**inputs)
        return output.logits.float().numpy(), getattr(output, self._cache_name, None)
