"""Invariants of what lies on the disk: exports, links, staging, pins, temporary files.

Called by `daemon.operating.integrity.fsck` with what the journal said an instant before. Never writes.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from daemon.checkpoints.files import export_files
from daemon.checkpoints.pinning.additions import changed
from daemon.checkpoints.pinning.pins import identify
from daemon.config.places.export_names import FAILED_SUFFIX, is_marked
from daemon.contract.disk.export_layout import MANIFEST, manifest_of
from daemon.contract.disk.files import dead_temporaries, sha256_file
from daemon.contract.jobs.messages import ADDITIONS, CheckpointRef, StageResult
from daemon.operating.integrity.scene import OPEN, REPORTED, Scene
from daemon.publishing.exchange.ours import GONE, NEW, OLD, is_export
from daemon.publishing.lending import same_files
from daemon.publishing.verification import verify

LINKS = ("latest", "best")
_CLEARED = "start the daemon, which removes it, or remove it by hand"


def check_disk(scene: Scene) -> None:
    """All of them."""
    check_exports(scene)
    targets = {Path(row["target"]) for row in scene.jobs}
    for folder in sorted({target.parent for target in targets} | {scene.paths.output}):
        if folder.is_dir():
            check_folder(scene, folder, {target.name for target in targets if target.parent == folder})
    check_pins_of_open_jobs(scene)
    check_stage_outputs(scene)
    check_temporaries(scene, scene.paths.state)
    if scene.quiescent:
        check_leftovers(scene)


def check_exports(scene: Scene) -> None:
    """What an ended job published is whole, or was replaced by another job's, or is gone, which is noted."""
    for job in scene.jobs:
        if job["state"] in REPORTED:
            target = Path(job["target"] + (FAILED_SUFFIX if job["state"] == "failed" else ""))
            _check_export(scene, job, target)


def _check_export(scene: Scene, job: sqlite3.Row, target: Path) -> None:
    manifest = manifest_of(target)
    if job["state"] == "failed" and job["reason"]:
        scene.note("export-refused", f"it was not published: {job['reason']}", "as it says", path=job["target"], job=job["id"])
    elif not target.exists() and (later := _later_of(scene, job)) is not None:
        scene.note("export-replaced", f"another export has replaced it: {later}", "nothing", path=job["target"], job=job["id"])
    elif not target.exists():
        scene.note("export-absent", "its export is no longer there: retention or a person removed it", "nothing, or `ckptd queue retry`",
                   path=target, job=job["id"])  # fmt: skip
    elif not manifest:
        scene.find("export-half", "the export's folder has no readable manifest", _again(job),
                   path=target, job=job["id"])  # fmt: skip
    elif manifest.get("export_id") != job["id"]:
        scene.note("export-replaced", f"another export has replaced it: {manifest.get('export_id')}", "nothing", path=target, job=job["id"])
    else:
        scene.exports += 1
        if manifest.get("status") != job["state"]:
            scene.find("export-status", f"its manifest says {manifest.get('status')}, but the journal says {job['state']}",
                       _again(job), path=target, job=job["id"])  # fmt: skip
        problems = verify(target, deep=scene.deep).problems
        for problem in problems:
            scene.find(
                f"export-{problem.code}", f"{problem.path}: {problem.text}", problem.remedy or _again(job), path=target / problem.path,
                job=job["id"],
            )  # fmt: skip


def _later_of(scene: Scene, job: sqlite3.Row) -> str | None:
    """The later job of this journal whose export stands where that of a failed job would stand if it had succeeded."""
    there = manifest_of(Path(job["target"])).get("export_id") if job["state"] == "failed" else None
    ids = [other["id"] for other in scene.jobs]
    return there if isinstance(there, str) and there in ids[ids.index(job["id"]) + 1 :] else None


def _again(job: sqlite3.Row) -> str:
    """How an ended job's export is made anew: what succeeded is not retried."""
    if job["state"] != "succeeded":
        return f"`ckptd queue retry {job['id']}` makes it again"
    return f"`ckptd export --force {shlex.quote(job['seen_at'])}` makes it again while that checkpoint is there"


