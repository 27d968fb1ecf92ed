"""Which exports of a run stay, by `[retention]`, and the removal of the others.

Called by the end of every job and by `ckptd prune`. `plan_removal` decides, purely; `prune` reads the folders and
removes. Only real folders with a manifest are ever considered, and of them only what `daemon.publishing.exchange.ours` knows is deleted.
Never removed: what a symlink beside it points to (so `daemon.publishing.keeping` keeps single ones), what an open job belongs to, what
another ckptd publishes, and the newest export of a run. Where nobody has set a rule, `Scope` leaves alone what the daemon has not
published since it has rules by default.

"Best" follows the trainer's own metric (see `scores_of`), or the artifacts' own with `select.best_by = "quality"` (see
`ranked_by_quality`). Exports that failed hold no model, only the report: they
count for neither `keep_last` nor `keep_best`; the newest one of a run stays, the others as long as `keep_days` says.
The age of an export is that of its manifest file. A run is known by its name, as the manifests hold it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from daemon.checkpoints.selection import best_step
from daemon.config.places.export_names import KEEP
from daemon.config.places.output_owners import owner_of
from daemon.config.settings import RetentionSettings, SelectSettings
from daemon.contract.advice.which import Standing, standing
from daemon.contract.disk.export_layout import MANIFEST, manifest_of
from daemon.contract.disk.own_folders import own
from daemon.contract.faults.events import Event
from daemon.contract.jobs.points import StepPoint
from daemon.contract.jobs.run_figures import is_measured
from daemon.contract.values import Json
from daemon.publishing.exchange.beneath import Held, held_below
from daemon.publishing.exchange.ours import forget, is_export, look
from daemon.publishing.exchange.swap import complete_removals, leave
from daemon.publishing.keeping import SPARED, Scope
from daemon.publishing.run_figures import read_report, trainers_best
from daemon.system.logger import Logger

log = Logger("publish")
DAY = 86400.0


@dataclass(frozen=True)
class Export:
    """One published export, as far as its staying depends on it."""

    path: Path
    run: str
    step: int
    export: str
    failed: bool = False
    published: float = 0.0
    """Epoch seconds."""
    training: Json = field(default_factory=dict, hash=False)
    """What training recorded, as the report holds it."""
    linked: bool = False
    pinned: bool = False
    """`ckptd prune --keep` named it."""
    busy: bool = False
    """Its job is open."""
    anothers: bool = False
    """Another ckptd publishes its run in this folder."""
    ending: bool = False
    """It is what training ended with, after the checkpoint of the same step."""
    point: StepPoint | None = field(default=None, hash=False)
    """What the report says of its artifacts."""


@dataclass(frozen=True)
class RetentionDecision:
    """Exports that go, and those that stay with the reason."""

    removed: tuple[Export, ...]
    kept: tuple[tuple[Export, str], ...]


@dataclass(frozen=True)
class Removal:
    """One export that was removed, or (with a dry run) would be removed. `freed`: bytes on the disk that no other file uses."""

    path: Path
    run: str
    step: int
    freed: int


def plan_removal(
    exports: Iterable[Export], rules: RetentionSettings, now: float, select: SelectSettings | None = None, scope: Scope | None = None
) -> RetentionDecision:
    """Which exports go. Each run is judged by itself; an export stays when any active rule keeps it. `now`: epoch seconds. `select`: by
    what they are compared, the default by the trainer's metric. `scope`: what may go at all; None: everything."""
    runs: dict[str, list[Export]] = {}
    for export in exports:
        runs.setdefault(export.run, []).append(export)
    removed, kept = [], []
    for name in sorted(runs):
        ordered = sorted(runs[name], key=lambda export: (export.step, export.ending, export.published, str(export.path)), reverse=True)
        reasons = _reasons(ordered, rules, now, select or SelectSettings())
        if scope is not None:
            reasons = dict.fromkeys((export.path for export in ordered if scope.spares(export.published, export.export)), SPARED) | reasons
        for export in ordered:
            if export.path in reasons:
                kept.append((export, reasons[export.path]))
            else:
                removed.append(export)
    return RetentionDecision(tuple(removed), tuple(kept))


