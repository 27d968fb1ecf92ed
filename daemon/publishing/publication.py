"""Atomic publication of an export: everything is put together beside the target, sealed, and renamed into place.

Called by `daemon.running.endings` after the last stage. It holds the lock of the run's owner. Every step can be repeated: a crash anywhere
leaves either the old export or the new one at the target, and the next start ends the rest. The order is: files, folders, manifest, its
folder, the rename, the folder around the target, and only then does what was replaced go.

What a reader must do to see one export whole: open the export's folder once (`os.open` with O_DIRECTORY, or go into
it) and read everything relative to that handle, MANIFEST.json first. A reader that builds each path anew may get
files of the old export and of the new one. When an export is replaced while it is read through such a handle, its
files may end in "no such file", never in other content; open the folder again then.

Limits: where the file system can't exchange two names (`daemon.publishing.exchange.swap`), readers find nothing for the instant
between two renames. Only an export of ours is ever replaced, and of it only what `daemon.publishing.exchange.ours` knows is removed;
whatever else lies at the target is set aside under `NAME.before-ckptd-TIME`, since a refusal would block every later export on an
unattended machine because of one wrong folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from daemon.config.places.export_names import FAILED_SUFFIX, folder_of
from daemon.config.places.output_owners import record_of
from daemon.config.places.paths import Paths
from daemon.contract.disk import failpoints
from daemon.contract.disk.export_layout import ANSWERS, MANIFEST, MANIFEST_VERSION, manifest_of
from daemon.contract.disk.files import FileEntry, fsync_directory, make_folders, walk, write_atomic
from daemon.contract.disk.own_folders import own
from daemon.contract.disk.placing import duplicate, hard_link, place
from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import ArtifactCheck, JobFacts, Verdict
from daemon.contract.jobs.options import ValidateOptions
from daemon.contract.jobs.verdicts import checked_on, is_published, judge, needs, replaced_by, status_that_follows
from daemon.contract.version import __version__
from daemon.journal.rows import JobRow, StageRow
from daemon.publishing.access import Access, folder_mode
from daemon.publishing.exchange.beneath import Spot, held_below
from daemon.publishing.exchange.ours import forget, look, remember
from daemon.publishing.exchange.owners import owned
from daemon.publishing.exchange.swap import leave, start_afresh, swap
from daemon.publishing.kept import lend_others
from daemon.publishing.lending import PUBLISH, is_as_lent, lend_staged, take_back
from daemon.publishing.links import ByQuality, move_links
from daemon.system.filesystems.private import inherited_umask

REJECTED = "rejected"


@dataclass(frozen=True)
class ExportPart:
    """The output of a stage: the folder `name` of the export it goes to ("" for the top), where it lies, its sealed files."""

    name: str
    source: Path
    files: tuple[FileEntry, ...]
    at: Path | None = None
    """A path to `source` that leads there whatever becomes of names."""

    @property
    def there(self) -> Path:
        """The path by which it is read."""
        return self.at or self.source


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
    """Put the export in its place, readable as `access` says, and move the run's links. Can be repeated after a crash.

    Raises Permanent where the place is another's, or holds exports of others, Retryable where it changes meanwhile, OSError.
    """
    checks = judge(facts)
    state = status_that_follows(facts)
    rules = facts.work.validation
    target = folder_of(job.target, state)
    top = top_of(target, paths)
    head = {
        "export_id": job.id, "status": state, "root": job.checkpoint.root, "run": job.checkpoint.run, "step": job.checkpoint.step,
        "ending": job.checkpoint.ending, "checkpoint": job.checkpoint.path, "identity": job.checkpoint.identity, "taken": job.created,
        **({"mixture": job.checkpoint.mixture, "additions": [addition.model_dump() for addition in job.checkpoint.additions]}
           if job.checkpoint.mixture else {}),
        **({"in_place_of": instead} if (instead := replaced_by(facts, checks)) else {}),
        "checked_on": checked_on(facts),
        "needs": {check.variant: lacking for check in checks if is_published(check, rules) and (lacking := needs(check))},
    }  # fmt: skip
    with (
        own(paths.output, paths.staging / job.id, make=True) as staging,
        own(paths.output, paths.kept, make=True) as kept,
        held_below(top, target.parent, make=True, access=access) as around,
        owned(around.spot(record_of(job.checkpoint.run)), job.checkpoint, paths, staging),
    ):
        spot, failed = around.spot(target.name), around.spot(job.target.name + FAILED_SUFFIX)
        start_afresh(staging / PUBLISH)
        looked = look(spot.at, target, paths.published)
        _refuse_anothers(spot, job)
        parts = _reached(parts_of(checks, stages, rules=rules, keep_rejected=keep_rejected), {
            paths.staging / job.id: staging, paths.kept: kept,
        })  # fmt: skip
        assemble(parts, staging / PUBLISH, head, replaced=target if looked and looked.known else None, access=access)
        try:
            lend_staged(staging, target, (kept, job.pin))
            swap(staging / PUBLISH, spot, top, looked)
        except BaseException:
            with contextlib.suppress(OSError):  # then what was finished is no longer whole, and is made again
                take_back(staging)
            raise
        remember(paths.published, target, spot.at)
        lend_others(staging, target, kept, job.pin)
        if state != "failed" and os.path.lexists(failed.at):
            _remove_failed(failed, job, top, paths)
        if any(check.verdict == Verdict.PASSED for check in checks):
            move_links(job, around, target.name, by_quality)
    return Published(state, target, checks)


def top_of(target: Path, paths: Paths) -> Path:
    """From where on no link is followed to an export: the output, or the folder around what a former configuration placed elsewhere."""
    return paths.output if paths.output in target.parents else target.parent


def parts_of(
    checks: Sequence[ArtifactCheck], stages: Mapping[str, StageRow], *, rules: ValidateOptions, keep_rejected: bool
) -> list[ExportPart]:
    """What is published: the report on top, a folder a variant that passed, or that the `rules` let out, and the live model's answers."""
    parts = []
    for check in checks:
        stage = stages.get(check.variant)
        if stage is None or stage.result is None or stage.folder is None:
            continue
        if is_published(check, rules):
            parts.append(ExportPart(check.variant, stage.folder, stage.result.files))
        elif keep_rejected:
            parts.append(ExportPart(f"{REJECTED}/{check.variant}", stage.folder, stage.result.files))
    live = stages.get("reference")
    if parts and rules.keep_answers and live and live.result and live.folder:
        kept = tuple(entry for entry in live.result.files if entry.path.startswith(f"{ANSWERS}/"))
        parts += [ExportPart("", live.folder, kept)] if kept else []
    report = stages.get("report")
    if report and report.result and report.folder:
        parts.append(ExportPart("", report.folder, report.result.files))
    return parts


