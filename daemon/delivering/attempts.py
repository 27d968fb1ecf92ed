"""One attempt at a delivery: its process, and what of it the journal gets. A part of the queue, used by its thread alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.delivering.orders import End, Move, Note, Progress, Report, Warned
from daemon.contract.disk.files import remove_tree
from daemon.contract.values import Json
from daemon.delivering import entries
from daemon.delivering.endpoint import Endpoint
from daemon.delivering.orders import order_of
from daemon.delivering.process import DeliveryProcess, Said
from daemon.journal.journal import Journal
from daemon.journal.shipment_rows import ShipmentRow

MOST_NOTE = 1 << 18
"""Characters of a note that is kept."""
LOGS = 3
"""Attempts at a delivery whose logs stay."""


@dataclass
class Flight:
    """An attempt that runs, or whose end the journal has not taken yet."""

    shipment: ShipmentRow
    attempt: int
    process: DeliveryProcess
    scratch: Path
    report: Report
    notes: dict[str, Json | None] = field(default_factory=dict)
    """That the journal has not taken yet."""
    end: End | None = None

    @property
    def progress(self) -> Progress:
        """How far it is."""
        shipment, report = self.shipment, self.report
        return Progress(shipment.job, shipment.target, self.attempt, report.fraction, report.message, report.bytes)


class Attempts:
    """Begins and reads attempts."""

    def __init__(self, journal: Journal, folder: Path, environment: Callable[[Endpoint], Mapping[str, str]]) -> None:
        """`folder`: for logs and temporary files."""
        self._journal, self._folder, self._environment = journal, folder, environment

    def begin(self, target: Endpoint, shipment: ShipmentRow, attempt: int, move: Move) -> Flight:
        """Start the process of an attempt that was claimed. Raises OSError, and ValueError where the target's secret can't be read."""
        folder = self._folder / shipment.job
        folder.mkdir(parents=True, exist_ok=True)
        self._tidy(folder, shipment.target, attempt)
        scratch = folder / f"{shipment.target}.{attempt}.tmp"
        scratch.mkdir(exist_ok=True)
        process = DeliveryProcess(
            order_of(target, shipment, move, scratch), self._environment(target), folder / f"{shipment.target}.{attempt}.log"
        )
        return Flight(shipment, attempt, process, scratch, Report(fraction=0.0, message="starting"))

    def read(self, flight: Flight) -> None:
        """Take in what a process said: notes are journaled, all that are there in one commit. Its end is `flight.end` once it has ended."""
        if flight.end is None:
            flight.process.watch()
            has_ended = flight.process.has_ended()
            self._take(flight, flight.process.read())
            if has_ended:
                flight.end = flight.process.conclude(lambda said: self._take(flight, said))
                with contextlib.suppress(OSError):
                    remove_tree(flight.scratch)
        if flight.notes:
            self._journal.shipments.note(flight.shipment.id, flight.attempt, flight.notes)
            flight.notes = {}

    def _take(self, flight: Flight, lines: Iterable[Said]) -> None:
        for said in lines:
            match said:
                case Note() if len(said.name) + len(str(said.value)) <= MOST_NOTE:
                    flight.notes[said.name] = said.value
                case Report():
                    flight.report = said
                case Warned():
                    entries.warned(flight.shipment, said.text)

    def _tidy(self, folder: Path, target: str, attempt: int) -> None:
        """Remove what earlier attempts left, but for the latest logs."""
        for number in range(max(0, attempt - LOGS - 8), attempt):
            with contextlib.suppress(OSError):
                remove_tree(folder / f"{target}.{number}.tmp")
            if number <= attempt - LOGS:
                (folder / f"{target}.{number}.log").unlink(missing_ok=True)
