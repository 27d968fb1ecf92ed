"""Pictures by llama.cpp's library mtmd, as its own programs read them beside a model. Runs inside the toolchain `gguf`."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import ModuleType

import numpy as np

from handlers.gguf.llama import library
from handlers.gguf.llama.library import Context, Model, Refused

_IMAGE = 1
"""MTMD_INPUT_CHUNK_TYPE_IMAGE"""


@functools.cache
def mtmd() -> ModuleType:
    """The functions of the library, which tells its errors where llama.cpp tells them."""
    import llama_cpp.mtmd_cpp as functions

    library.llama()
    functions.mtmd_log_set(library.listener(), ctypes.c_void_p(0))
    functions.mtmd_helper_log_set(library.listener(), ctypes.c_void_p(0))
    return functions  # type: ignore[no-any-return]


class Pictures:
    """The towers of a model, opened beside it. Raises Refused."""

    def __init__(self, path: Path, model: Model, threads: int) -> None:
        functions, self._model = mtmd(), model
        params = functions.mtmd_context_params_default()
        params.use_gpu = params.warmup = params.print_timings = False
        params.n_threads, params.flash_attn_type = threads, 0
        self._context = functions.mtmd_init_from_file(os.fsencode(path), model.handle, params)
        if not self._context:
            raise Refused(library.why())

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            mtmd().mtmd_free(self._context)
            self._context = None

    def run(self, context: Context, ids: Sequence[int], mark: int, picture: np.ndarray) -> tuple[np.ndarray, list[int], int]:
        """Compute a prompt in which each run of `mark` stands for a part of the picture (H, W, 3) uint8.

        Gives the logits (rows, V) float32 of its other tokens, their places in `ids`, and the position behind the prompt. Raises Refused
        where llama.cpp makes other parts of the picture than the prompt has.
        """
        rows, places, at, position = list[np.ndarray](), list[int](), 0, 0
        with _Parts(self._context, picture) as parts:
            left = iter(parts)
            for marked, run in groupby(ids, lambda token: token == mark):
                tokens = list(run)
                if marked:
                    part = next(left, None)
                    made = 0 if part is None else mtmd().mtmd_input_chunk_get_n_tokens(part)
                    if made != len(tokens):
                        raise Refused(f"it makes {made} tokens of a part of a picture, and the checkpoint's processor {len(tokens)}")
                    position = self._decoded(context, part, position)
                else:
                    rows.append(context.run([(token, position + place, 0) for place, token in enumerate(tokens)]))
                    places += range(at, at + len(tokens))
                    position += len(tokens)
                at += len(tokens)
            if next(left, None) is not None:
                raise Refused("it takes a picture apart into more parts than the checkpoint's processor does")
        return np.concatenate(rows), places, position

    def _decoded(self, context: Context, part: object, position: int) -> int:
        """Run the towers on a part of a picture and put what they give behind `position`; the position behind it."""
        functions, after = mtmd(), ctypes.c_int32(position)
        if functions.mtmd_encode_chunk(self._context, part) != 0:
            raise Refused(f"it could not read a picture: {library.why()}")
        given = functions.mtmd_get_output_embd(self._context)
        code = functions.mtmd_helper_decode_image_chunk(
            self._context, context.handle, part, given, position, 0, context.room, ctypes.byref(after),
            functions.mtmd_helper_post_decode_callback(), ctypes.c_void_p(0),
        )  # fmt: skip
        if code != 0:
            raise Refused(f"it could not compute what its tower gives (code {code}): {library.why()}")
        return after.value


class _Parts:
    """What the library makes of a picture: one part, or tiles and the whole."""

    def __init__(self, context: object, picture: np.ndarray) -> None:
        functions = mtmd()
        height, width, _ = picture.shape
        data = np.ascontiguousarray(picture, np.uint8)
        self._bitmap = functions.mtmd_bitmap_init(width, height, data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
        self._chunks = functions.mtmd_input_chunks_init()
        marker = functions.mtmd_default_marker()
        text = functions.mtmd_input_text(marker, len(marker), False, True)
        bitmaps = (functions.mtmd_bitmap_p_ctypes * 1)(self._bitmap)
        if functions.mtmd_tokenize(context, self._chunks, ctypes.byref(text), bitmaps, 1) != 0:
            raise Refused(f"it could not prepare a picture: {library.why()}")

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        mtmd().mtmd_input_chunks_free(self._chunks)
        mtmd().mtmd_bitmap_free(self._bitmap)

    def __iter__(self) -> Iterator[object]:
        functions = mtmd()
        for number in range(functions.mtmd_input_chunks_size(self._chunks)):
            part = functions.mtmd_input_chunks_get(self._chunks, number)
            if functions.mtmd_input_chunk_get_type(part) == _IMAGE:
                yield part
