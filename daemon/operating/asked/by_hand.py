"""What `ckptd deliver` does: puts exports of the journal into the queue of deliveries, and asks targets what lies there.

What is to be carried is written into the journal, where a running daemon finds it within seconds, or the next one at its start: so a
delivery by hand goes the same way as any other, with the same retries, and two never carry one export to one place at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from daemon.config.deliver.targets import DeliverTarget
from daemon.config.settings import Settings
from daemon.config.suggestions import nearest
from daemon.contract.delivering.orders import End, Listed, Move
from daemon.contract.disk.export_layout import manifest_of
from daemon.contract.faults.errors import CkptdError, Permanent, Retryable, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.light import dataclass
from daemon.delivering.asking import LOOK_SECONDS, REMOVE_SECONDS, ask
from daemon.delivering.rules import chosen
from daemon.journal.journal import Journal
from daemon.journal.shipment_rows import OPEN_SHIPMENT, NewShipment, ShipmentRow
from daemon.operating.monitoring.deliveries import retry_at
from daemon.operating.monitoring.status import JobDetails

DELIVERABLE = ("succeeded", "partial")
_LOOK_AGAIN_SECONDS = 0.5


@dataclass(frozen=True)
class ByHand:
    """An export and a target: what is, or would be, carried, and how that stands."""

    job: str
    target: str
    """Name of the target."""
    kind: str
    """Its kind."""
    state: str
    """`planned` (`--dry-run`), `waiting`, `running`, `delivered`, `failed` or `dropped`."""
    variants: tuple[str, ...]
    """The variants that are carried."""
    files: int
    """Number of their files, with what lies beside them."""
    bytes: int
    """Size of these files; what is there already is not sent."""
    version: str | None = None
    """The far end's name of what lies there of this export; None if nothing does."""
    place: str | None = None
    """Where it lies."""
    problem: str | None = None
    """What keeps it from there, as a sentence; of `--dry-run` what a look at the target found."""
    retry_at: str | None = None
    """When it is tried again; ISO 8601 in UTC; None where it does not wait for a time."""
    entered: bool = False
    """Whether this command put it into the queue."""


def targets_of(settings: Settings, names: Sequence[str], run: str | None = None) -> list[DeliverTarget]:
    """The targets of these names, else all of a run. Raises UsageError for a name that no target has, and where there is none."""
    known = {target.name: target for target in settings.deliver}
    operation = "deliver"
    if not known:
        raise UsageError(
            FaultCode.CONFIG_INVALID, operation, "the configuration has no [[deliver]]", "write a table [[deliver]] (docs/delivery.md)"
        )
    if missing := [name for name in names if name not in known]:
        raise UsageError(
            FaultCode.BAD_OPTION, operation, f"there is no target {missing[0]!r}; {nearest(missing[0], known)}",
            "name a target of [[deliver]]; `ckptd config show deliver` lists them",
        )  # fmt: skip
    wanted = [known[name] for name in dict.fromkeys(names)] or [target for target in known.values() if run is None or target.is_for(run)]
    if not wanted:
        raise UsageError(FaultCode.BAD_OPTION, operation, f"no target is for the run {run!r}", f"name one: {', '.join(known)}")
    return wanted


def planned(job: JobDetails, target: DeliverTarget) -> ByHand:
    """What of an export goes to a target. Raises UsageError for an export that can't be delivered."""
    operation, sizes = f"deliver {job.id}", _sizes(Path(job.target))
    if job.foreground:
        raise UsageError(
            FaultCode.WRONG_STATE,
            operation,
            "`ckptd export` made it, and the daemon delivers what is its own",
            "deliver its folder by hand",
        )
    if job.state not in DELIVERABLE:
        raise UsageError(
            FaultCode.WRONG_STATE, operation, f"it is {job.activity or job.state}", "deliver only an export that succeeded or is partial"
        )
    if manifest_of(Path(job.target)).get("export_id") != job.id:
        raise UsageError(
            FaultCode.DELIVERY_SOURCE, operation, "its export does not lie there any more", f"run `ckptd queue retry {job.id}`, which makes"
            " it again", path=job.target,
        )  # fmt: skip
    there = sorted(name for name in sizes if name)
    variants = chosen(target, there)
    if not variants:
        wanted = target.variants or target.declared.variants
        raise UsageError(
            FaultCode.DELIVERY_SOURCE, operation, f"the target {target.name} takes {', '.join(wanted)}, and the export has"
            f" {', '.join(there) or 'no variant'}", "name published variants in the target's `variants`",
        )  # fmt: skip
    carried = [size for name in ("", *variants) for size in sizes.get(name, ())]
    return ByHand(job.id, target.name, target.kind, "planned", variants, len(carried), sum(carried))


def _sizes(export: Path) -> Mapping[str, list[int]]:
    """Variant, "" for what lies beside them → bytes of its files, by the manifest."""
    sizes: dict[str, list[int]] = {}
    files = manifest_of(export).get("files")
    for entry in files if isinstance(files, list) else []:
        variant, slash, _ = str(entry["path"]).partition("/")
        sizes.setdefault(variant if slash else "", []).append(int(entry["size"]))
    return sizes


