"""Notifications that concern no export's end: a disk without room, what is away, a daemon that is not well, the daily digest.

A condition is told as it begins and as it is over, not again in between: the journal remembers what was told, also over restarts.
"""

from __future__ import annotations

from collections.abc import Callable

from daemon.config.settings import Settings
from daemon.contract.faults.errors import CkptdError, Fault
from daemon.journal.journal import Journal
from daemon.journal.overview import JournalCare
from daemon.journal.rows import Notice
from daemon.operating.last_end import LastEnd
from daemon.operating.monitoring.live import LiveFile
from daemon.publishing.telling.notifier import Notifier
from daemon.system.filesystems.disks import Shortage

BEGUN, OVER = "begun", "over"


class Announcements:
    """Tells people, by the configuration as it is at that moment."""

    def __init__(self, journal: Journal, notifier: Notifier, settings: Callable[[], Settings]) -> None:
        self._journal, self._notifier, self._settings = journal, notifier, settings
        self._told: dict[str, str] = {}
        """Condition → its state that was told while the journal could not be written."""

    def tell_rebuilding(self, care: JournalCare) -> None:
        """Notify once that the journal was damaged and rebuilt; those who are told of what "failed" are told too."""
        if rebuilt := care.rebuilt:
            body = (
                f"It was set aside as {rebuilt.get('set_aside')} and rebuilt from {rebuilt.get('from')}. Why: {rebuilt.get('why')}. "
                "Check that disk."
            )
            about = {"events": ["daemon_unwell", "failed"], "subject": "journal"}
            self._once(f"rebuilt {rebuilt.get('token')}", Notice("daemon_unwell", "ckptd: the journal was damaged", body, about))

    def tell_last_end(self, end: LastEnd | None) -> None:
        """Notify once that the daemon before this one ended by itself."""
        if end is not None:
            body = f"It ended at {end.at}, and was started again. {end.why}"
            self._once(f"ended {end.at}", Notice("daemon_unwell", "ckptd ended by itself", body, {"subject": "daemon"}))

    def tell_killed(self, last: LiveFile) -> None:
        """Notify once that the daemon before this one did not shut down cleanly. `last`: what it wrote last."""
        if last.in_order is False:
            body = "It was killed or it crashed, or the machine stopped. "
            body += f"It was last seen alive at {last.time}. It was started again, and the open exports continue."
            title = "ckptd did not shut down cleanly"
            self._once(f"killed {last.started} {last.pid}", Notice("daemon_unwell", title, body, {"subject": "daemon"}))

    def tell_death(self, thread: str, at: str, why: str) -> None:
        """Notify that a thread died; it was started again."""
        body = f"It began again by itself. {why}"
        self._once(f"death {thread} {at}", Notice("daemon_unwell", f"ckptd: the thread {thread} died", body, {"subject": thread}))

    def tell_unwell(self, sentences: tuple[str, ...], over: bool) -> None:
        """Notify that the daemon is not well, or is well again."""
        title, body = "ckptd is not well", "\n".join([*sentences, "`ckptd status` shows more."])
        if over:
            title, body = "ckptd is well again", "It works as it should."
        self._change("unwell", over, Notice("recovered" if over else "daemon_unwell", title, body, {"subject": "daemon"}))

    def tell_stuck(self, sentence: str, over: bool) -> None:
        """Notify that open exports make no progress, or make some again."""
        title, body = "ckptd: exports make no progress", f"{sentence}\n`ckptd status` shows more."
        if over:
            title, body = "ckptd: exports make progress again", "What waited goes on."
        self._change("stuck", over, Notice("recovered" if over else "stuck", title, body, {"subject": "queue"}))

    def tell_away(self, fault: Fault, over: bool) -> None:
        """Notify that exports wait for something that is away, or that it is back."""
        what = fault.path or fault.operation.removeprefix("find ")
        title = f"ckptd: {what} is there now" if over else f"ckptd: exports wait for {what}"
        body = "The exports that waited for it continue automatically." if over else fault.sentence()
        about = {"subject": what} if over else {"subject": what, "remedy": fault.remedy}
        self._change(f"away {what}", over, Notice("recovered" if over else "stuck", title, body, about))

    def tell_disk(self, shortage: Shortage, over: bool) -> None:
        """Notify that an episode without room began or is over."""
        title, body = f"there is enough disk space again on {shortage.folder}", "The work that waited continues automatically."
        if not over:
            title = f"not enough disk space on {shortage.folder}"
            body = f"{shortage.sentence()}. Work waits, nothing is lost, and it continues automatically when there is enough space."
            body += f" {shortage.delete}"
        about = {"subject": shortage.folder, **({} if over or not shortage.delete else {"remedy": shortage.delete})}
        self._change(f"disk {shortage.folder}", over, Notice("recovered" if over else "disk_low", f"ckptd: {title}", body, about))

    def state_of(self, condition: str) -> str:
        """What was told of a condition last, also by an earlier daemon."""
        return self._told.get(condition) or self._journal.outbox.state_of(condition)

    def _once(self, occasion: str, notice: Notice) -> None:
        """Notify once for each occasion; while the journal can't be written the message goes out without it."""
        if not self._settings().notify.wants(*notice.events):
            return
        try:
            self._journal.outbox.announce(occasion, notice)
        except CkptdError:
            self._notifier.tell(notice)
        self._notifier.wake()

    def _change(self, condition: str, over: bool, notice: Notice) -> None:
        """Notify where this is another state than the one that was told last."""
        state = OVER if over else BEGUN
        wanted = notice if self._settings().notify.wants(*notice.events) else None
        try:
            self._journal.outbox.changed(condition, state, wanted)
            self._told.pop(condition, None)
        except CkptdError:
            if self._told.get(condition) != state and wanted is not None:
                self._notifier.tell(wanted)
            self._told[condition] = state
        self._notifier.wake()
