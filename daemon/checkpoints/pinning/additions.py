"""Adapters that are merged beside a checkpoint's own: looked at like a checkpoint, and pinned with it.

Called by the intake when a checkpoint is taken, and by `ckptd queue retry`. They lie below the checkpoint's pin, so that they come and go
with it. They are copied, never hard-linked: whoever improves an adapter in place meanwhile can't change the export. Headers and small JSON
files are read, and whole files for the digest; whether the deltas can be added is the merge's to say.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.checkpoints.files import Fingerprint, fingerprint
from daemon.checkpoints.inspection import Inspection, inspect
from daemon.checkpoints.layouts import PATIENCE_SECONDS, TABLE
from daemon.checkpoints.models.base_models import find_base
from daemon.checkpoints.names import ADAPTERS, step_of
from daemon.checkpoints.pinning.pins import Moved, PinRules, identify, make_pin
from daemon.contract.disk import away
from daemon.contract.disk.answers import ask
from daemon.contract.disk.files import fsync_directory
from daemon.contract.faults.errors import Permanent, Retryable, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import ADDITIONS, Addition

if TYPE_CHECKING:
    from daemon.config.known import AnyBases, AnyMerge
    from daemon.config.settings import AddedAdapter, BaseModelSettings, MergeSettings
    from daemon.system.episodes import Away

_OPERATION = "merge an adapter beside the checkpoint's own"
FULL = "full"
ANSWER_SECONDS = 2.0
"""For a look at an addition, whose file system may not answer: the watcher has others to look at."""
SPOT = 4096
SPOTS = 256
"""Bytes of a look into a weight file, and looks: 1 MiB. What differs in a twentieth of a file is overlooked once in 500,000 times."""


@dataclass(frozen=True)
class Added:
    """The additions of a pin, and what has to be said about them."""

    additions: tuple[Addition, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settling:
    """Whether additions have been left alone for long enough: half of a save may look whole, and one that is replaced is gone meanwhile.

    One that was written long ago is taken at once; any other state, missing or damaged too, counts when it has been the same for
    PATIENCE_SECONDS. So a checkpoint waits no longer than that for an adapter that nobody writes.
    """

    gone: Away | None = None
    """What of them is missing or unreadable, since when; None where nothing waits for that."""
    _seen: dict[Path, tuple[Fingerprint | None, float]] = field(default_factory=dict)
    """Addition → the state in which it was seen last, None where it can't be read, and since when, by the monotonic clock."""
    _asking: threading.Lock = field(default_factory=threading.Lock)
    """Each mount has a thread that takes checkpoints in."""

    def check(self, wanted: Sequence[AddedAdapter]) -> None:
        """Raise Retryable where one may still be written, or is away and waited for."""
        for adapter in wanted:
            if self.gone is not None:
                self._wait_for(adapter.path, self.gone)
            (state, old), now = _state(adapter.path), time.monotonic()
            if adapter.path not in self._seen or self._seen[adapter.path][0] != state:
                self._seen[adapter.path] = (state, now)
            if not old and now - self._seen[adapter.path][1] < PATIENCE_SECONDS:
                raise Retryable(
                    FaultCode.STILL_WRITTEN, _OPERATION, "it was written a moment ago or is incomplete, so it may still be written",
                    f"nothing; the export starts when that adapter has not changed for {PATIENCE_SECONDS:.0f} s", path=adapter.path,
                )  # fmt: skip

    def _wait_for(self, path: Path, gone: Away) -> None:
        """Raise Retryable where an addition is missing or unreadable and is waited for."""
        problem, name = _problem(path), str(path)
        with self._asking:
            if problem is None:
                gone.there(name, only=(name,))
                gone.ended(name)
                return
            remedy = f"{away.REMEDY} (limits.away_hours; the checkpoint is taken then, so keep it; or correct the path in merge.add)"
            absent = Retryable(FaultCode.SOURCE_AWAY, _OPERATION, away.cause_of(problem), remedy, path=problem.filename or path)
            if gone.waits(name, name, absent.fault) is not None:
                raise absent


def _problem(path: Path) -> OSError | None:
    """Why an addition, or a file that an adapter has, is away; None where what is there can be read."""
    try:
        return ask(f"problem of {path}", lambda: _problem_of(path), ANSWER_SECONDS)
    except TimeoutError as error:
        return error


def _problem_of(path: Path) -> OSError | None:
    names = [name for name in ("adapter_config.json", *ADAPTERS) if os.path.lexists(path / name)]
    whole = away.problem_of_whole(path)
    return whole or next(filter(None, map(away.problem_of, (path / name for name in names))), None)


def _state(path: Path) -> tuple[Fingerprint | None, bool]:
    """The state of an addition, and whether it is a whole adapter that was written long ago."""
    try:
        return ask(f"addition {path}", lambda: _state_now(path), ANSWER_SECONDS)
    except TimeoutError:
        return None, False