def looked_at(settings: Settings, job: JobDetails, target: DeliverTarget) -> ByHand:
    """What would be carried, and what a look at the target says."""
    plan, target = planned(job, target), _with_secret(target)
    end = ask(target, "look", LOOK_SECONDS, settings.limits.pass_environment, export=job.target, job=job.id, variants=plan.variants)
    return replace(plan, problem=end.fault.sentence() if end.fault else None)


def enter(journal: Journal, job: JobDetails, target: DeliverTarget, *, force: bool, again: bool) -> ByHand:
    """Have an export carried to a target; what lies there already is left so unless `again` or `force` is given. Raises as `planned`."""
    plan = planned(job, target)
    row = _row(journal, plan)
    if row is None or not (row.state == "running" or (row.state == "delivered" and not (again or force))):
        move: Move = "force" if force else "move"
        if not journal.shipments.enter(job.id, [NewShipment(target.name, plan.variants, move, by_hand=True)]):
            raise UsageError(FaultCode.WRONG_STATE, f"deliver {job.id}", "it has been taken up again", "deliver it when it has ended")
        return replace(as_it_stands(journal, plan), entered=True)
    return as_it_stands(journal, plan)


def as_it_stands(journal: Journal, row: ByHand) -> ByHand:
    """The same as the journal has it now."""
    now = _row(journal, row)
    if now is None:
        return replace(row, state="dropped")
    receipt = now.receipt
    return replace(
        row, state=now.state, version=receipt.version if receipt else None, place=receipt.place if receipt else None,
        problem=(now.fault.sentence() if now.fault else now.reason) if now.state != "delivered" else None,
        retry_at=retry_at(now),
    )  # fmt: skip


def _row(journal: Journal, row: ByHand) -> ShipmentRow | None:
    return next((shipment for shipment in journal.shipments.of(row.job) if shipment.target == row.target), None)


def awaited(journal: Journal, rows: Sequence[ByHand], report: Callable[[ByHand], None]) -> list[ByHand]:
    """The same when all have ended; `report` gets each that has, and each that waits for another try, once for each reason."""
    open_ = {(row.job, row.target): row for row in rows}
    done: dict[tuple[str, str], ByHand] = {}
    reported: set[tuple[str, str | None]] = set()
    while len(done) < len(open_):
        for key, row in open_.items():
            if key in done:
                continue
            if (now := as_it_stands(journal, row)).state not in OPEN_SHIPMENT:
                done[key] = now
                report(now)
            elif now.retry_at is not None and (reason := (now.target, now.problem)) not in reported:
                reported.add(reason)
                report(now)
        time.sleep(_LOOK_AGAIN_SECONDS if len(done) < len(open_) else 0)
    return [done[key] for key in open_]


def listed(settings: Settings, target: DeliverTarget, run: str) -> tuple[Listed, ...]:
    """What lies at a target, of one run or ("") of all. Raises CkptdError."""
    return _of(ask(_with_secret(target), "list", REMOVE_SECONDS, settings.limits.pass_environment, run=run)).listed or ()


def remove(settings: Settings, target: DeliverTarget, versions: Sequence[str], *, force: bool) -> list[str]:
    """Take versions away from a target; gives those that lay there. Raises UsageError for what the name that people follow stands for,
    unless `force` is given, and for what does not lie there; CkptdError as the far end answers."""
    there = {row.version: row for row in listed(settings, target, "")}
    operation = f"remove from {target.name}"
    for version in versions:
        if version not in there:
            said = nearest(version, there) if there else "nothing lies there"
            raise UsageError(
                FaultCode.BAD_OPTION, operation, f"there is no version {version!r}; {said}",
                "take a version of `ckptd deliver --list TARGET`",
            )  # fmt: skip
        if there[version].current and not force:
            raise UsageError(
                FaultCode.WRONG_STATE, operation, f"{version} is what people get there now",
                "deliver another version first, or remove it all the same with --force",
            )  # fmt: skip
    _of(ask(_with_secret(target), "remove", REMOVE_SECONDS, settings.limits.pass_environment, remove=tuple(versions)))
    return list(versions)


def _with_secret(target: DeliverTarget) -> DeliverTarget:
    """The target with its secret, which who only fills the queue need not be able to read. Raises UsageError."""
    try:
        return target.with_secret(needed=True)
    except ValueError as error:
        raise UsageError(
            FaultCode.NO_PERMISSION, f"ask {target.name}", f"its secret: {error}", "run this command as the daemon's user",
            path=target.secret_file,
        ) from None  # fmt: skip


def _of(end: End) -> End:
    """The answer. Raises its fault."""
    if end.fault is not None:
        raise _error(end)
    return end


def _error(end: End) -> CkptdError:
    fault = end.fault
    assert fault is not None
    kind = Permanent if end.permanent else Retryable
    return kind(fault.code, fault.operation, fault.cause, fault.remedy, path=fault.path)
