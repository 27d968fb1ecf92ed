"""What of an export that ends is to be delivered, decided with the commit that ends its job.

Called by `daemon.running.endings`, and by the queue for what a journal lost that was rebuilt.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from daemon.contract.disk.export_layout import manifest_of
from daemon.contract.jobs.messages import ArtifactCheck
from daemon.contract.jobs.terms import CheckTerms
from daemon.contract.jobs.verdicts import is_published, judge
from daemon.delivering.endpoint import Endpoint
from daemon.delivering.rules import Ended, carried
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.journal.shipment_rows import NewShipment
from daemon.publishing.links import links_from_inside


def entered(
    targets: Sequence[Endpoint], job: JobRow, export: Path, checks: Sequence[ArtifactCheck], rules: CheckTerms
) -> tuple[NewShipment, ...]:
    """The deliveries of an export that lies in `export` since now, and has not failed."""
    published = {check.variant: check.verdict for check in checks if is_published(check, rules)}
    ended = Ended(
        job.checkpoint.run, job.checkpoint.step, job.checkpoint.ending, published,
        frozenset(check.variant for check in checks if check.variant not in published), is_best(job, export),
    )  # fmt: skip
    chosen = ((target, carried(target, ended)) for target in targets)
    return tuple(NewShipment(target.name, variants) for target, variants in chosen if variants)


def is_best(job: JobRow, export: Path) -> bool:
    """Whether the run's link `best` stands for an export."""
    link = links_from_inside(job)["best"]
    return bool(link) and os.path.realpath(export / link) == os.path.realpath(export)


def enter_lost(journal: Journal, targets: Mapping[str, Endpoint]) -> int:
    """Enter what the journal lost of deliveries when it was rebuilt from a backup, as far as it would be entered now; gives how many."""
    count = 0
    for name, target in (pair for pair in journal.shipments.unentered() if pair[1] in targets):
        job = journal.jobs.get(name)
        if job is None or manifest_of(job.target).get("export_id") != name:
            continue
        facts = journal.attempts.facts(job, journal.stages.of(name))
        lost = entered((targets[target],), job, job.target, judge(facts), facts.work.validation)
        count += journal.shipments.enter(name, lost) and len(lost)
    journal.shipments.all_entered()
    return count
