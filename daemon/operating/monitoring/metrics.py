"""Figures for Prometheus, as a text file that node_exporter's textfile collector picks up.

Names follow Prometheus's conventions: base units, counters end in `_total`, what is counted begins with the daemon's start at 0. The table
`METRICS` says what there is; docs/operating.md has it as a page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import CkptdError
from daemon.contract.jobs.figures import ReportFigures, figures_of
from daemon.contract.jobs.messages import StageResult
from daemon.journal.attempts import SettledAttempt
from daemon.journal.journal import Journal

Kind = Literal["gauge", "counter"]
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Metric:
    """A family of figures."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


METRICS = (
    Metric("ckptd_build_info", "gauge", "Version of the running daemon; the value is always 1.", ("version",)),
    Metric("ckptd_start_time_seconds", "gauge", "When the daemon was started, in seconds since the epoch."),
    Metric("ckptd_condition", "gauge", "Condition of the daemon: 1 for the present one, 0 for the others.", ("condition",)),
    Metric("ckptd_paused", "gauge", "1 while `ckptd queue pause` holds all exports, else 0."),
    Metric("ckptd_config_last_reload_successful", "gauge", "1 if the last reload succeeded, 0 if it was refused."),
    Metric("ckptd_thread_deaths", "gauge", "Threads of the daemon that failed and were restarted, since it started."),
    Metric("ckptd_resident_bytes", "gauge", "Resident memory of the daemon itself."),
    Metric("ckptd_last_scan_age_seconds", "gauge", "Seconds since the last scan of the roots ended."),
    Metric("ckptd_root_up", "gauge", "1 if the root exists and its file system answers, else 0.", ("root",)),
    Metric("ckptd_incomplete_checkpoints", "gauge", "Checkpoint directories that no longer change and are not complete."),
    Metric("ckptd_unreadable_directories", "gauge", "Directories below the roots that the daemon's user can't read."),
    Metric("ckptd_lost_checkpoints", "gauge", "Checkpoints in the journal that were deleted before they could be pinned."),
    Metric("ckptd_jobs", "gauge", "Exports in the journal by state.", ("state",)),
    Metric("ckptd_jobs_waiting", "gauge", "Open exports that can't start a stage now, by the fault code of the reason.", ("reason",)),
    Metric("ckptd_oldest_open_job_age_seconds", "gauge", "Age of the oldest open export, in seconds; 0 if there is none."),
    Metric("ckptd_children", "gauge", "Running child processes."),
    Metric("ckptd_children_starved", "gauge", "Child processes that get less than half of the CPU time that they could use."),
    Metric("ckptd_children_memory_bytes", "gauge", "Memory of all child processes, in bytes."),
    Metric("ckptd_disk_low", "gauge", "File systems without enough room for what is to be written."),
    Metric("ckptd_state_free_bytes", "gauge", "Free bytes on the file system of the state directory."),
    Metric("ckptd_output_free_bytes", "gauge", "Free bytes on the file system of the output directory."),
    Metric("ckptd_outbox_pending", "gauge", "Notifications that wait for delivery."),
    Metric("ckptd_exports_total", "counter", "Exports that ended, by final state.", ("state",)),
    Metric("ckptd_artifacts_total", "counter", "Artifacts of exports that ended, by the verdict of their check.", ("variant", "verdict")),
    Metric("ckptd_attempts_total", "counter", "Attempts at a stage that ended, by outcome.", ("stage", "outcome")),
    Metric("ckptd_stage_seconds_total", "counter", "Total duration of the successful attempts at a stage, in seconds.", ("stage",)),
    Metric("ckptd_export_seconds_total", "counter", "Total time from start to end of the exports that ended, in seconds.", ("state",)),
)  # fmt: skip
CONDITIONS = ("healthy", "full", "unwell")
_BY_NAME = {metric.name: metric for metric in METRICS}


@dataclass
class Figures:
    """Values of the metrics."""

    values: dict[str, dict[Labels, float]] = field(default_factory=dict)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Give a value. Raises KeyError or ValueError for a metric or labels that the table does not have."""
        self.values.setdefault(name, {})[_labels(name, labels)] = value

    def add(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Count. Raises as `set` does."""
        known, key = self.values.setdefault(name, {}), _labels(name, labels)
        known[key] = known.get(key, 0.0) + value


def _labels(name: str, labels: Mapping[str, str]) -> Labels:
    if set(labels) != set(_BY_NAME[name].labels):
        raise ValueError(f"{name} has the labels {_BY_NAME[name].labels}, not {tuple(labels)}")
    return tuple((key, labels[key]) for key in _BY_NAME[name].labels)


def render(*parts: Figures) -> str:
    """The exposition text, in the order of the table."""
    lines = []
    for metric in METRICS:
        samples = {labels: value for part in parts for labels, value in part.values.get(metric.name, {}).items()}
        if not samples and metric.labels:
            continue
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for labels, value in sorted((samples or {(): 0.0}).items()):
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
            lines.append(f"{metric.name}{{{shown}}} {_number(value)}" if shown else f"{metric.name} {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(value, 3))


def _escaped(text: str) -> str:
    """A label's value as the format wants it; what is no Unicode is shown as its code."""
    safe = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return safe.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Counted:
    """What ended since the daemon's start, followed in the journal: counters begin with the daemon, as Prometheus expects."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._attempts: tuple[int, tuple[int, ...]] | None = None
        self._jobs: tuple[int, tuple[str, ...]] | None = None
        self.figures = Figures()
        with contextlib.suppress(CkptdError):  # what ends from now on is counted, where the journal can be read
            self.look()

    def look(self) -> Figures:
        """The counters up to now. Raises what the journal raises."""
        attempts = self._journal.attempts.settled_since(self._attempts)
        self._attempts = attempts.mark
        for attempt in attempts.rows:
            self._take(attempt)
        jobs = self._journal.jobs.ended_since(self._jobs)
        self._jobs = jobs.mark
        for state, seconds in jobs.rows:
            self.figures.add("ckptd_exports_total", state=state)
            if seconds is not None:
                self.figures.add("ckptd_export_seconds_total", seconds, state=state)
        return self.figures

    def _take(self, attempt: SettledAttempt) -> None:
        self.figures.add("ckptd_attempts_total", stage=attempt.stage, outcome=attempt.outcome)
        if attempt.outcome != "succeeded" or attempt.result is None:
            return
        try:
            result = StageResult.model_validate_json(attempt.result)
        except ValidationError:
            return
        self.figures.add("ckptd_stage_seconds_total", result.seconds, stage=attempt.stage)
        if attempt.stage == "report" and (said := figures_of(result.figures, ReportFigures)) is not None:
            for variant, verdict in said.artifacts.items():
                self.figures.add("ckptd_artifacts_total", variant=variant, verdict=verdict)


def write(file: Path, text: str) -> None:
    """Replace the file; a collector never reads half of it."""
    for folder in reversed([folder for folder in file.parents if not folder.exists()]):
        folder.mkdir()
        folder.chmod(0o755)  # counts alone, for a collector that runs as another user
    write_atomic(file, text, durable=False, mode=0o644)


def table(metrics: Iterable[Metric] = METRICS) -> str:
    """The page's table, in Markdown."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |" for metric in metrics
    ]
    return "\n".join(["| name | kind | labels | what it says |", "| --- | --- | --- | --- |", *rows]) + "\n"
