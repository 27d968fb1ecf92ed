"""The figures as Prometheus reads them: in a text file for node_exporter, and in answers to scrapes of the page.

The daemon's tick takes them (`Exposition.take`); a scrape is answered with what was taken last, from any thread. So it waits neither for
the journal nor for a disk, and no daemon's thread waits for it. All values of an answer are of one moment, at most a tick old; when none
could be taken for a while, as on a disk that does not answer, there is no answer rather than an old one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import Metric as Family

from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.journal import Journal
from daemon.operating.monitoring.metrics.counted import Counted
from daemon.operating.monitoring.metrics.figures import Figures
from daemon.operating.monitoring.metrics.table import METRICS, TICK_SECONDS

STALE_SECONDS = 4 * TICK_SECONDS
"""Age from which on figures are no answer to what is now."""

Answer = tuple[bytes, str]
"""A text and its content type."""
Asked = tuple[Callable[["_Taken"], bytes], str]
"""What writes a format, and its content type."""


class _Taken:
    """All families in the order of the table, as they were at a moment of the monotonic clock; the library's writers collect them."""

    def __init__(self, *parts: Figures) -> None:
        self.moment = time.monotonic()
        families = {name: family for part in parts for name, family in part.families().items()}
        self._families = [families[metric.name] for metric in METRICS if metric.name in families]
        self.text: Answer | None = None
        """Its text in the format that was asked for last."""

    def collect(self) -> Iterable[Family]:
        return self._families


class Exposition:
    """The figures that were taken last. Counters begin where it is made."""

    def __init__(self, journal: Journal, stages: Iterable[str], variants: Iterable[str]) -> None:
        """`stages`, `variants`: what exports have by the present configuration."""
        self._counted = Counted(journal, stages, variants)
        self._taken: _Taken | None = None
        self._asked: Asked | None = None
        """The format of the last scrape. The next ones ask for the same, and find it written."""
        self._began = time.monotonic()

    def take(self, gauges: Figures) -> None:
        """Take the gauges, and what has ended up to now. Raises what the journal raises."""
        taken = _Taken(gauges, self._counted.look())
        if self._asked is not None:
            encode, kind = self._asked
            taken.text = encode(taken), kind
        self._taken = taken

    def write(self, file: Path) -> None:
        """Replace a text file by what was taken last; a collector never reads half of it, and may run as another user."""
        for folder in reversed([folder for folder in file.parents if not folder.exists()]):
            folder.mkdir()
            folder.chmod(0o755)
        write_atomic(file, generate_latest(self._last()), durable=False, mode=0o644)

    def answer(self, accept: str | None = None) -> Answer:
        """Return the text and its content type, by what a request accepts: OpenMetrics, else Prometheus's own. Raises Retryable where
        none were taken of late."""
        taken = self._last()
        try:
            encode, kind = self._asked = choose_encoder(accept or "")
        except (ValueError, TypeError):  # a version that is no number
            encode, kind = choose_encoder("")
        return taken.text if taken.text is not None and taken.text[1] == kind else (encode(taken), kind)

    def _last(self) -> _Taken:
        taken = self._taken
        age = time.monotonic() - (taken.moment if taken else self._began)
        if taken is None or age > STALE_SECONDS:
            raise Retryable(
                FaultCode.NO_ANSWER, "show the figures for Prometheus", f"none have been taken for {age:.0f} s",
                "ask again; if that does not help, look with `ckptd status` whether a disk or the journal does not answer",
            )  # fmt: skip
        return taken
