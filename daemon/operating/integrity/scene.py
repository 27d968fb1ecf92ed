"""What the checker of invariants looks at, and what it says: the journal at one instant, and findings.

Used by `daemon.operating.integrity.fsck` and its rules alone. The journal is read in one transaction that ends before any slow look at
the disk, so that a running daemon is not held up.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from daemon.config.places.paths import STAGING, Paths
from daemon.journal.legible import json_at

OPEN = ("pending", "running")
REPORTED = ("succeeded", "partial", "failed")
"""States of jobs that ended with a report."""


@dataclass(frozen=True)
class Finding:
    """One problem (or, as a note, information for people)."""

    code: str
    text: str
    remedy: str
    path: str | None = None
    job: str | None = None

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        """What makes two findings of two looks the same."""
        return self.code, self.path, self.job

    def sentence(self) -> str:
        """The finding as one line."""
        where = f" ({self.path})" if self.path else ""
        return f"{self.code}: {self.text}{where}. Fix: {self.remedy}."


@dataclass
class Scene:
    """One look: where things lie, what the journal said, and what was found so far."""

    paths: Paths
    pins: Path
    quiescent: bool
    deep: bool
    jobs: list[sqlite3.Row] = field(default_factory=list)
    """id, run, state, target, pin, untidy, reason, seen_at (the checkpoint's path) of every job; checkpoint and work of the open ones
    too."""
    stages: list[sqlite3.Row] = field(default_factory=list)
    """Those of open jobs."""
    attempts: list[sqlite3.Row] = field(default_factory=list)
    """Those without an outcome."""
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    exports: int = 0

    def find(self, code: str, text: str, remedy: str, *, path: Path | str | None = None, job: str | None = None) -> None:
        """Something is not as it must be."""
        self.findings.append(Finding(code, text, remedy, None if path is None else str(path), job))

    def note(self, code: str, text: str, remedy: str, *, path: Path | str | None = None, job: str | None = None) -> None:
        """Something is allowed, and worth a word."""
        self.notes.append(Finding(code, text, remedy, None if path is None else str(path), job))

    @property
    def open_ids(self) -> set[str]:
        """Ids of jobs that staging and pins may belong to: open ones, and those that are still to be cleared away."""
        return {row["id"] for row in self.jobs if row["state"] in OPEN or row["untidy"]}


def paths_of(state: Path, output: Path) -> Paths:
    """The paths of a state directory that may never have been used; nothing is made."""
    try:
        instance = (state / "instance").read_text(encoding="utf-8").strip()
    except OSError:
        instance = ""
    return Paths(state, output, instance or f"no-{STAGING}")


def read_rows(connection: sqlite3.Connection, scene: Scene) -> None:
    """Fill the scene inside the transaction of `connection`."""
    scene.jobs = connection.execute(
        f"SELECT id, run, step, state, target, pin, untidy, reason, {json_at('checkpoint', 'path')} AS seen_at,"
        " CASE WHEN state IN ('pending', 'running') THEN checkpoint END AS checkpoint,"
        " CASE WHEN state IN ('pending', 'running') THEN work END AS work FROM job ORDER BY created, id"
    ).fetchall()
    scene.stages = connection.execute(
        "SELECT stage.* FROM stage JOIN job ON job.id = stage.job WHERE job.state IN ('pending', 'running') ORDER BY job, position"
    ).fetchall()
    scene.attempts = connection.execute("SELECT * FROM attempt WHERE outcome IS NULL").fetchall()
