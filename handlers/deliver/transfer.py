"""The one way of a delivery over any target: read the version, put its files, read them back, finish, and keep the target's rule.

Used by `handlers.deliver.__main__`; knows a target by its interface alone. Calls that may pass are repeated here, so no target retries by
itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from daemon.contract.delivering.orders import Listed, Note, Order, Receipt, Report, Warned
from daemon.contract.disk import failpoints
from daemon.contract.disk.files import read_bounded
from daemon.contract.faults.advice import quoted
from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.deliver.target import SMALL_BYTES, Choosing, Foreseeing, Mending, SideBySide, Target, Unreadable
from handlers.deliver.version import Pace, SourceFile, Version, read_version

TRIES = 4
"""Of a call that failed in a way that may pass, within one attempt; the daemon has the longer patience."""
PAUSE_SECONDS = 1.0
"""Before the second try; twice that before each further one."""
LARGE_AT_ONCE = 2
REPORT_SECONDS = 0.5
REPORT_BYTES = 64 << 20
"""Of a report.json that is read."""

Said = Note | Report | Warned
Result = TypeVar("Result")


class Transfer:
    """One attempt at one delivery."""

    def __init__(self, order: Order, target: Target, say: Callable[[Said], None], sleep: Callable[[float], None] = time.sleep) -> None:
        self._order, self._target, self._say, self._sleep = order, target, say, sleep
        self._sent = self._there = self._read = 0
        self._said_at = 0.0
        self._counting = threading.Lock()

    def deliver(self) -> Receipt:
        """Carry the export there. Raises CkptdError."""
        version = self.version()
        if isinstance(self._target, Foreseeing):
            self._target.foresee(version)
        self._put(version)
        if self._order.read_back:
            self._compare(version)
        failpoints.point("deliver.compared")
        move, why_kept = self._order.move, ""
        if move == "move" and (why_kept := version.why_not_followed):
            move = "keep"
        receipt = self._patiently(lambda: self._target.finish(version, move))
        failpoints.point("deliver.finished")
        removed = self._remove_older(version, receipt)
        return receipt.model_copy(
            update={
                "sent": self._sent,
                "there": self._there,
                "read_back": self._read,
                "removed": (*receipt.removed, *removed),
                "why_not_moved": why_kept if why_kept and not receipt.moved else receipt.why_not_moved,
            }
        )

    def _put(self, version: Version) -> None:
        """Put its files."""

        def put(file: SourceFile) -> None:
            there = self._patiently(lambda: self._target.put(file, lambda count: self._count(count, version)))
            with self._counting:
                self._there += there
            failpoints.point("deliver.put")

        self._each(version, put)

    def _each(self, version: Version, call: Callable[[SourceFile], None]) -> None:
        """Do it with its files, side by side where the target can: what small ones take is the way there and back, and while a far end
        thinks about a large one another can be on its way."""
        at_once = self._target.at_once if isinstance(self._target, SideBySide) else 1
        if at_once == 1:
            for file in version.files:
                call(file)
            return
        files = sorted(version.files, key=lambda file: file.size)
        for file in files[:1]:  # which begins
            call(file)
        others = {file.sha256: file for file in files[1:]}
        self._side_by_side([file for file in others.values() if file.size <= SMALL_BYTES], call, at_once)
        self._side_by_side([file for file in others.values() if file.size > SMALL_BYTES], call, LARGE_AT_ONCE)
        for file in files[1:]:
            if others[file.sha256] is not file:  # the same contents as another file's lie there by now
                call(file)

    def _side_by_side(self, files: Sequence[SourceFile], call: Callable[[SourceFile], None], at_once: int) -> None:
        """Do it with files in several threads; the first error ends it, when what was begun has ended."""
        with ThreadPoolExecutor(at_once) as pool:
            for done in [pool.submit(call, file) for file in files]:
                try:
                    done.result()
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise

    def version(self) -> Version:
        """What is carried. Raises CkptdError."""
        order = self._order
        folder = Path(order.export)
        version = read_version(folder, order.variants, Pace(order.bandwidth), _report_of(folder))
        if order.job and version.export != order.job:
            cause = f"the export of {version.export} lies there now, not that of {order.job}"
            raise Permanent(FaultCode.DELIVERY_SOURCE, "read the export that is delivered", cause, "deliver that one", path=folder)
        return self._target.part(version) if isinstance(self._target, Choosing) else version

    def look(self) -> None:
        """Find out whether it could be carried there. Raises CkptdError."""
        if self._order.export:
            self.version()
        self._target.look()

    def listed(self) -> tuple[Listed, ...]:
        """What lies there. Raises CkptdError."""
        return tuple(self._patiently(lambda: self._target.list(self._order.run)))

    def remove(self) -> None:
        """Take the order's versions away. Raises CkptdError."""
        for name in self._order.remove:
            self._patiently(lambda name=name: self._target.remove(name))  # type: ignore[misc]

    def _count(self, count: int, version: Version) -> None:
        with self._counting:
            self._sent += count
        self._report("sending", (self._sent + self._there) / max(1, version.size))

    def _report(self, message: str, done: float) -> None:
        """Say how far it is, now and then: who sends pieces of 64 KiB would otherwise say it a thousand times a second."""
        if (moment := time.monotonic()) - self._said_at >= REPORT_SECONDS:
            self._said_at = moment
            self._say(Report(fraction=min(1.0, done), message=message, bytes=self._sent))

    def _compare(self, version: Version) -> None:
        """Read what lies there now, and compare it with the manifest's digests."""

        def compare(file: SourceFile) -> None:
            count = self._whole(file, version)
            with self._counting:
                self._read += count

        with contextlib.suppress(Unreadable):
            self._each(version, compare)

    def _whole(self, file: SourceFile, version: Version) -> int:
        """Bytes of a file that is compared, and mended once where something else lies there."""
        try:
            return self._patiently(lambda: self._compared(file, version))
        except Permanent as error:
            target = self._target
            if error.fault.code != FaultCode.DELIVERY_MISMATCH or not isinstance(target, Mending):
                raise
        self._patiently(lambda: target.put_again(file, lambda count: self._count(count, version)))
        count = self._patiently(lambda: self._compared(file, version))
        self._say(Warned(text=f"{quoted(file.path)} was another file at the far end than here, and was put there again"))
        return count

    def _compared(self, file: SourceFile, version: Version) -> int:
        digest, count = hashlib.sha256(), 0
        for part in self._target.read_back(file):
            digest.update(part)
            count += len(part)
            self._report("reading back", (self._read + count) / max(1, version.size))
        if digest.hexdigest() != file.sha256:
            raise Permanent(
                FaultCode.DELIVERY_MISMATCH, "compare what was delivered", f"{file.path} is another file at the far end than here",
                "look for a proxy or a cache between here and there, and deliver again; nothing was made visible",
            )  # fmt: skip
        return count

    def _remove_older(self, version: Version, receipt: Receipt) -> list[str]:
        """Take away what the rule no longer keeps; what that fails with is said, and the delivery stands."""
        removed: list[str] = []
        if not self._order.keep:
            return removed
        try:
            for row in surplus(self._target.list(version.run), receipt.version, self._order.keep):
                self._target.remove(row.version)
                removed.append(row.version)
        except CkptdError as error:
            self._say(Warned(text=error.fault.sentence()))
        return removed

    def _patiently(self, call: Callable[[], Result]) -> Result:
        """Call it again where that may help."""
        pause = PAUSE_SECONDS
        for _ in range(TRIES - 1):
            try:
                return call()
            except Retryable as error:
                if error.delay is not None and error.delay > 4 * pause:
                    raise  # the daemon waits that long
                self._sleep(error.delay or pause)
                pause *= 2
        return call()


def surplus(listed: Sequence[Listed], delivered: str, keep: int) -> list[Listed]:
    """What a target that keeps so many versions of a run takes away, of what lies there, the oldest first: whole versions, and what was
    begun before the oldest that stays. What was just delivered stays, and what people follow."""
    others = [row for row in listed if row.version != delivered and not row.current]
    whole = [row for row in others if row.whole]
    gone = whole[: max(0, len(whole) + 1 - keep)]
    left = [row.step for row in listed if row.whole and row not in gone]
    return [row for row in others if row in gone or (not row.whole and row.step < min(left, default=0))]


def _report_of(folder: Path) -> Json:
    """The export's report; {} where it can't be read, for which nobody's delivery fails."""
    try:
        report = json.loads(read_bounded(folder / "report.json", REPORT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}