def _state_now(path: Path) -> tuple[Fingerprint | None, bool]:
    if _problem_of(path) is not None:
        return None, False
    try:
        seen, newest = fingerprint(path), path.stat().st_mtime
        whole = inspect(path).complete
    except OSError:
        return None, False
    newest = max([newest, *(mtime / 1e9 for *_, mtime in seen)])
    return seen, whole and newest < time.time() - PATIENCE_SECONDS


def name_of(folder: Path) -> str:
    """What people call an adapter: its folder's name, with the run's before that of a numbered checkpoint."""
    return folder.name if step_of(folder) is None else f"{folder.parent.name}/{folder.name}"


def unpinned(wanted: Sequence[AddedAdapter]) -> tuple[Addition, ...]:
    """Additions that could not be used, as the report names them."""
    return tuple(Addition(name=name_of(adapter.path), path=str(adapter.path), weight=adapter.weight, digest="") for adapter in wanted)


def pin_additions(wanted: MergeSettings, checkpoint: Inspection, bases: BaseModelSettings, pin: Path, reserve: int) -> Added:
    """Pin the adapters that `[merge]` adds to a checkpoint below that checkpoint's pin.

    Raises Permanent, in one sentence, where one can't be used; Retryable where it is being written or there is no room for its copy.
    `reserve`: bytes of free disk that copies leave alone.
    """
    _refuse_whole_model(wanted, checkpoint)
    additions: list[Addition] = []
    warnings: list[str] = []
    for number, adapter in enumerate(wanted.add):
        folder = pin / ADDITIONS / str(number)
        warnings += _pin(adapter.path, checkpoint, bases, folder, reserve)
        warnings += _twice(pin, folder, adapter.path, additions)
        additions.append(Addition(name=name_of(adapter.path), path=str(adapter.path), weight=adapter.weight, digest=identify(folder)))
    if additions:
        _sync(pin)
    return Added(tuple(additions), tuple(warnings))


def _twice(pin: Path, folder: Path, path: Path, before: Sequence[Addition]) -> list[str]:
    """The warning that an addition has the weights of the checkpoint's own adapter, or of an addition before it, and so counts twice."""
    others = [("the checkpoint itself", pin), *((addition.name, pin / ADDITIONS / str(number)) for number, addition in enumerate(before))]
    for name, other in others:
        if any((folder / file).is_file() and (other / file).is_file() and filecmp.cmp(folder / file, other / file, shallow=False)
               for file in ADAPTERS):  # fmt: skip
            return [
                f"The adapter {name_of(path)} ({path}) has the same weights as {name}, so they are added with the sum of both factors."
                " If you do not want that, leave it out of merge.add (or --add)."
            ]
    return []


def _refuse_whole_model(wanted: AnyMerge, checkpoint: Inspection) -> None:
    if checkpoint.method == FULL and (wanted.add or wanted.weight != 1):
        what = "merge.add" if wanted.add else "merge.weight"
        raise Permanent(
            FaultCode.ADAPTERS_NOT_ADDITIVE, _OPERATION,
            f"the checkpoint is a whole model without an adapter, and {what} is for adapters over one base",
            f"leave {what} out for this checkpoint, with a separate configuration; to merge an adapter into this model, train the adapter"
            " with this model as its base",
            path=checkpoint.path,
        )  # fmt: skip


def pin_again(additions: Sequence[Addition], pin: Path) -> bool:
    """Pin the additions of a job anew below the pin; whether each is still what it was. Raises OSError, and Moved while one is written."""
    for number, addition in enumerate(additions):
        folder = pin / ADDITIONS / str(number)
        make_pin(Path(addition.path), folder, fingerprint(Path(addition.path)), PinRules(sys.maxsize))
        if identify(folder) != addition.digest:
            return False
    if additions:
        _sync(pin)
    return True


def changed(additions: Sequence[Addition], pin: Path, *, deep: bool) -> str | None:
    """Name of an addition whose pin is not there, or (`deep`) has other content than when it was taken; None where all are."""
    for number, addition in enumerate(additions):
        folder = pin / ADDITIONS / str(number)
        if not folder.is_dir() or (deep and identify(folder) != addition.digest):
            return addition.name
    return None


def _sync(pin: Path) -> None:
    fsync_directory(pin / ADDITIONS)
    fsync_directory(pin)


def _pin(path: Path, checkpoint: Inspection, bases: BaseModelSettings, folder: Path, reserve: int) -> list[str]:
    """Pin one adapter; what has to be said about it."""
    try:
        with _said_plainly(path):
            seen, warnings = _look(path, checkpoint, bases)
            make_pin(path, folder, seen, PinRules(sys.maxsize, reserve))
    except Moved:
        raise Retryable(
            FaultCode.STILL_WRITTEN, _OPERATION, "it changes while it is read", "wait until it is completely written", path=path
        ) from None
    return warnings


