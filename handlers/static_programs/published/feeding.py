"""Feeds a program of fixed sizes with texts of any length: in pieces that it takes, padded where a piece is too short.

Used by the stage that compares a program with the model, and by the engines that check what is made of it. It goes into such folders too,
beside `example.py`, so it needs numpy alone. A *session* has `sizes`, the numbers of tokens that it takes at once, in ascending order;
`start()`, which gives a state without tokens; and `run(state, feeds)`, which gives outputs by name and the state after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Feeds = Mapping[str, np.ndarray]


class TooLongError(ValueError):
    """A text has more tokens than the program has room for."""


class Text:
    """One text on its way through a decoder that has room for `length` tokens. `fixed`: what is fed at every call besides."""

    def __init__(self, session: Any, length: int, fixed: Feeds | None = None) -> None:
        self._session, self.length, self._fixed = session, length, dict(fixed or {})
        self._state = session.start()
        self.seen = 0
        """Tokens so far."""

    def feed(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits (tokens, vocabulary) after each of the tokens. Raises TooLongError, and nothing is fed then."""
        if self.seen + len(tokens) > self.length:
            raise TooLongError(f"the program has room for {self.length} tokens, and these are {self.seen + len(tokens)}")
        rows, left = [], list(tokens)
        while left:
            size = piece(self._session.sizes, len(left), self.length - self.seen)
            now, left = left[:size], left[size:]
            # What pads a piece is overwritten before anything attends to it, since its places come later.
            ids = np.array([now + [0] * (size - len(now))], np.int32)
            places = np.arange(self.seen, self.seen + size, dtype=np.int32)[None]
            outputs, self._state = self._session.run(self._state, {"input_ids": ids, "position_ids": places, **self._fixed})
            rows.append(np.asarray(outputs["logits"])[0, : len(now)])
            self.seen += len(now)
        return np.concatenate(rows)


def piece(sizes: Sequence[int], wanted: int, room: int) -> int:
    """Tokens of the next call: the fewest that hold all that are wanted, else the most. None that go beyond the room."""
    fitting = [size for size in sizes if size <= room]
    if not fitting:
        raise TooLongError(f"the program takes at least {sizes[0]} tokens at once, and has room for {room}")
    return next((size for size in fitting if size >= wanted), fitting[-1])


def padded(session: Any, feeds: Feeds, pad: int) -> dict[str, np.ndarray]:
    """`feeds` (1, tokens) of an encoder, padded on the right to a size that the session takes, as int32. Raises TooLongError."""
    wanted = feeds["input_ids"].shape[1]
    size = next((size for size in session.sizes if size >= wanted), None)
    if size is None:
        raise TooLongError(f"the program has room for {session.sizes[-1]} tokens, and these are {wanted}")
    missing = ((0, 0), (0, size - wanted))
    return {
        name: np.pad(array, missing, constant_values=pad if name == "input_ids" else 0).astype(np.int32) for name, array in feeds.items()
    }


def one_pass(session: Any, feeds: Feeds, pad: int, axes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The outputs of an encoder for one text, `feeds` being (1, tokens). `axes`: output → its axis of tokens, along which it is cut to the
    tokens that were given. Raises TooLongError."""
    wanted = feeds["input_ids"].shape[1]
    outputs, _ = session.run(session.start(), padded(session, feeds, pad))
    arrays = {name: np.asarray(array) for name, array in outputs.items()}
    return {name: array.take(range(wanted), axes[name]) if name in axes else array for name, array in arrays.items()}


def crossed(session: Any, feeds: Feeds, pad: int) -> dict[str, np.ndarray]:
    """What a decoder is fed with at every call for the source `feeds` (1, tokens), by the encoder's session. Raises TooLongError."""
    wide = padded(session, feeds, pad)
    outputs, _ = session.run(session.start(), wide)
    past = {name.replace("present.", "past_key_values.", 1): np.asarray(array) for name, array in outputs.items()}
    return {"encoder_attention_mask": wide["attention_mask"], **past}
