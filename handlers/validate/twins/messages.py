"""What crosses between a check and the process that compares its artifact with the twin, as JSON. Light."""

from __future__ import annotations

from collections.abc import Iterable

from daemon.contract.jobs.messages import ChildLimits
from daemon.contract.values import Frozen
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.protocol import PaddedBatch

STEPS = 4
"""Tokens at the end of a text that go through the cache, one by one."""
KEPT = 36
"""Rows of a text that are compared beside those: those of large vocabularies are large."""


class Text(Frozen):
    """What is passed through."""

    ids: list[int]
    targets: tuple[int, ...] = ()
    """What an encoder-decoder has decoded."""
    types: list[int] | None = None
    """Segments, for tasks that read two texts at once."""
    start: int = 0
    """Position of the first token, for language models that are told positions."""

    def places(self, rows: int) -> list[int]:
        """Of so many rows those that are compared: evenly spaced ones, and those of the last steps."""
        spaced: Iterable[int] = range(rows) if rows <= KEPT else (number * (rows - 1) // (KEPT - 1) for number in range(KEPT))
        return sorted({*spaced, *range(max(0, rows - STEPS), rows)})


class Order(Frozen):
    """What to compare."""

    form: str
    """`module:class` of the artifact's `twins.form.Form`, as `Limits.twin` of its variant names it."""
    engine: str
    folder: str
    merged: str
    task: str
    sentence: bool
    threads: int
    texts: list[Text]
    padded: PaddedBatch | None = None
    """Texts of unlike length that a batch is made of."""
    sides: tuple[str, ...] = ()
    """Where it may be padded: "left", "right"."""
    arithmetic: str = "float"
    """What it multiplies, as in StageSpec."""
    toolchain: str = ""
    """Folder of the toolchain whose libraries the form needs beside those of ckptd's own environment; "" for none."""
    scratch: str = ""
    """A folder for large temporary files."""
    limits: ChildLimits = ChildLimits()
    """Of the process."""

    @property
    def spec(self) -> EngineSpec:
        """What an engine is opened with."""
        return EngineSpec(engine=self.engine, folder=self.folder, threads=self.threads, task=self.task, sentence=self.sentence)


class Rounding(Frozen):
    """The difference of a graph from its float form."""

    share: float
    """Root mean square of the difference over that of the float form's outputs, both about the mean of their row."""
    slope: float
    """Of the regression of the graph's outputs on the float form's, about the mean of each row: 1 without a systematic change."""
    shift: float
    """The largest mean difference of a region of outputs over all rows, in standard deviations of the outputs: of errors that have nothing
    in common little is left."""
    rows: int
    outputs: int
    """Of a row, as far as they are independent of each other."""


class Answer(Frozen):
    """What was found."""

    left_out: str | None = None
    """Why nothing was compared, as a clause."""
    weights: str | None = None
    """Which stored weight is not a merged one rounded, as a clause."""
    limit: float = 0.0
    """`Form.limit`."""
    error: float | None = None
    """Largest |Δ| between the float form and the twin, in standard deviations of the twin's outputs; null for infinity."""
    position: int = 0
    """The first position at which it is at least half of that."""
    tokens: int = 0
    """Of that text."""
    way: str = ""
    """Of decoding, where an encoder-decoder has several."""
    padding: float | None = None
    """Largest |Δ| of the float form between rows of a padded batch and the same texts alone, in standard deviations of the twin's outputs;
    null for infinity."""
    padding_side: str = ""
    """The side of the padding with that; "" where that was not asked."""
    rounding: Rounding | None = None
    """The graph beside its float form."""
