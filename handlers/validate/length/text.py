"""The long text: what it is made of, how long it may be, how it is cut into steps, and at which positions it is compared.

Called by `checks.reference`, which runs the live model over it; `measuring.py` runs the artifacts. All that is decided here
is decided by the texts, the model's reach and its size, so that a checkpoint gets the same text again.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, PlainSerializer, ValidationInfo

from daemon.contract.formats.stages import LONG_MOST, LONG_SHORTEST, long_tokens
from handlers.texts.built_in import BUILT_IN
from handlers.validate.engines.task_profile import ValidatedTask
from handlers.validate.workers.client import EngineWorker, WorkerRefused
from handlers.validate.workers.protocol import Encode, ListSpecialTokens, Loaded, LongPass

BEHIND = 64
"""Tokens, and an eighth of the length as many again, by which it goes beyond either."""
ROWS = 48
"""Positions that are compared."""
BYTES, WHOLE_BYTES = 96 << 20, 384 << 20
"""Most bytes of the outputs of one step, and of an encoder's only one."""
LIVE_PIECE, PIECE = 512, 384
"""Most tokens of a step of the live model, and of an artifact: cut in other places, so that no size of a step hides anything."""
WHOLE_PIECE = (385, 768)
"""Fewest tokens of an artifact's first step, and one more than the most, where the text and the memory for its outputs have room for it."""
LEFT = 64
"""Tokens that are left for further steps then."""
TAIL = 4
"""Tokens at the end that an artifact reads one at a time."""
TARGETS = 256
"""Most tokens of an encoder-decoder's long output."""
PASSAGE = 32
"""Tokens of the beginning that come again at the end, so that what is far back decides what follows."""
SPAN = (8, 48)
"""Fewest and most tokens of a span, where all texts have been used up."""


def _found_in(path: Path, info: ValidationInfo) -> Path:
    return info.context / path if isinstance(info.context, Path) else path


Stored = Annotated[Path, PlainSerializer(lambda path: path.name), AfterValidator(_found_in)]
"""A .npy file beside a stage's record, in which it is named without its folder: that is the context in which the record is read."""


@dataclass(frozen=True)
class Encoded:
    """One text as a model reads it."""

    text: str
    ids: list[int]
    types: list[int] | None = None
    """Segment of each token; None where there is one segment."""
    first: str | None = None
    """The question that goes before the text."""


@dataclass(frozen=True)
class LongText:
    """A text as long as the model is verified for."""

    ids: list[int]
    keep: list[int]
    """Rows that are compared, ascending."""
    pieces: list[int]
    """The live model's steps."""
    own_pieces: list[int]
    """An artifact's steps."""
    limited: str | None
    """Why it is shorter than it should be, as a clause; None where it is not."""
    logits: Stored | None = None
    """.npy file of the live model's rows (len(keep), V) float32; None until it has read the text."""
    rounded: Stored | None = None
    """The same of the live model with rounded weights; None where nobody asked."""
    targets: list[int] | None = None
    """An encoder-decoder's output."""
    types: list[int] | None = None
    window: int | None = None
    original: int | None = None
    """See `Reach`."""
    positions: int | None = None
    """Those that the live model names; the text is longer where its scaling goes on behind them."""
    halves: bool = False
    """The merged weights are rounded to 16 bits, which the live model's are not."""

    def asked(self, out: Path, pieces: Sequence[int]) -> LongPass:
        """Give the request for its rows."""
        return LongPass(ids=self.ids, pieces=list(pieces), keep=self.keep, out=str(out), targets=self.targets or [], types=self.types)

    def fitting(self, room: int | None, kind: str) -> LongText | str:
        """Give what a model with room for so many tokens reads of it; why not, as a clause, where that is too little or another text."""
        if room is None or room >= len(self.ids) or room == self.positions:
            return self
        keep = [place for place in self.keep if place < room]
        if kind != "causal" or room < LONG_SHORTEST or not keep:
            return f"it has room for {room:,} tokens, and the text is of {len(self.ids):,}"
        own = _beginning(self.pieces, room) if self.own_pieces == self.pieces else split(room, min(PIECE, max(self.own_pieces)), 3, TAIL)
        return replace(self, ids=self.ids[:room], keep=keep, own_pieces=own, limited=f"it has room for {room:,} tokens")


