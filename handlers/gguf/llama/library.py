"""llama.cpp by way of llama-cpp-python: models, contexts, its tokenizer and its quantizer. Runs inside the toolchain `gguf`.

Its objects are freed in order; what it prints goes nowhere, but for the last errors, which become the reason of what failed.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

_said: deque[str] = deque(maxlen=40)
_ERROR = 4
_CONTINUED = 5
ALONE_BYTES = 256 << 20
"""Of weights, counted once for each token of a step, up to which one thread computes it: several meet after each of its hundreds of
products, and there they spend more time than so little takes. Twice as many of several tokens at once, which wait longer there."""


class Refused(Exception):
    """llama.cpp did not take a file, or could not compute; the message is what it printed, as a clause."""


@functools.cache
def llama() -> ModuleType:
    """The functions of llama.cpp, initialized once in a process."""
    import llama_cpp.llama_cpp as library

    library.llama_log_set(listener(), ctypes.c_void_p(0))
    library.llama_backend_init()
    return library  # type: ignore[no-any-return]


@functools.cache
def listener() -> object:
    """What llama.cpp calls with what it prints, as long as the process lives."""
    import llama_cpp.llama_cpp as library

    def heard(level: int, text: bytes, _data: object) -> None:
        if level in (_ERROR, _CONTINUED):
            _said.append(text.decode(errors="replace").strip())

    return library.llama_log_callback(heard)


@functools.cache
def ggml() -> ctypes.CDLL:
    """The library below llama.cpp, which knows its operations by name."""
    return ctypes.CDLL(str(Path(str(llama().__file__)).parent / "lib" / "libggml-base.so"))


def why() -> str:
    """What llama.cpp printed last, as a clause."""
    lines = [line for line in _said if line and line != "."]
    _said.clear()
    return (lines[0] if lines else "it gives no reason")[:300].rstrip(".")


class Model:
    """A file that is opened. `vocabulary_only`: without its weights."""

    def __init__(self, path: Path, *, vocabulary_only: bool = False) -> None:
        library = llama()
        _said.clear()
        params = library.llama_model_default_params()
        params.vocab_only, params.use_mmap, params.n_gpu_layers = vocabulary_only, True, 0
        self._model = library.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise Refused(why())
        self.vocabulary = library.llama_model_get_vocab(self._model)
        self.tokens: int = library.llama_vocab_n_tokens(self.vocabulary)

    @property
    def handle(self) -> object:
        """llama.cpp's own pointer to it."""
        return self._model

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free it; its contexts must have been closed before."""
        if self._model:
            llama().llama_model_free(self._model)
            self._model = None

    @property
    def trained_length(self) -> int:
        """Positions that it was trained for."""
        return int(llama().llama_model_n_ctx_train(self._model))

    def said(self, key: str) -> str | None:
        """What the file says under a key, as text; None where it does not."""
        library, name = llama(), key.encode()
        size = library.llama_model_meta_val_str(self._model, name, ctypes.create_string_buffer(1), 1)
        if size < 0:
            return None
        text = ctypes.create_string_buffer(size + 1)
        library.llama_model_meta_val_str(self._model, name, text, size + 1)
        return text.value.decode("utf-8", "replace")

    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end what it writes."""
        return tuple(token for token in range(self.tokens) if llama().llama_vocab_is_eog(self.vocabulary, token))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids. `special`: with what stands before and after a text; tokens that stand for themselves are always found in it."""
        library, data = llama(), text.encode()
        room = len(data) + 16
        while True:
            tokens = (library.llama_token * room)()
            count = library.llama_tokenize(self.vocabulary, data, len(data), tokens, room, special, True)
            if count >= 0:
                return list(tokens[:count])
            room = -count

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens. The space that its tokenizer writes before a text is taken away again.

        llama.cpp leaves it there behind a first token, and llama-cpp-python takes it away (`detokenize` of its `_internals.py`).
        """
        library = llama()
        if ids and ids[0] == library.llama_vocab_bos(self.vocabulary):
            ids = ids[1:]
        tokens, room = (library.llama_token * len(ids))(*ids), 16 * len(ids) + 64
        while True:
            text = ctypes.create_string_buffer(room)
            count = library.llama_detokenize(self.vocabulary, tokens, len(ids), text, room, True, False)
            if count >= 0:
                return text.raw[:count].decode(errors="replace")
            room = -count