def problems_of(wanted: AnyMerge, bases: AnyBases, checkpoint: Inspection | None = None) -> list[str]:
    """Why adapters of `merge.add` can't be merged beside a checkpoint (None: any that has an adapter), as sentences."""
    try:
        if checkpoint is not None:
            _refuse_whole_model(wanted, checkpoint)
    except Permanent as error:
        return [str(error)]
    problems = []
    for adapter in wanted.add:
        try:
            with _said_plainly(adapter.path):
                _look(adapter.path, checkpoint, bases)
        except Permanent as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(str(from_oserror(error, _OPERATION, str(adapter.path))))
    return problems


def _look(path: Path, checkpoint: Inspection | None, bases: AnyBases) -> tuple[Fingerprint, list[str]]:
    """The state of an adapter that can be used, and what has to be said about it. Permanent for another; OSError."""
    seen = fingerprint(path)
    inspection = inspect(path)
    _check(inspection)
    return seen, [] if checkpoint is None else _check_base(inspection, checkpoint, bases)


@contextlib.contextmanager
def _said_plainly(path: Path) -> Iterator[None]:
    """Raise Permanent in place of the system's errors that somebody has to mend."""
    try:
        yield
    except FileNotFoundError:
        raise Permanent(FaultCode.NO_SUCH_PATH, _OPERATION, "there is no such directory", _CORRECT, path=path) from None
    except NotADirectoryError:
        raise Permanent(FaultCode.NOT_A_DIRECTORY, _OPERATION, "it is a file", "give the adapter's directory", path=path) from None
    except PermissionError:
        raise Permanent(FaultCode.NO_ADAPTER, _OPERATION, "it can't be read by this user", "give it access", path=path) from None


_CORRECT = "correct its path in merge.add (or --add), and run `ckptd export` on the checkpoint"


def _check(inspection: Inspection) -> None:
    """Raise Permanent for what is no complete adapter."""
    if inspection.layout is None:
        raise Permanent(FaultCode.NO_ADAPTER, _OPERATION, "it contains no adapter", _CORRECT, path=inspection.path)
    if inspection.refusal is not None:
        raise Permanent(**inspection.refusal.model_dump())
    if inspection.missing:
        raise Permanent(
            FaultCode.CHECKPOINT_DAMAGED, _OPERATION, "; ".join(inspection.missing),
            "save or copy that adapter again completely, and run `ckptd export` on the checkpoint", path=inspection.path,
        )  # fmt: skip
    if any(row.name == inspection.layout and row.in_pieces for row in TABLE):
        raise Permanent(
            FaultCode.NO_ADAPTER, _OPERATION,
            "it contains a sharded adapter or model, and ckptd merges shards only for the checkpoint itself",
            "export it with the variant pytorch-adapter, and use the folder pytorch-adapter of that export", path=inspection.path,
        )  # fmt: skip
    if inspection.method == FULL:
        raise Permanent(
            FaultCode.NO_ADAPTER,
            _OPERATION,
            "it contains a whole model, not an adapter",
            "use an adapter that was trained on the checkpoint's base",
            path=inspection.path,
        )


def _check_base(adapter: Inspection, checkpoint: Inspection, bases: AnyBases) -> list[str]:
    """Raise Permanent for an adapter over another base; warn where its base is not found. The merge compares the shapes anyway."""
    mine, its = checkpoint.base_name or "", adapter.base_name or ""
    if mine == its:
        return []
    folder, other = (_folder(name, revision, bases) for name, revision in ((mine, checkpoint.base_revision), (its, adapter.base_revision)))
    if folder is None:
        return []  # the export says so itself
    if other is None:
        return [
            f"The adapter {name_of(adapter.path)} names the base {its!r}, which is not found here, and the checkpoint names {mine!r}: only"
            " their shapes show that they are the same. To compare their files, set base.map for that name."
        ]
    if not _same_model(folder, other):
        raise Permanent(
            FaultCode.ADAPTER_FOR_ANOTHER_BASE, _OPERATION,
            f"it was trained on the base {its!r} ({other}), and the checkpoint on {mine!r} ({folder}), which is another model",
            "use an adapter that was trained on the checkpoint's base", path=adapter.path,
        )  # fmt: skip
    return []


def _folder(name: str, revision: str | None, bases: AnyBases) -> Path | None:
    try:
        return find_base(name, revision, bases.search, bases.map)
    except Permanent:
        return None


def _same_model(folder: Path, other: Path) -> bool:
    """Whether two folders are one, or hold weight files of the same names and sizes that are alike wherever they are looked at."""
    return os.path.realpath(folder) == os.path.realpath(other) or _weights(folder) == _weights(other)


def _weights(folder: Path) -> dict[str, tuple[int, str]]:
    """Name → size and digest of a sample of each weight file: fine-tunes of one model have the same headers, and none is read whole."""
    return {file.name: _sampled(file) for pattern in ("*.safetensors", "pytorch_model*.bin") for file in folder.glob(pattern)}


def _sampled(file: Path) -> tuple[int, str]:
    size, digest = file.stat().st_size, hashlib.sha256()
    with open(file, "rb") as stream:
        for number in range(SPOTS):
            stream.seek(max(0, size - SPOT) * number // (SPOTS - 1))
            digest.update(stream.read(SPOT))
    return size, digest.hexdigest()
