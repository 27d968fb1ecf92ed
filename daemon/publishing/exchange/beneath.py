"""A folder of the output, reached from the top name by name without following a link, and held open while something is published in it.

Called by `daemon.publishing.publication` and `.retention`. Whoever may write in the output could put a link in the place of one
of its folders between a look and a rename; so the folder is opened once, and all that is done in it goes through that handle. A
handle also has a path, `/proc/self/fd/N`, which leads to that very folder whatever its name stands for by now.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.disk.own_folders import enter, named_by
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.publishing.access import Access


@dataclass(frozen=True)
class Spot:
    """A name in a folder that is held open. `path`: for people and records; `at`: for system calls."""

    path: Path
    at: Path

    def hidden(self, ending: str) -> Spot:
        """The hidden name beside it with an ending of ours."""
        return self.beside(f".{self.path.name}{ending}")

    def beside(self, name: str) -> Spot:
        """Another name in the same folder."""
        return Spot(self.path.with_name(name), self.at.with_name(name))


@dataclass(frozen=True)
class Held:
    """The folder `path`, which is held open as `at`."""

    path: Path
    at: Path

    def spot(self, name: str) -> Spot:
        """A name in it."""
        return Spot(self.path / name, self.at / name)


@contextlib.contextmanager
def held_below(top: Path, folder: Path, *, make: bool = False, access: Access | None = None) -> Iterator[Held]:
    """The folder `folder`, below `top` or `top` itself, held open; `make`: with what is missing, durable; `access`: who may enter that.

    `top` itself may be reached through links: that is the configuration's word. Raises Permanent where a link, a file or (with `make`)
    another export is on the way, OSError where the file system refuses or, without `make`, nothing is there.
    """
    if make:
        top.mkdir(parents=True, exist_ok=True)
    handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        path = top
        for name in folder.relative_to(top).parts:
            path = path / name
            inner, made = enter(handle, name, path, _in_the_way, make=make)
            os.close(handle)
            handle = inner
            if make and _is_export(handle):  # in which nothing else is ever put
                raise _in_the_way(path, "is another export")
            if made and access is not None:
                if access.group is not None:
                    os.chown(handle, -1, access.group)
                os.chmod(handle, access.around)
        at = Path(f"/proc/self/fd/{handle}")
        with named_by(at, path):
            yield Held(path, at)
    finally:
        os.close(handle)


def _is_export(folder: int) -> bool:
    try:
        os.stat(MANIFEST, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def _in_the_way(path: Path, what: str) -> Permanent:
    return Permanent(
        FaultCode.TARGET_TAKEN, "publish the export", f"its folder would be below {path}, which {what}; ckptd does not write through it",
        "move that away and run `ckptd queue retry` on the job, or run `ckptd export` on its checkpoint, which uses another folder",
        path=path,
    )  # fmt: skip
