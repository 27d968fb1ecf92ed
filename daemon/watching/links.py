"""Links below the roots that lead out of what is watched: `ln -s /fast/disk/run runs/run` is a run like any other.

Called by `daemon.watching.groups`, which watches each such link as a root of its own, on its own mount, by `explain`, and by `check` and
the installation, which ask who may read what they lead to. A link into a
root is not followed, since what it leads to is found there; nor is one to a folder around a root, or around our own folders: a walk
would go round in circles. Links below a link are not followed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.contract.disk.answers import ask
from daemon.contract.faults.events import Event
from daemon.contract.faults.text import is_text
from daemon.system.logger import Logger
from daemon.watching.scan import Scanner, rules_of

if TYPE_CHECKING:
    from daemon.config.known import AnySettings
    from daemon.config.settings import Settings

log = Logger("watch")

MOST_FOLLOWED = 64
"""Links that are followed; each costs watches, and those on one mount share a thread."""
LOOK_SECONDS = 60.0
"""Between two looks at where the same links lead."""
ANSWER_SECONDS = 1.0


class Links:
    """The links that are followed. Asked by the main thread alone."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._looked: dict[Path, tuple[tuple[str, ...], float]] = {}
        self._of_root: dict[Path, dict[Path, str]] = {}
        """Root → link below it that leads out → the directory to which it leads."""
        self._many = False
        self.followed: dict[Path, Path] = {}
        """Link → the root below which it lies."""

    def look(self, seen: Mapping[Path, tuple[str, ...]]) -> bool:
        """Find out where the links lead that the last scans saw; whether others are followed than before.

        `seen`: root → its links. A root is left as it was where a file system does not answer.
        """
        if self._settings.watch.links == "no":
            return False
        for root, links in seen.items():
            before, at = self._looked.get(root, ((), 0.0))
            if links == before and (not links or time.monotonic() - at < LOOK_SECONDS):
                continue
            try:
                self._of_root[root] = ask(f"links below {root}", partial(leading_out, links, self._settings), ANSWER_SECONDS)
            except TimeoutError:
                continue
            self._looked[root] = (links, time.monotonic())
        followed, targets = dict[Path, Path](), list[str]()
        leading = [(target, link, root) for root, links in self._of_root.items() for link, target in links.items()]
        for target, link, root in sorted(leading, key=lambda row: (row[0].count("/"), row)):
            if not any(_is_in(target, other) for other in targets):
                targets.append(target)
                followed[link] = root
        self._say_many(len(followed))
        followed = dict(list(followed.items())[:MOST_FOLLOWED])
        changed, before_all = followed != self.followed, self.followed
        self.followed = followed
        for link in followed.keys() - before_all.keys():
            log.info("a link leads out of the watched roots; it is watched too", event_id=Event.WATCH_LINK, path=str(link))
        return changed

    def _say_many(self, count: int) -> None:
        if count > MOST_FOLLOWED and not self._many:
            log.warning(
                f"{count} links below the watched roots lead out of them; only {MOST_FOLLOWED} are followed. Put the folders to which they"
                " lead into watch.roots.",
                event_id=Event.WATCH_TOO_MANY,
            )
        self._many = count > MOST_FOLLOWED


def leading_out(links: Iterable[str], settings: AnySettings) -> dict[Path, str]:
    """Those of the links that are followed → the directory to which each leads. Waits for the file systems."""
    roots = [os.path.realpath(root) for root in settings.watch.roots]
    kept = [*roots, os.path.realpath(settings.state_directory), os.path.realpath(settings.output.directory)]
    out = {}
    for link in links:
        # Asked first: a hub's cache holds thousands of links to files. A name that is no text stands in no journal, as that of any run.
        if not os.path.isdir(link) or not is_text(link):
            continue
        target = os.path.realpath(link)
        if not any(_is_in(target, own) or _is_in(own, target) for own in kept):
            out[Path(link)] = target
    return out


def followed_now(settings: Settings, seconds: float) -> list[Path]:
    """The links below the roots that a daemon would follow, found by a walk of each root that takes at most so long."""
    if settings.watch.links == "no":
        return []
    scanner = Scanner(rules_of(settings.watch, settings.state_directory), most_seconds=seconds)
    for root in settings.watch.roots:
        for _ in scanner.find(root, lambda error: None):
            pass
    links = [link for root in settings.watch.roots for link in leading_out(scanner.links.get(root, ()), settings)]
    return links[:MOST_FOLLOWED]


def link_above(root: Path, path: Path) -> Path | None:
    """The first link on the way from a root down to a path; None where there is none."""
    parts = path.relative_to(root).parts
    ways = (root.joinpath(*parts[: index + 1]) for index in range(len(parts)))
    return next((way for way in ways if way.is_symlink()), None)


def _is_in(path: str, folder: str) -> bool:
    """Whether a path is a folder's own, or lies below it; both are real paths."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
