"""watchdog's observers over the roots: they turn events into hints and tell when they can no longer be trusted.

Owned by the watcher's thread. The handler only puts names into a queue: an exception there would end watchdog's
thread without a word.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from daemon.scan import file_system_type, is_remote
from daemon.settings import WatchSettings

_OWN_READS = ("opened", "closed_no_write")


class _Hints(FileSystemEventHandler):
    """Turns events into names in a queue; our own reading is no event."""

    def __init__(self, hints: queue.SimpleQueue[str]) -> None:
        self._hints = hints

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in _OWN_READS:
            return
        for path in (event.src_path, event.dest_path):
            if path:
                text = path.decode(errors="surrogateescape") if isinstance(path, bytes) else path
                self._hints.put(text + ("/" if event.is_directory else ""))


class Observers:
    """The observer of all roots that give events; `roots` maps each to its device and inode, None while it does not exist."""

    def __init__(self, settings: WatchSettings, hints: queue.SimpleQueue[str], say_once: Callable[[str, str], None]) -> None:
        self._backend = settings.backend
        self._hints = hints
        self._say_once = say_once
        self._observer: BaseObserver | None = None
        self.roots: dict[Path, tuple[int, int] | None] = dict.fromkeys(settings.roots)
        self._polled = {root: self._must_poll(root) for root in settings.roots}

    def _must_poll(self, root: Path) -> bool:
        return self._backend == "poll" or (self._backend == "auto" and is_remote(file_system_type(root)))

    def backend_of(self, root: Path) -> str:
        """"inotify" or "poll": how this root is watched."""  # fmt: skip
        return "poll" if self._polled[root] else "inotify"

    def any_polled(self) -> bool:
        """Whether some root gives no events."""
        return any(self._polled.values())

    def renew(self) -> None:
        """Make a fresh observer for all roots that give events. Roots may come later; the rescan sees to that."""
        old, self._observer = self._observer, None
        if old is not None:
            old.stop()
        observer = Observer()
        observer.start()
        handler = _Hints(self._hints)
        for root in self.roots:
            self.roots[root] = _device_and_inode(root)
            if self._polled[root] or self.roots[root] is None:
                continue
            try:
                observer.schedule(handler, str(root), recursive=True)
            except OSError as error:
                self._say_once(f"watch:{root}", f"Cannot watch {root} by events ({error.strerror}); scanning instead. If a limit was hit, "
                               "raise it: sysctl fs.inotify.max_user_watches, fs.inotify.max_user_instances")  # fmt: skip
                self._polled[root] = True
        self._observer = observer

    def are_sound(self) -> bool:
        """Alive, every emitter alive, and every root still the directory that was registered."""
        if self._observer is None or not self._observer.is_alive() or not all(emitter.is_alive() for emitter in self._observer.emitters):
            return False
        return all(_device_and_inode(root) == known for root, known in self.roots.items())

    def stop(self) -> None:
        """End watchdog's threads."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(5)
            self._observer = None


def _device_and_inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino)
