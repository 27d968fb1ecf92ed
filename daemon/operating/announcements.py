"""Notifications that concern no job: a disk without room, what is away, a journal that was rebuilt."""

from __future__ import annotations

from collections.abc import Callable

from daemon.config.settings import Settings
from daemon.contract.faults.errors import CkptdError, Fault
from daemon.journal.journal import Journal
from daemon.journal.overview import JournalCare
from daemon.journal.rows import now
from daemon.publishing.telling.notifier import Notifier
from daemon.system.filesystems.disks import Shortage


class Announcements:
    """Tells people, by the configuration as it is at that moment."""

    def __init__(self, journal: Journal, notifier: Notifier, settings: Callable[[], Settings]) -> None:
        self._journal, self._notifier, self._settings = journal, notifier, settings

    def tell_rebuilding(self, care: JournalCare) -> None:
        """Notify once that the journal was damaged and rebuilt; it counts as a failure for `notify.on`."""
        rebuilt, notify = care.rebuilt, self._settings().notify
        if rebuilt and notify.wants("failed"):
            body = (
                f"It was set aside as {rebuilt.get('set_aside')} and rebuilt from {rebuilt.get('from')}. Why: {rebuilt.get('why')}. "
                "Check that disk."
            )
            self._announce(f"rebuilt {rebuilt.get('token')}", "failed", "ckptd: the journal was damaged", body)

    def tell_away(self, fault: Fault, over: bool) -> None:
        """Notify that exports wait for something that is away, or that it is back."""
        if not self._settings().notify.wants("waiting"):
            return
        what = fault.path or fault.operation.removeprefix("find ")
        title = f"ckptd: {what} is there now" if over else f"ckptd: exports wait for {what}"
        body = "The exports that waited for it continue automatically." if over else fault.sentence()
        self._announce(f"away {what} {now()} {'over' if over else 'begun'}", "waiting", title, body)

    def tell_disk(self, shortage: Shortage, over: bool) -> None:
        """Notify that an episode without room began or is over."""
        if not self._settings().notify.wants("disk_low"):
            return
        title, body = f"there is enough disk space again on {shortage.folder}", "The work that waited continues automatically."
        if not over:
            title = f"not enough disk space on {shortage.folder}"
            body = f"{shortage.sentence()}. Work waits, nothing is lost, and it continues automatically when there is enough space."
            body += f" {shortage.delete}"
        self._announce(f"disk {shortage.folder} {now()} {'over' if over else 'low'}", "disk_low", f"ckptd: {title}", body)

    def _announce(self, occasion: str, kind: str, title: str, body: str) -> None:
        """Notify once for each occasion; while the journal can't be written the message goes out without it."""
        try:
            self._journal.outbox.announce(occasion, kind, title, body)
        except CkptdError:
            self._notifier.tell(kind, title, body)
        self._notifier.wake()
