"""Targets at which everything fails for now, so that nothing is carried there until a pause is over. A part of the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from daemon.delivering import rules
from daemon.journal.shipment_rows import ShipmentRow


class Troubled:
    """By the target's name: how many attempts in a row failed at it, and until when it is left alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[str, tuple[int, float]] = {}

    def keeps(self, shipment: ShipmentRow) -> bool:
        """Whether a delivery that is due has to wait; what a person has just asked for does not."""
        if shipment.target not in self._held or (shipment.by_hand and shipment.retry_at is None):
            return False
        return 0 < self._held[shipment.target][1] - self._clock() <= rules.LONGEST_PAUSE  # else the clock was set

    def failures(self, target: str) -> int:
        """How many attempts in a row failed at a target."""
        return self._held.get(target, (0, 0.0))[0]

    def hold(self, target: str, failures: int, delay: float) -> None:
        """Leave a target alone for so many seconds."""
        self._held[target] = failures, self._clock() + delay

    def forget(self, *targets: str) -> None:
        """These targets are well, or others than they were."""
        for target in targets:
            self._held.pop(target, None)

    def ends(self) -> Iterator[float]:
        """Yield when each is tried again."""
        return (until for _, until in self._held.values())


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """The names under which there is something else now."""
    return tuple(name for name in before if before[name] != after.get(name))