def check_folder(scene: Scene, folder: Path, targets: set[str]) -> None:
    """A folder of exports: nothing half made, nothing temporary, links that lead to whole exports."""
    check_temporaries(scene, folder)
    for entry in os.scandir(folder):
        path = Path(entry.path)
        if entry.is_symlink():
            plain = entry.name.rpartition("~")[0] if is_marked(entry.name) else entry.name
            if plain in LINKS or plain.endswith(tuple(f"-{name}" for name in LINKS)):
                _check_link(scene, path)
        elif entry.is_dir() and entry.name.removesuffix(FAILED_SUFFIX) in targets and not is_export(path) and os.listdir(path):
            scene.find("export-half", f"a folder with the name of an export has no {MANIFEST}", "move it away", path=path)
        elif scene.quiescent and entry.name.startswith(".") and entry.name.endswith((NEW, OLD, GONE)):
            scene.find("export-leftover", "a temporary file of a publication or a removal was left", _CLEARED, path=path)


def _check_link(scene: Scene, link: Path) -> None:
    code, what = ("link-astray", "is not an export") if link.exists() else ("link-broken", "does not exist")
    if not is_export(Path(os.path.realpath(link))):
        remedy = "remove it; the next export creates it again"
        scene.find(code, f"it points to {os.readlink(link)}, which {what}", remedy, path=link)


def check_temporaries(scene: Scene, folder: Path) -> None:
    """No temporary name remains after the process that made it has ended."""
    for path in dead_temporaries(folder):
        scene.find("temporary-left", "a process that has ended left a temporary file", _CLEARED, path=path)


def check_pins_of_open_jobs(scene: Scene) -> None:
    """The files that an open job exports are there, unless its checkpoint was damaged from the beginning."""
    damaged = {row["job"] for row in scene.stages if row["name"] in ("consolidate", "merge") and row["state"] == "failed"}
    for job in scene.jobs:
        if job["state"] not in OPEN or job["id"] in damaged:
            continue
        pin, seen = Path(job["pin"]), CheckpointRef.model_validate_json(job["checkpoint"])
        if not pin.is_dir() or not export_files(pin):
            scene.find("pin-missing", "the pinned checkpoint of an open job is missing",
                       "cancel the job, and export the checkpoint again if it still exists", path=pin, job=job["id"])  # fmt: skip
        elif scene.deep and identify(pin) != seen.digest:
            scene.find("pin-changed", "the content of the pinned checkpoint has changed since it was taken",
                       "cancel the job, and export the checkpoint again", path=pin, job=job["id"])  # fmt: skip
        elif name := changed(seen.additions, pin, deep=scene.deep):
            scene.find("pin-changed", f"the pin of the adapter {name}, which is merged with the checkpoint's own, is missing or its content"
                       " has changed since it was taken",
                       "cancel the job, and export the checkpoint again", path=pin / ADDITIONS, job=job["id"])  # fmt: skip


def check_stage_outputs(scene: Scene) -> None:
    """What a finished stage of an open job made is still there, as it was sealed."""
    for row in scene.stages:
        if row["state"] != "succeeded" or not row["result"] or not row["folder"]:
            continue
        folder, files = Path(row["folder"]), StageResult.model_validate_json(row["result"]).files
        whole = same_files(folder, files)
        if whole and scene.deep:
            whole = all(sha256_file(folder / entry.path) == entry.sha256 for entry in files)
        if not whole:
            scene.find("stage-output-damaged", f"the output of the finished stage {row['name']} is no longer complete",
                       "start the daemon, which repeats the stage", path=folder, job=row["job"])  # fmt: skip


def check_leftovers(scene: Scene) -> None:
    """Staging, pins and temporary folders belong to open jobs: only while nobody works can that be told."""
    mine = scene.open_ids
    for name, parent in (("staging", scene.paths.staging), ("pin", scene.pins)):
        for path in _entries(parent):
            if path.name not in mine:
                scene.find(f"{name}-orphan", "it belongs to no open job", _CLEARED, path=path)
    open_folders = {row["folder"] for row in scene.attempts}
    for job in _entries(scene.paths.jobs):
        for attempt in _entries(job):
            if str(attempt) not in open_folders and (attempt / "tmp").exists():
                scene.find("temporary-left", "temporary files of an attempt that has ended", _CLEARED, path=attempt / "tmp", job=job.name)


def _entries(folder: Path) -> Iterable[Path]:
    return [Path(entry.path) for entry in os.scandir(folder)] if folder.is_dir() else []