def make(
    live: EngineWorker, about: Loaded, subject: ValidatedTask, rows: Sequence[Encoded], tokens: int, parameters: int, *,
    readable: bool, seed: int = 0,
) -> LongText | str:  # fmt: skip
    """Give the long text of a model, or why there is none, as a clause. `tokens`: what the configuration asks for; `seed`: what the sizes
    of an artifact's steps are drawn with. Raises WorkerFailed."""
    if not tokens:
        return "validate.long_tokens is 0"
    length, limited = _length(about, tokens, parameters)
    if subject.kind == "encoder" and not subject.one_answer:
        most = max(LONG_SHORTEST, WHOLE_BYTES // (4 * (about.vocabulary or 1)))
        length, limited = (length, limited) if length <= most else (most, "the outputs of a longer text would take too much memory")
    if length < LONG_SHORTEST:
        return f"the model has room for {length} tokens"
    ids, types = _compose(live, rows, length, readable=readable)
    if types is None and not subject.sentence and _tells_segments_apart(live, about, readable=readable):
        types = [int(2 * place >= length) for place in range(length)]
    reach, width = about.reach, 4 * (about.vocabulary or 1)
    edges = [edge for edge in (reach.window, reach.original) if edge]
    if subject.kind == "encoder":
        keep = _of_encoder(subject, length, edges)
        return LongText(ids, keep, [length], [length], limited, types=types, window=reach.window, original=reach.original)
    if subject.kind == "seq2seq":
        count = max(2, min(TARGETS, length - 1, BYTES // width))
        targets = ids[-count - 1 : -1]
        own = [max(1, count - TAIL), *[1] * (count - max(1, count - TAIL))]
        return LongText(ids, _places(count, own, []), [count], own, limited, targets=targets)
    first = edges if reach.varying else []
    most = max(1, min(LIVE_PIECE, BYTES // width))
    pieces = split(length, most, 2, TAIL if reach.varying else 0, first)
    own = pieces if reach.varying else drawn(length, min(PIECE, most), BYTES // width, pieces, seed)
    keep = _places(length, [*np.cumsum(pieces).tolist(), *np.cumsum(own).tolist()], edges)
    return LongText(ids, keep, pieces, own, limited, window=reach.window, original=reach.original, positions=about.context_length)


def split(length: int, most: int, least: int, tail: int, at: Sequence[int] = ()) -> list[int]:
    """Give sizes of steps: at least `least` even ones of at most `most` tokens, cut at positions `at` too, then `tail` single tokens."""
    body = max(1, length - tail)
    count = min(body, max(least, -(-body // most)))
    cuts = {number * body // count for number in range(count + 1)} | {place for place in at if place < body}
    ordered = sorted(cuts)
    return [stop - start for start, stop in itertools.pairwise(ordered)] + [1] * (length - body)


def drawn(length: int, most: int, room: int, others: Sequence[int], seed: int) -> list[int]:
    """Give sizes of an artifact's steps, mostly odd ones: at first one of `WHOLE_PIECE` tokens, if there is `room` for the outputs of so
    many, then at least three, or two after that one, of at most `most` tokens; and TAIL single tokens. No step ends where one of `others`
    does, as far as there is a choice.

    A graph in which the size of the even steps was traced as a constant is right for those alone.
    """
    random, body = np.random.default_rng(seed), max(1, length - TAIL)
    taken = set(itertools.accumulate(others))
    sizes, end = list[int](), 0
    highest = min(WHOLE_PIECE[1], room + 1, body - LEFT + 1)
    if highest > WHOLE_PIECE[0]:
        sizes.append(int(random.integers(WHOLE_PIECE[0], highest)))
    highest = min(most, -(-(body - sum(sizes)) // (2 if sizes else 3)))
    while (left := body - sum(sizes)) > 0:
        size = min(left, int(random.integers(highest // 2 + 1, highest + 1)) | 1, most)
        sizes.append(size)
    for place in range(len(sizes) - 1):  # the last of them ends with the body
        end += sizes[place]
        if end in taken and sizes[place] > 1:
            sizes[place], sizes[place + 1], end = sizes[place] - 1, sizes[place + 1] + 1, end - 1
    return [*sizes, *[1] * (length - body)]


def _beginning(pieces: Sequence[int], length: int) -> list[int]:
    """Give the first steps, cut after so many tokens."""
    ends = [min(end, length) for end in itertools.accumulate(pieces)]
    return [end - start for start, end in itertools.pairwise([0, *ends]) if end > start]


def _length(about: Loaded, tokens: int, parameters: int) -> tuple[int, str | None]:
    """Give how long the text is, and why it is shorter than it should be."""
    reach = about.reach
    edges = [edge + BEHIND + edge // 8 for edge in (reach.window, reach.original) if edge]
    goal = max([tokens, *edges])
    room = about.context_length if reach.most is None else max(reach.most, about.context_length or 0)
    bounds = [(max(tokens, LONG_MOST), f"no text is made longer than {max(tokens, LONG_MOST):,} tokens"), (long_tokens(parameters),
        f"a model of {parameters / 1e9:.3g} billion parameters reads no more, to bound the time of the checks")]  # fmt: skip
    if room is not None and room < min(goal, tokens):
        goal = room  # it can't read more, so that nothing is missing
    elif room is not None:
        bounds.append((room, f"the model has {room:,} positions"))
    length, why = min([(goal, None), *bounds], key=lambda bound: bound[0])
    return length, why


def _compose(live: EngineWorker, rows: Sequence[Encoded], length: int, *, readable: bool) -> tuple[list[int], list[int] | None]:
    """Give token ids, and their segments where the first text has some: what stands around the first text stays around the whole."""
    first = rows[0]
    extra: list[list[int]] = []
    special: frozenset[int] = frozenset()
    if readable:
        special = frozenset(live.ask(ListSpecialTokens()).ids)
        known = {row.text for row in rows}
        extra = live.ask(Encode(texts=[text for text in BUILT_IN if text not in known])).ids
    _, behind = _inside(first.ids, special)
    head, tail = first.ids[:behind][: max(1, length - 1)], first.ids[behind:][: max(0, length - 2)]
    wholes = [row for place, row in enumerate(rows) if place and not any(row.text in other.text for other in rows[:place])]
    bodies = [ids[slice(*_inside(ids, special))] for ids in (*(row.ids for row in wholes), *extra)]
    ids = fill(head, [body for body in bodies if body] or [head], max(0, length - len(tail)))
    types = None if first.types is None else [*first.types[:behind], *[first.types[-1]] * length][:length]
    return [*ids, *tail], types


def _tells_segments_apart(live: EngineWorker, about: Loaded, *, readable: bool) -> bool:
    """Tell whether users may give the model a second segment: its tokenizer makes one of the second text of a pair."""
    if about.segments < 2 or not readable:
        return False
    try:
        types = live.ask(Encode(texts=["b"], firsts=["a"])).types
    except WorkerRefused:
        return False  # a tokenizer that reads no pairs
    return any(segment for row in types or [] for segment in row)


def _inside(ids: Sequence[int], special: frozenset[int]) -> tuple[int, int]:
    """Give where a text begins and ends between special tokens."""
    start, stop = 0, len(ids)
    while start < stop and ids[start] in special:
        start += 1
    while stop > start and ids[stop - 1] in special:
        stop -= 1
    return start, stop


def fill(head: Sequence[int], bodies: Sequence[Sequence[int]], length: int) -> list[int]:
    """Give exactly `length` tokens: the head and the distinct texts, then spans from all over them, none like the one before; at the end a
    passage of the beginning again."""
    tokens = [*head, *(token for body in bodies for token in body)]
    pool = list(tokens)
    random = np.random.default_rng(0)
    while len(tokens) < length:
        size = int(random.integers(*SPAN))
        start = int(random.integers(0, max(1, len(pool) - size)))
        tokens += pool[start : start + size]
    passage = min(PASSAGE, length // 4)
    start = min(2, max(0, length - passage))
    return [*tokens[: length - passage], *tokens[start : start + passage]]


def _of_encoder(subject: ValidatedTask, length: int, edges: Sequence[int]) -> list[int]:
    if subject.one_answer:
        return [0, 1] if subject.task == "question-answering" else [0]
    return _places(length, [], edges)


def _places(length: int, cuts: Sequence[int], edges: Sequence[int]) -> list[int]:
    """Give at most ROWS rows: the last ones, those around edges, cuts and powers of two, and evenly spaced ones between them."""
    powers = [1 << power for power in range(3, 20)]
    around = [[edge + by for edge in edges for by in (-1, 0, 1)], [cut - 1 for cut in cuts], cuts, powers, [power - 1 for power in powers]]
    even = [round(place) for place in np.linspace(0, length - 1, ROWS // 2)]
    chosen = dict.fromkeys(
        [*range(length - 1, length - 2 - TAIL, -1), *around[0], *even[1::2], *(place for some in around[1:] for place in some)]
    )
    chosen |= dict.fromkeys([*even, *np.linspace(0, length - 1, ROWS).round().astype(int).tolist()])
    return sorted([place for place in chosen if 0 <= place < length][:ROWS])
