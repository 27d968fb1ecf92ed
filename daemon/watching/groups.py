"""Watches roots side by side: those on one mount by one thread, so that a mount which does not answer holds up no other.

A dead server's mount holds whoever asks it. The thread that asked waits with it; its roots are told as silent, and go on by themselves.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from daemon.config.settings import Settings
from daemon.contract.disk.answers import ask, real_path, silent_for
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.system.filesystems.mounts import mount_of, mounts
from daemon.system.logger import Logger
from daemon.watching.links import Links
from daemon.watching.resting import Incomplete
from daemon.watching.taking.intake import INCOMING, Intake
from daemon.watching.watcher import Watcher

log = Logger("watch")

BUSY_SECONDS = 10.0
"""A watcher that has been at one piece of work for this long is asked about: it may be a large pin, or a mount that does not answer."""
ANSWER_SECONDS = 0.5
"""What the question takes at most of the caller's time."""
SILENT_SECONDS = 5.0
"""A mount that has not answered a plain question for this long does not answer."""
STOP_SECONDS = 2.0
"""What a watcher of links that are followed no longer may take to end."""
_numbers = itertools.count(1)


class Watchers:
    """One watcher for the roots of each mount, and for the links on each that lead out of the roots."""

    def __init__(
        self, settings: Settings, intake: Intake, taken: Callable[[], None], made: Callable[[Watcher], object] = lambda watcher: None
    ) -> None:  # fmt: skip
        """`made` is called with each watcher before it starts."""
        self._settings, self._intake, self._taken, self._made = settings, intake, taken, made
        self._links = Links(settings)
        self._silent: dict[Path, float] = {}
        self._of: dict[Path, Watcher] = {}
        self._stopping = False
        self.each: list[Watcher] = []
        """The watchers, one for each mount."""
        groups = groups_of(settings.watch.roots)
        for group in groups:
            self._make(group, frozenset(str(root) for other in groups if other is not group for root in other))

    def _make(self, roots: tuple[Path, ...], elsewhere: frozenset[str] = frozenset(), outer: Mapping[Path, Path] | None = None) -> Watcher:
        """A watcher of `roots`. `outer`: where these are links, the roots below which they lie."""
        # Its own name, also against a watcher from before a reload that still waits for its mount.
        own = replace(self._intake, incoming=f"{INCOMING}-{next(_numbers)}", outer=outer or {})
        watch = self._settings.watch.model_copy(update={"roots": roots})
        settings = self._settings.model_copy(update={"watch": watch})
        watcher = Watcher(settings, own, self._taken, elsewhere=elsewhere, linked=roots if outer else ())
        self._made(watcher)
        self.each = [*self.each, watcher]
        self._of = {**self._of, **dict.fromkeys(roots, watcher)}
        return watcher

    @property
    def links(self) -> tuple[Path, ...]:
        """The links below roots that are watched as roots."""
        return tuple(self._links.followed)

    def _follow(self) -> None:
        """Watch the links that are to be followed, each mount's by one watcher, and no others."""
        wanted = groups_of(tuple(sorted(self._links.followed)))
        own = {watcher.roots: watcher for watcher in self.each if not set(watcher.roots) <= set(self._settings.watch.roots)}
        for roots, watcher in own.items():
            if not any(set(roots) == set(group) for group in wanted):
                self.each = [other for other in self.each if other is not watcher]
                self._of = {root: other for root, other in self._of.items() if other is not watcher}
                watcher.stop(STOP_SECONDS)
        for group in wanted:
            if not any(set(roots) == set(group) for roots in own):
                self._make(group, outer={link: self._links.followed[link] for link in group}).start()

    def start(self) -> None:
        """Start every thread; comes back when the roots that answer are watched."""
        for watcher in self.each:
            watcher.start()
        for watcher in self.each:
            watcher.ready.wait(SILENT_SECONDS)

    def stop(self) -> None:
        """End the threads and the observers; a thread whose mount does not answer is left behind."""
        self._stopping = True
        self.look()
        for watcher in self.each:
            watcher.end()
        answering = self.answering
        for watcher in self.each:
            watcher.stop(patience=10 if watcher in answering else 0.1)

    def look(self) -> None:
        """Find out which mounts do not answer, and say when that begins and ends; and which links lead out of the roots."""
        self._look_at_mounts()
        if not self._stopping:
            seen = {root: links for root in self._settings.watch.roots if (links := self._of[root].tracker.links.get(root)) is not None}
            if self._links.look({root: links for root, links in seen.items() if root not in self._silent}):
                self._follow()

    def _look_at_mounts(self) -> None:
        silent = {}
        for root, watcher in self._of.items():
            if watcher.busy_for() > BUSY_SECONDS and (since := _unanswered(root)) is not None:
                silent[root] = self._silent.get(root, time.monotonic() - since)
        for root in silent.keys() - self._silent.keys():
            log.warning(
                f"The file system of the watched root {root} does not answer. Its checkpoints wait and no other root does; it goes on by"
                " itself. Look at the mount and its server.",
                event_id=Event.ROOT_SILENT,
                code=FaultCode.ROOT_SILENT,
            )
        for root in self._silent.keys() - silent.keys():
            log.info(
                "the file system of a watched root answers again",
                event_id=Event.ROOT_ANSWERS,
                root=str(root),
                seconds=round(time.monotonic() - self._silent[root], 1),
            )
        self._silent = silent

    @property
    def silent(self) -> dict[Path, float]:
        """Root whose file system does not answer → since when, of the monotonic clock; as the last look found it."""
        return dict(self._silent)

    @property
    def answering(self) -> list[Watcher]:
        """The watchers of the mounts that answer."""
        return [watcher for watcher in self.each if not any(self._of[root] is watcher for root in self._silent)]

    def look_again(self) -> None:
        """Look at everything soon; may be called from any thread."""
        for watcher in self.each:
            watcher.look_again()

    @property
    def last_scan(self) -> float:
        """When the scan ended that is longest ago, of the roots that answer."""
        return min((watcher.last_scan for watcher in self.answering), default=time.monotonic())

    @property
    def incomplete(self) -> dict[Path, Incomplete]:
        """Quiet directories that are not whole. May be asked from any thread, as the next."""
        return {path: entry for watcher in self.each for path, entry in dict(watcher.tracker.listing.incomplete).items()}

    @property
    def passed_over(self) -> dict[Path, str]:
        """Directory that holds a checkpoint → why it is not taken, and what to set."""
        return {path: why for watcher in self.each for path, why in watcher.tracker.listing.passed_over.items()}

    @property
    def delayed(self) -> dict[Path, Fault]:
        """Complete checkpoint that can't be pinned now → what it waits for."""
        return {path: fault for watcher in self.each for path, fault in watcher.tracker.listing.delayed.items()}

    @property
    def unreadable(self) -> dict[Path, Fault]:
        """Directory that can't be read → why: mostly who lacks which right, and the command."""
        return {path: fault for watcher in self.each for path, fault in watcher.tracker.listing.unreadable.items()}

    def backend_of(self, root: Path) -> str:
        """"inotify" or "poll": how this root is watched."""  # fmt: skip
        return self._of[root].backend_of(root)

    def exists(self, root: Path) -> bool:
        """Whether the root was there when it was last looked for."""
        return self._of[root].exists(root)


def groups_of(roots: tuple[Path, ...]) -> list[tuple[Path, ...]]:
    """Roots by the mount that they lie on; a link is followed where its file system answers."""
    table, groups = mounts(), dict[str, list[Path]]()
    for root in dict.fromkeys(roots):
        mount = mount_of(str(real_path(root)), table)
        groups.setdefault(mount.mountpoint if mount else "/", []).append(root)
    return [tuple(group) for group in groups.values()]


def _unanswered(root: Path) -> float | None:
    """Seconds for which a plain question about the root has waited for its answer; None where it answers, or has only just been asked."""
    since = silent_for(str(root))
    if since is None:
        try:
            ask(str(root), lambda: os.path.exists(root), ANSWER_SECONDS)
        except TimeoutError:
            since = silent_for(str(root))
    return since if since is not None and since >= SILENT_SECONDS else None