def _reasons(ordered: list[Export], rules: RetentionSettings, now: float, select: SelectSettings) -> dict[Path, str]:
    """Path → why it stays, of the exports of one run, newest first."""
    good = [export for export in ordered if not export.failed]
    failed = [export for export in ordered if export.failed]
    reasons = {export.path: "its job is open, or it waits to be delivered" for export in ordered if export.busy}
    reasons |= {export.path: "another ckptd publishes its run in this folder" for export in ordered if export.anothers}
    reasons |= {export.path: "a link in its folder, such as `latest`, points to it" for export in ordered if export.linked}
    reasons |= {export.path: "`ckptd prune --keep` named it" for export in ordered if export.pinned}
    for export in ordered:
        if not (rules.keep_last or rules.keep_best or rules.keep_days):
            reasons.setdefault(export.path, "no rule of [retention] is active")
        if rules.keep_days and now - export.published < rules.keep_days * DAY:
            reasons.setdefault(export.path, f"younger than keep_days = {rules.keep_days:g}")
    for export in good[: rules.keep_last]:
        reasons.setdefault(export.path, f"among the newest, keep_last = {rules.keep_last}")
    for newest in (good[:1], failed[:1]):
        if newest:
            reasons.setdefault(newest[0].path, "the newest of its run")
    if rules.keep_best:
        _keep_best(good, rules, select, reasons)
    return reasons


def _keep_best(good: list[Export], rules: RetentionSettings, select: SelectSettings, reasons: dict[Path, str]) -> None:
    """The best so many; where there is nothing to compare by and no other rule is active, all stay."""
    if select.by_quality:
        ranked, lacks = (
            ranked_by_quality(good, select.best_variant, select.best_task),
            "no artifact has a metric that keep_best could compare",
        )
    else:
        scores, lacks = scores_of(good), "training gave no metric that keep_best could compare"
        ranked = sorted((export for export in good if export.path in scores), key=lambda export: (-scores[export.path], -export.step))
    if not ranked and not (rules.keep_last or rules.keep_days):
        for export in good:
            reasons.setdefault(export.path, lacks)
    for export in ranked[: rules.keep_best]:
        reasons.setdefault(export.path, f"among the best, keep_best = {rules.keep_best}")


def ranked_by_quality(exports: Sequence[Export], variant: str, task: str = "") -> list[Export]:
    """The exports of a run, what `daemon.contract.advice.which` advises to deploy first, then those that are equal to it; those without a
    metric are left out.

    After those that can be compared with the latest one come the others, by the same rule among themselves: new texts or settings alone
    make no export worse. Those of which nobody knows whether they differ come by their figures.
    """
    left = {export.export: (export, export.point) for export in exports if export.point is not None and is_measured(export.point)}
    best, ranked = trainers_best([(export.step, export.training) for export in exports]), list[Export]()
    while left:
        ranking = standing([point for _, point in left.values()], best, variant, task)
        following = ranking.ranked if isinstance(ranking, Standing) else ranking.by_value
        ranked += [left.pop(point.export)[0] for point in following]
        if not following:  # the variant did not pass in those that were made last: the others are still compared
            del left[max(left.values(), key=lambda entry: (entry[1].finished, entry[1].place))[1].export]
    return ranked


def scores_of(exports: Sequence[Export]) -> dict[Path, float]:
    """How good each export of a run is, higher is better; exports without the metric are left out.

    The metric is the one that the trainer compares by: that figure of an evaluation which, at the step that the
    trainer names as its best, equals its `best_metric`. Without such a comparison it is `eval_loss`. Less is better
    where the name ends with "loss", as in transformers' own default for `greater_is_better`.
    """
    compared = [export for export in exports if export.training.get("best_metric") is not None]
    name = _compared_by(compared) if compared else "eval_loss"
    scores = {export.path: value for export in exports if name and (value := _figure(export, name)) is not None}
    return {path: -value if name and name.endswith("loss") else value for path, value in scores.items()}


def _figure(export: Export, name: str) -> float | None:
    evaluation = export.training.get("evaluation")
    value = evaluation.get(name) if isinstance(evaluation, dict) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value == value else None


def _compared_by(exports: Sequence[Export]) -> str | None:
    """Name of the metric that the trainer compares by, None where no export shows it without doubt."""
    names: set[str] | None = None
    for export in exports:
        if best_step(export.training) != export.step:
            continue
        evaluation = export.training.get("evaluation")
        here = (
            {name for name in evaluation if _figure(export, name) == export.training["best_metric"]}
            if isinstance(evaluation, dict)
            else set()
        )
        if here:
            names = here if names is None else names & here
    return next(iter(names)) if names and len(names) == 1 else None


