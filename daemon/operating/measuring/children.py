"""The child processes of `ckptd bench`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from daemon.config.settings import Settings
from daemon.contract.faults.errors import Fault, Permanent, Retryable
from daemon.contract.jobs.messages import Outcome
from daemon.contract.jobs.processes.benchmark import (
    ENTRY,
    MEASURED,
    PAGE,
    PAGE_ENTRY,
    PAGE_INPUT,
    PAGE_STAGE,
    STAGE,
    Bench,
    BenchRequest,
    Measurements,
)
from daemon.operating.measuring.stages import Progress, Stages, Wanted
from daemon.operating.measuring.subject import OPERATION, Export
from daemon.running.attempts.executor import Order

GRACE_SECONDS = 1.0
"""What a child that ends by itself at the limit of time takes for that; then it is ended."""


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    measurements: Measurements
    fault: Fault | None = None
    """Why it ended before it was done; None where it was done, or the time was over."""


class Children(Stages):
    """The child processes of one measurement, one after the other."""

    def __init__(self, settings: Settings, export: Export, scratch: Path, progress: Progress) -> None:
        super().__init__(settings, OPERATION, export.folder, export.text("run") or "", scratch, progress)

    def measure(self, request: BenchRequest, *, share: float, finish: bool) -> Ended:
        """Let a child measure. `share`: of all the work that is left. `finish`: at the limit of time, what it has begun is finished."""
        order = self.order(Wanted(STAGE, ENTRY, {}, request=request, device=self._limits.device))
        late = float("inf") if finish else time.monotonic() + request.seconds + GRACE_SECONDS
        result = self.run(order, lambda done, what: self._progress.said(1 - share + share * done, what), late)
        if result is None or result.outcome is Outcome.SUCCEEDED:
            return Ended(_measurements(order))
        return Ended(_measurements(order), self.fault(result))

    def page(self, value: Bench) -> bytes:
        """The page of a measurement. Raises Permanent or Retryable."""
        folder = self._scratch / "page"
        folder.mkdir()
        (folder / PAGE_INPUT).write_text(value.model_dump_json(), encoding="utf-8")
        order = self.order(Wanted(PAGE_STAGE, PAGE_ENTRY, {STAGE: str(folder)}))
        result = self.run(order, lambda done, what: None)
        assert result is not None  # it is never late
        if result.outcome is Outcome.SUCCEEDED:
            return Path(order.context.staging, PAGE).read_bytes()
        kind = Permanent if result.outcome is Outcome.PERMANENT else Retryable
        raise kind(**self.fault(result).model_copy(update={"operation": "make the page"}).model_dump())


def _measurements(order: Order) -> Measurements:
    try:
        return Measurements.model_validate_json(Path(order.context.staging, MEASURED).read_bytes())
    except (OSError, ValidationError):
        return Measurements()