def _reached(parts: Sequence[ExportPart], folders: Mapping[Path, Path]) -> list[ExportPart]:
    """The parts with the paths that lead to their outputs through folders which are held open. `folders`: path → the path that does."""
    return [
        replace(part, at=next((at / part.source.relative_to(path) for path, at in folders.items() if path in part.source.parents), None))
        for part in parts
    ]


def assemble(
    parts: list[ExportPart], folder: Path, facts: Mapping[str, object], replaced: Path | None = None, access: Access | None = None
) -> None:  # fmt: skip
    """Put the parts together in `folder`, where nothing is yet, by hard link, with MANIFEST.json written last, readable as `access` says.

    A file that lies in another export is copied, but for one in `replaced`, whose place the new export takes: that one goes.
    Raises Retryable where a stage's output is gone, OSError where the file system refuses.
    """
    make_folders(folder)
    entries = []
    for part in parts:
        for entry in part.files:
            relative = f"{part.name}/{entry.path}" if part.name else entry.path
            _place(part, entry, folder / relative, replaced)
            entries.append({"path": relative, "size": entry.size, "sha256": entry.sha256})
        if not is_as_lent(part.there):
            raise _gone(part.source)
        failpoints.point("publish.part")
    for directory, _, _ in walk(folder, topdown=False):
        fsync_directory(Path(directory))
    failpoints.point("publish.assembled")
    manifest = {
        "manifest_version": MANIFEST_VERSION, "ckptd": __version__, **facts, "files": sorted(entries, key=lambda item: str(item["path"])),
    }  # fmt: skip
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    _apply(folder, access or Access(0o666 & ~inherited_umask()))
    fsync_directory(folder)
    failpoints.point("publish.manifest")


def _place(part: ExportPart, entry: FileEntry, target: Path, replaced: Path | None) -> None:
    try:
        real = Path(os.path.realpath(part.there / entry.path, strict=True))
        if replaced is not None and Path(os.path.realpath(replaced)) in real.parents:
            if not hard_link(real, target):
                duplicate(real, target)
        else:
            place(real, target)
    except FileNotFoundError as error:
        raise _gone(part.source / entry.path) from error


def _gone(path: Path) -> Retryable:
    return Retryable(
        FaultCode.STAGE_OUTPUT_GONE, "put the export together", "the output of a finished stage no longer exists",
        "do not change output.directory while exports run; the stage is repeated", path=path,
    )  # fmt: skip


def _apply(folder: Path, access: Access) -> None:
    """Give everything in a folder of ours its mode and group. Raises OSError."""
    for directory, _, names in walk(folder):
        for path in (Path(directory), *(Path(directory, name) for name in names)):
            if access.group is not None:
                os.chown(path, -1, access.group)
            os.chmod(path, access.file if path != Path(directory) else folder_mode(access.file))


def _refuse_anothers(place: Spot, job: JobRow) -> None:
    """Raises Permanent where another checkpoint was published meanwhile, from another journal, under the name that this one was given."""
    # A run's link there is no export of another one: it gives way.
    owner = None if place.at.is_symlink() else job.checkpoint.other_than(manifest_of(place.at))
    if owner is not None:
        raise Permanent(
            FaultCode.TARGET_TAKEN, "publish the export", f"another checkpoint, {owner}, was published there meanwhile",
            "move that export away, or set output.naming so that the two differ; then run `ckptd queue retry` on the job", path=place.path,
        )  # fmt: skip


def _remove_failed(place: Spot, job: JobRow, top: Path, paths: Paths) -> None:
    """Remove the report of an earlier try that failed: this one takes its place. What is not ours stays."""
    looked = look(place.at, place.path, paths.published)
    if looked is None or looked.known is None or job.checkpoint.other_than(manifest_of(place.at)) is not None:
        return
    with own(paths.output, paths.staging) as staging:
        if leave(place, top, looked, staging):
            forget(paths.published, place.path)
