"""The end of a job: its verdict, its publication, its links, its notification, and the tidying up afterwards."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.contract import ArtifactCheck, JobFacts, Verdict
from daemon.durable import remove_tree
from daemon.journal import Journal
from daemon.naming import step_of
from daemon.paths import Paths
from daemon.publish import Part, assemble, link_to, manifest_of, same_files, swap_in
from daemon.rows import JobRow, StageRow
from daemon.select import best_step
from daemon.verdicts import asked_variants, judge, status_of

FAILED_SUFFIX = ".failed"
REJECTED = "rejected"


def target_of(job: JobRow, state: str) -> Path:
    """Where the export goes. A failed one never takes the place of a good one."""
    return job.target.with_name(job.target.name + FAILED_SUFFIX) if state == "failed" else job.target


def parts_of(checks: Sequence[ArtifactCheck], stages: Mapping[str, StageRow], *, keep_rejected: bool) -> list[Part]:
    """What is published: the report on top, a folder a variant that passed (or could not be verified, and says so)."""
    parts = []
    for check in checks:
        stage = stages.get(check.variant)
        if stage is None or stage.result is None or stage.folder is None:
            continue
        if check.verdict != Verdict.FAILED:
            parts.append(Part(check.variant, stage.folder, stage.result.files))
        elif keep_rejected:
            parts.append(Part(f"{REJECTED}/{check.variant}", stage.folder, stage.result.files))
    report = stages.get("report")
    if report and report.result and report.folder:
        parts.append(Part("", report.folder, report.result.files))
    return parts


@dataclass(frozen=True)
class Published:
    """How a job ended and where its export lies."""

    state: str
    target: Path
    checks: tuple[ArtifactCheck, ...]


def publish_job(job: JobRow, facts: JobFacts, stages: Mapping[str, StageRow], paths: Paths, *, keep_rejected: bool) -> Published:
    """Put the export in its place and move the run's links. Can be repeated after a crash."""
    checks = judge(facts)
    state = status_of(asked_variants(facts), checks)
    target = target_of(job, state)
    folder = paths.staging / job.id / "publish"
    head = {
        "export_id": job.id, "status": state, "run": job.checkpoint.run, "step": job.checkpoint.step, "identity": job.checkpoint.identity,
    }  # fmt: skip
    assemble(parts_of(checks, stages, keep_rejected=keep_rejected), folder, head)
    swap_in(folder, target)
    if state != "failed":
        remove_tree(job.target.with_name(job.target.name + FAILED_SUFFIX))
    if any(check.verdict == Verdict.PASSED for check in checks):
        _move_links(job, target)
    return Published(state, target, checks)


def _link(job: JobRow, target: Path, name: str) -> Path:
    """The run's link beside its exports; where several runs share the folder, the run's name is part of it."""
    run = job.checkpoint.run
    return target.with_name(name if target.parent.name == Path(run).name else f"{run.replace('/', '-')}-{name}")


def _move_links(job: JobRow, target: Path) -> None:
    """`latest` never goes back to an earlier step; `best` goes where the trainer's own best checkpoint is."""
    latest = _link(job, target, "latest")
    current = manifest_of(latest).get("step")
    if not isinstance(current, int) or current <= job.checkpoint.step:
        link_to(latest, target)
    if best_step(job.checkpoint.metadata) == step_of(Path(job.checkpoint.path)) is not None:
        link_to(_link(job, target, "best"), target)


def message_of(job: JobRow, stages: Mapping[str, StageRow], published: Published) -> tuple[str, str]:
    """Title and body of the notification."""
    title = f"{job.checkpoint.run} step {job.checkpoint.step}: {published.state}"
    lines = [f"{check.variant}: {check.verdict}" + (f" ({check.reasons[0]})" if check.reasons else "") for check in published.checks]
    lines += [stage.fault.sentence() for stage in stages.values() if stage.fault and stage.state == "failed"]
    return title, "\n".join([*lines, f"Export: {published.target}"])


def tidy_job(job: JobRow, paths: Paths) -> None:
    """Remove what a finished job needs no more: staging, pin, temporary files. Logs and job files stay."""
    remove_tree(paths.staging / job.id)
    remove_tree(job.pin)
    folder = paths.jobs / job.id
    if folder.is_dir():
        for attempt in folder.iterdir():
            remove_tree(attempt / "tmp")


def collect_orphans(journal: Journal, paths: Paths, pins: Path) -> list[str]:
    """Remove staging and pins that belong to no open job; names what went. `pins`: the configured folder, which may be new."""
    keep = {job.id for job in journal.open_jobs()}
    gone = []
    for parent in {paths.staging: None, paths.pins: None, pins: None}:
        for entry in os.scandir(parent) if parent.is_dir() else ():
            if entry.name not in keep:
                remove_tree(Path(entry.path))
                gone.append(entry.path)
    return gone


def reopen_damaged(journal: Journal) -> list[tuple[str, str]]:
    """Put finished stages of open jobs whose output is no longer whole back to waiting; gives (job, stage)."""
    found = []
    for job in journal.open_jobs():
        for stage in journal.stages(job.id).values():
            if stage.state == "succeeded" and not (stage.folder and stage.result and same_files(stage.folder, stage.result.files)):
                journal.reopen_stage(job.id, stage.name)
                found.append((job.id, stage.name))
    return found


def prune(folder: Path, run: str, keep_last: int) -> list[Path]:
    """Remove the oldest exports of `run` in `folder` beyond `keep_last`; never what a symlink there points to."""
    exports: dict[Path, int] = {}
    linked = set()
    for entry in folder.iterdir():
        if entry.is_symlink():
            linked.add(entry.resolve())
            continue
        manifest = manifest_of(entry)
        if manifest.get("run") == run and isinstance(step := manifest.get("step"), int):
            exports[entry] = step
    surplus = sorted(exports, key=lambda path: exports[path])[: max(0, len(exports) - keep_last)]
    removed = [path for path in surplus if path.resolve() not in linked]
    for path in removed:
        remove_tree(path)
    return removed
