"""The daily digest: what happened since the last one, told at `notify.digest_at`. Called by a tick of the daemon."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from daemon.contract.disk.answers import ask
from daemon.contract.values import Json
from daemon.journal.journal import Journal
from daemon.journal.progress import EndedJob, ended_between
from daemon.journal.rows import Notice
from daemon.publishing.telling.messages import best_of, in_words, link_of

CONDITION = "digest"
"""What the journal calls the time up to which was told."""
MOST_LISTED = 20
"""Failures and artifacts that are listed, each."""


def last_time(at: str, moment: datetime) -> datetime:
    """The last time before `moment` (local, aware) at which the machine's clock showed `at` ("08:00")."""
    hour, minute = map(int, at.split(":"))
    naive = moment.replace(tzinfo=None, hour=hour, minute=minute, second=0, microsecond=0)
    today = naive.astimezone()
    return today if today <= moment else (naive - timedelta(days=1)).astimezone()


@dataclass
class Daily:
    """Tells the digest. `clock`: the time now, aware."""

    journal: Journal
    wake: Callable[[], object]
    clock: Callable[[], datetime] = lambda: datetime.now().astimezone()

    def tick(self, at: str, page: str = "") -> None:
        """Tell what happened, where it is time. The first time only the moment is remembered, from which on there is something to tell."""
        moment, last = self.clock(), self.journal.outbox.state_of(CONDITION)
        if not last or datetime.fromisoformat(last) > moment:  # the clock was set back: nothing would be told until it is there again
            self.journal.outbox.changed(CONDITION, moment.isoformat(), None)
        elif datetime.fromisoformat(last) < last_time(at, moment):
            since = datetime.fromisoformat(last)
            self.journal.outbox.changed(CONDITION, moment.isoformat(), digest(self.journal, since, moment, page))
            self.wake()


def digest(journal: Journal, since: datetime, until: datetime, page: str = "") -> Notice:
    """What ended between two times, and what is open. `page`: `page.url`."""
    ended = [job for job in ended_between(journal.database, since, until) if job.state in ("succeeded", "partial", "failed")]
    counts, waiting = Counter(job.state for job in ended), len(journal.jobs.open_ids())
    failed = [job for job in ended if job.state == "failed"]
    best = {job.run: best for job in _newest(ended) if (best := _best(job.target)) is not None}
    said = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no export ended"
    lines = [f"Since {since.astimezone():%Y-%m-%d %H:%M}: {said}; {waiting} open."]
    lines += [f"Failed: {job.run} step {job.step} (ckptd show {job.id})" for job in failed[:MOST_LISTED]]
    lines += [f"and {len(failed) - MOST_LISTED} more failed"] if len(failed) > MOST_LISTED else []
    lines += [f"{run}: {in_words(artifact)}" for run, artifact in best.items()]
    return Notice("digest", f"ckptd, the last day: {said}", "\n".join(lines), {
        "counts": {**counts, "open": waiting},
        "messages": [
            {"event": job.state, "at": job.ended, "title": f"{job.run} step {job.step}: {job.state}", "job": job.id, "run": job.run,
             "step": job.step, "link": link_of(job.id, page)}
            for job in ended[:100]
        ],
    })  # fmt: skip


def _newest(ended: list[EndedJob]) -> list[EndedJob]:
    """The newest export with artifacts of each run."""
    newest: dict[str, EndedJob] = {}
    for job in sorted(ended, key=lambda job: job.step):
        if job.state != "failed":
            newest[job.run] = job
    return list(newest.values())[:MOST_LISTED]


def _best(target: Path) -> Json | None:
    """What to deploy of an export; None also where its file system does not answer."""
    with contextlib.suppress(TimeoutError):
        return ask(f"export {target}", lambda: best_of(target))
    return None
