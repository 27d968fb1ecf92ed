"""The journal's memory of directories: what was decided upon, in which state, and what was lost.

A part of `daemon.journal.journal.Journal`; each method is one transaction. Called by the watcher and the intake.
"""

from __future__ import annotations

import sqlite3

from daemon.journal.file.database import Database
from daemon.journal.rows import now


class Sightings:
    """Transactions on the tables `seen` and `lost`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def fingerprint(self, path: str) -> str | None:
        """Digest of the fingerprint with which a directory was last decided upon."""
        rows = self._database.read("SELECT fingerprint FROM seen WHERE path = ?", path)
        return str(rows[0][0]) if rows else None

    def decisions_below(self, root: str) -> dict[str, tuple[str, str]]:
        """The same for a root and everything below it, in one query, each with the time of the decision."""
        prefix = root.rstrip("/") + "/"
        query = "SELECT path, fingerprint, at FROM seen WHERE (path >= ? AND path < ?) OR path = ?"
        rows = self._database.read(query, prefix, prefix[:-1] + "0", root)
        return {str(row[0]): (str(row[1]), str(row[2])) for row in rows}

    def confirm(self, path: str) -> None:
        """What was decided about a directory still holds now."""
        self._database.write("confirm", lambda c: c.execute("UPDATE seen SET at = ? WHERE path = ?", (now(), path)))

    def skipped_below(self, root: str) -> frozenset[str]:
        """Directories below a root of which it was decided that they are not exported."""
        prefix = root.rstrip("/") + "/"
        query = "SELECT path FROM seen WHERE ((path >= ? AND path < ?) OR path = ?) AND verdict = 'skipped'"
        return frozenset(str(row[0]) for row in self._database.read(query, prefix, prefix[:-1] + "0", root))

    def remember(self, path: str, fingerprint: str, verdict: str, job: str | None = None) -> None:
        """Record that a directory in this state has been decided upon without a new job. `job`: the one that has it already."""
        self._database.write("remember", lambda c: record_sighting(c, path, fingerprint, verdict, job))

    def reconsider(self, path: str) -> bool:
        """Forget that a directory was skipped, so that the next look decides again; says whether it was."""
        return bool(self._database.write(
            "reconsider", lambda c: c.execute("DELETE FROM seen WHERE path = ? AND verdict = 'skipped'", (path,)).rowcount
        ))  # fmt: skip

    def moved(self, job: str, path: str, fingerprint: str) -> None:
        """The content of a job lies at `path` now, and nowhere else."""

        def move(c: sqlite3.Connection) -> None:
            c.execute("DELETE FROM seen WHERE job = ?", (job,))
            record_sighting(c, path, fingerprint, "known", job)

        self._database.write("moved", move)

    def places(self, job: str) -> dict[str, str]:
        """The directories whose content is this job's, each with the fingerprint that it was seen with."""
        return {str(row[0]): str(row[1]) for row in self._database.read("SELECT path, fingerprint FROM seen WHERE job = ?", job)}

    def jobs_at(self, path: str) -> list[str]:
        """The jobs whose content this directory held when it was last decided upon."""
        return [str(row[0]) for row in self._database.read("SELECT job FROM seen WHERE path = ? AND job IS NOT NULL", path)]

    def lost(self) -> int:
        """How many checkpoints were deleted before they could be pinned."""
        return int(self._database.read("SELECT count(*) FROM lost")[0][0])

    def add_lost(self, path: str, first_seen: str, last_seen: str, lived: float) -> None:
        """Record that a checkpoint was deleted before it could be pinned. `lived`: seconds."""
        self._database.write("add-lost", lambda c: c.execute(
            "INSERT INTO lost (path, first_seen, last_seen, lived, at) VALUES (?,?,?,?,?)", (path, first_seen, last_seen, lived, now()),
        ))  # fmt: skip


def record_sighting(c: sqlite3.Connection, path: str, fingerprint: str, verdict: str, job: str | None) -> None:
    """Inside a transaction: this is what was decided about a directory in this state."""
    c.execute(
        "INSERT INTO seen (path, fingerprint, verdict, job, at) VALUES (?,?,?,?,?)"
        " ON CONFLICT (path) DO UPDATE SET"
        " fingerprint = excluded.fingerprint, verdict = excluded.verdict, job = excluded.job, at = excluded.at",
        (path, fingerprint, verdict, job, now()),
    )
