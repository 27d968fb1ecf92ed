"""An export in its place: which of its parts are published, the exchange under the lock of the run's owner, and the run's links.

Called by `daemon.publishing.closing` when all stages of a job have ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from daemon.config.paths import Paths
from daemon.contract.errors import Permanent
from daemon.contract.export_layout import manifest_of
from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.messages import ArtifactCheck, JobFacts, Verdict
from daemon.contract.jobs.options import ValidateOptions
from daemon.contract.jobs.verdicts import checked_on, is_published, judge, needs, replaced_by, status_that_follows
from daemon.contract.own_folders import own
from daemon.journal.rows import JobRow, StageRow
from daemon.publishing.access import Access
from daemon.publishing.exchange.beneath import Spot, held_below
from daemon.publishing.exchange.ours import forget, look, remember
from daemon.publishing.exchange.owners import owned
from daemon.publishing.exchange.swap import complete_swap, leave
from daemon.publishing.lending import PUBLISH, lend_others, lend_staged, take_back
from daemon.publishing.links import ByQuality, move_links
from daemon.publishing.publication import ExportPart, assemble, put_in

FAILED_SUFFIX = ".failed"
REJECTED = "rejected"


def target_of(job: JobRow, state: str) -> Path:
    """Where the export goes. A failed one never takes the place of a good one."""
    return job.target.with_name(job.target.name + FAILED_SUFFIX) if state == "failed" else job.target


def parts_of(
    checks: Sequence[ArtifactCheck], stages: Mapping[str, StageRow], *, rules: ValidateOptions, keep_rejected: bool
) -> list[ExportPart]:
    """What is published: the report on top, a folder a variant that passed, or that the `rules` let out."""
    parts = []
    for check in checks:
        stage = stages.get(check.variant)
        if stage is None or stage.result is None or stage.folder is None:
            continue
        if is_published(check, rules):
            parts.append(ExportPart(check.variant, stage.folder, stage.result.files))
        elif keep_rejected:
            parts.append(ExportPart(f"{REJECTED}/{check.variant}", stage.folder, stage.result.files))
    report = stages.get("report")
    if report and report.result and report.folder:
        parts.append(ExportPart("", report.folder, report.result.files))
    return parts


@dataclass(frozen=True)
class Published:
    """How a job ended and where its export lies."""

    state: str
    target: Path
    checks: tuple[ArtifactCheck, ...]


def publish_job(
    job: JobRow, facts: JobFacts, stages: Mapping[str, StageRow], paths: Paths, *, keep_rejected: bool, access: Access | None = None,
    by_quality: ByQuality | None = None,
) -> Published:  # fmt: skip
    """Put the export in its place, readable as `access` says, and move the run's links. Can be repeated after a crash."""
    checks = judge(facts)
    state = status_that_follows(facts)
    rules = facts.work.validation
    target = target_of(job, state)
    top = top_of(target, paths)
    head = {
        "export_id": job.id, "status": state, "root": job.checkpoint.root, "run": job.checkpoint.run, "step": job.checkpoint.step,
        "ending": job.checkpoint.ending, "checkpoint": job.checkpoint.path, "identity": job.checkpoint.identity, "taken": job.created,
        **({"mixture": job.checkpoint.mixture, "additions": [one.model_dump() for one in job.checkpoint.additions]}
           if job.checkpoint.mixture else {}),
        **({"in_place_of": instead} if (instead := replaced_by(facts, checks)) else {}),
        "checked_on": checked_on(facts),
        "needs": {check.variant: found for check in checks if is_published(check, rules) and (found := needs(check))},
    }  # fmt: skip
    with (
        own(paths.output, paths.staging / job.id, make=True) as staging,
        own(paths.output, paths.kept, make=True) as kept,
        held_below(top, target.parent, make=True, access=access) as around,
        owned(around, job.checkpoint, paths, staging),
    ):
        complete_swap(staging / PUBLISH)
        parts = _reached(parts_of(checks, stages, rules=rules, keep_rejected=keep_rejected), {
            paths.staging / job.id: staging, paths.kept: kept,
        })  # fmt: skip
        place = around.spot(target.name)
        _refuse_anothers(place, job)
        looked = look(place.at, target, paths.published)
        assemble(parts, staging / PUBLISH, head, replaced=target if looked and looked.known else None, access=access)
        try:
            lend_staged(staging, target, (kept, job.pin))
            put_in(staging / PUBLISH, place, top, looked)
        except BaseException:
            with contextlib.suppress(OSError):  # then what was finished is no longer whole, and is made again
                take_back(staging)
            raise
        remember(paths.published, target, place.at)
        lend_others(staging, target, kept, job.pin)
        if state != "failed":
            _remove_failed(around.spot(job.target.name + FAILED_SUFFIX), job, top, paths)
        if any(check.verdict == Verdict.PASSED for check in checks):
            move_links(job, place, by_quality)
    return Published(state, target, checks)


def _reached(parts: Sequence[ExportPart], folders: Mapping[Path, Path]) -> list[ExportPart]:
    """The parts with the paths that lead to their outputs through folders which are held open. `folders`: path → the path that does."""
    found = []
    for part in parts:
        through = next((at / part.source.relative_to(folder) for folder, at in folders.items() if folder in part.source.parents), None)
        found.append(replace(part, at=through))
    return found


def _remove_failed(place: Spot, job: JobRow, top: Path, paths: Paths) -> None:
    """Remove the report of an earlier try that failed: this one takes its place. What is not ours stays."""
    looked = look(place.at, place.path, paths.published)
    if looked is None or looked.known is None or job.checkpoint.other_than(manifest_of(place.at)) is not None:
        return
    with own(paths.output, paths.staging) as staging:
        if leave(place, top, looked, staging):
            forget(paths.published, place.path)


def top_of(target: Path, paths: Paths) -> Path:
    """From where on no link is followed to an export: the output, or the folder around what a former configuration placed elsewhere."""
    return paths.output if paths.output in target.parents else target.parent


def _refuse_anothers(place: Spot, job: JobRow) -> None:
    """Raises Permanent where another checkpoint was published meanwhile, from another journal, under the name that this one was given."""
    # A run's link there is no export of another one: it gives way.
    owner = None if place.at.is_symlink() else job.checkpoint.other_than(manifest_of(place.at))
    if owner is not None:
        raise Permanent(
            FaultCode.TARGET_TAKEN, "publish the export", f"another checkpoint, {owner}, was published there meanwhile",
            "move that export away, or set output.naming so that the two differ; then run `ckptd retry` on the job", path=place.path,
        )  # fmt: skip