def read_exports(folder: Path, run: str | None = None, busy: Collection[str] = (), owner: str = "") -> list[Export]:
    """The exports that lie in `folder` itself, of one run or all. `busy`: ids of jobs whose exports stay; `owner`: of this state."""
    exports: list[Export] = []
    linked, pinned = set[str](), set[str]()
    for entry in folder.iterdir():
        if entry.is_symlink():
            leads_to = os.path.realpath(entry)  # not Path.resolve, which raises for a link that leads to itself
            linked.add(leads_to)
            pinned.update([leads_to] if entry.name.startswith(KEEP) else ())
        elif not entry.name.startswith(".") and is_export(entry):
            with contextlib.suppress(OSError):
                exports += _read(entry, run, busy)
    owners = {name: owner_of(folder, name) for name in {export.run for export in exports}} if owner else {}
    anothers = {name for name, publisher in owners.items() if publisher is not None and publisher.instance != owner}
    places = {export.path: os.path.realpath(export.path) for export in exports}
    return [
        replace(export, linked=places[export.path] in linked, pinned=places[export.path] in pinned, anothers=export.run in anothers)
        for export in exports
    ]


def _read(path: Path, run: str | None, busy: Collection[str]) -> list[Export]:
    manifest = manifest_of(path)
    name, step, export = manifest.get("run"), manifest.get("step"), str(manifest.get("export_id", ""))
    if not isinstance(name, str) or not isinstance(step, int) or (run is not None and name != run):
        return []
    read = read_report(path)
    return [Export(
        path, name, step, export, failed=manifest.get("status") == "failed", published=(path / MANIFEST).stat().st_mtime,
        ending=bool(manifest.get("ending")), training=read.metadata if read else {}, busy=export in busy,
        point=read.point if read else None,
    )]  # fmt: skip


def prune(
    folders: Iterable[Path], run: str | None, rules: RetentionSettings, *, staging: Path, dry_run: bool = False,
    top: Path | None = None, busy: Collection[str] = (), now: float | None = None, select: SelectSettings | None = None,
    owner: str = "", records: Path | None = None, scope: Scope | None = None,
) -> list[Removal]:  # fmt: skip
    """Remove from `folders` what no rule keeps of `run` (None: of each run there).

    `staging`: this journal's folder on the output's file system, cleared at each start; what goes is renamed into it
    first, so that readers see an export whole or not at all. `top`: from where on no link is followed, by default the folder itself.
    `busy`: ids of jobs whose exports stay. `select`, `scope`: as for `plan_removal`. `owner`: what names this ckptd's state, "" for
    whoever's exports; `records`: where the state remembers what it published. Raises OSError, Permanent where a link is in the way.
    """
    removals = []
    moment = time.time() if now is None else now
    counted: dict[tuple[int, int], int] = {}
    with contextlib.nullcontext(staging) if dry_run else own(staging.parent.parent, staging, make=True) as away:
        if not dry_run:
            complete_removals(away)
        for folder in folders:
            with held_below(top or folder, folder) as held:  # what its name stands for may be changed by others meanwhile
                for export in plan_removal(read_exports(held.at, run, busy, owner), rules, moment, select, scope).removed:
                    freed = _freed(export.path, counted)
                    if dry_run or _remove(export, held, top or folder, away, records):
                        removals.append(Removal(folder / export.path.name, export.run, export.step, freed))
    return removals


def _remove(export: Export, held: Held, top: Path, staging: Path, records: Path | None) -> bool:
    """Take the export away and delete it; False where it is another one by now, or not ours, or a link came to point to it."""
    place = held.spot(export.path.name)
    looked = look(place.at, place.path, records)
    again = [present for present in read_exports(export.path.parent, export.run) if present.path == export.path]
    if looked is None or not again:
        return False
    if again[0].export != export.export or again[0].published != export.published or again[0].linked:
        return False
    if looked.known is None:
        log.warning(
            "an old export stays: its files are not those that its manifest names, and what is not ckptd's own is never removed",
            event_id=Event.EXPORT_NOT_REMOVED, path=str(place.path),
        )  # fmt: skip
        return False
    if not leave(place, top, looked, staging):
        return False
    if records is not None:
        forget(records, place.path)
    return True


def _freed(folder: Path, counted: dict[tuple[int, int], int]) -> int:
    """Bytes that the disk gains: those of files whose last name goes. `counted`: names that go so far, by inode."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(directory, name))
                inode = (status.st_dev, status.st_ino)
                counted[inode] = counted.get(inode, 0) + 1
                total += status.st_size if counted[inode] >= status.st_nlink else 0
    return total