class LoadedAdapter:
    """An adapter that was read for a model; it is freed with the model."""

    def __init__(self, model: Model, path: Path) -> None:
        _said.clear()
        self.handle = llama().llama_adapter_lora_init(model._model, os.fsencode(path))
        if not self.handle:
            raise Refused(why())


class Context:
    """A cache of `room` tokens of up to `sequences` texts, in which tokens are computed. Everything in fp32 but what the weights demand."""

    def __init__(
        self, model: Model, room: int, sequences: int, threads: int, observe: Any = None, adapter: LoadedAdapter | None = None
    ) -> None:
        library = llama()
        _said.clear()
        params = library.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = room, room, min(room, 512), sequences
        params.type_k = params.type_v = 0  # GGML_TYPE_F32; its default is half precision
        params.flash_attn_type = 0
        params.offload_kqv = params.op_offload = False
        params.kv_unified = params.swa_full = True
        self._context: Any = None
        if observe is not None:
            params.cb_eval = observe
        self._model, self.room, self.sequences, self._observe, self._threads = model, room, sequences, observe, threads
        self._context = library.llama_init_from_model(model._model, params)
        if not self._context:
            raise Refused(why())
        self._batch = library.llama_batch_init(room, 0, 1)
        self._weights = int(library.llama_model_size(model.handle))
        if adapter is not None:
            handles, factors = (library.llama_adapter_lora_p_ctypes * 1)(adapter.handle), (ctypes.c_float * 1)(1.0)
            if library.llama_set_adapters_lora(self._context, handles, 1, factors) != 0:
                raise Refused(why())

    @property
    def handle(self) -> object:
        """llama.cpp's own pointer to it."""
        return self._context

    def close(self) -> None:
        """Free it."""
        if self._context:
            llama().llama_batch_free(self._batch)
            llama().llama_free(self._context)
            self._context = None

    def __del__(self) -> None:
        self.close()

    def run(self, tokens: Sequence[tuple[int, int, int]], *, logits: bool = True) -> np.ndarray:
        """Compute (token, position, sequence) in this order, after all that was computed before; logits (tokens, V) float32 of each."""
        library, batch = llama(), self._batch
        batch.n_tokens = len(tokens)
        for at, (token, position, sequence) in enumerate(tokens):
            batch.token[at], batch.pos[at] = token, position
            batch.n_seq_id[at], batch.seq_id[at][0], batch.logits[at] = 1, sequence, logits
        most = ALONE_BYTES if len(tokens) == 1 else 2 * ALONE_BYTES
        threads = 1 if self._weights * len(tokens) <= most else self._threads
        library.llama_set_n_threads(self._context, threads, threads)
        code = library.llama_decode(self._context, batch)
        if code != 0:
            raise Refused(f"it could not compute {len(tokens)} tokens (code {code}): {why()}")
        if not logits:
            return np.zeros((0, self._model.tokens), np.float32)
        shape = (len(tokens), self._model.tokens)
        return np.ctypeslib.as_array(library.llama_get_logits(self._context), shape=shape).copy()

    def forget(self) -> None:
        """Empty the cache."""
        llama().llama_memory_clear(llama().llama_get_memory(self._context), True)


def quantize(source: Path, target: Path, kind: str, threads: int, importance: dict[str, np.ndarray]) -> None:
    """Write `source` with its matrices in `kind`, as llama.cpp names it ("Q4_K_M"). Raises Refused.

    `importance`: tensor → mean square of what each of its columns is multiplied with, fp32.
    """
    library = llama()
    _said.clear()
    params = library.llama_model_quantize_default_params()
    params.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.nthread = threads
    params.max_buf_size = 256 << 20
    if importance:
        kept = {name: np.ascontiguousarray(values, np.float32) for name, values in importance.items()}
        rows = (library.llama_model_imatrix_data * (len(kept) + 1))()
        for row, (name, values) in zip(rows, kept.items(), strict=False):
            row.name, row.size = name.encode(), values.size
            row.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        params.imatrix = rows
    if library.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)) != 0:
        raise Refused(why())
