"""What the service's user may not read of what it is configured to, and the commands that let it.

Asked of the kernel: a child process becomes that user. Folders above the one that is asked about are tried each by itself, by descriptors
that root opened, since one that is closed would hide those below it.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from daemon.installing.actions import Action, Undo
from daemon.system.processes.as_user import ask_as

_COMPILED = "__pycache__"
"""Folder of compiled files, which Python makes again where it may not read them: a daemon's are its user's alone."""
_MOST = 20_000
"""Entries that are tried below one folder."""
NOBODY = 65534
"""Stands for a user that is not there yet: it belongs to no group and owns nothing."""


@dataclass(frozen=True)
class Lack:
    """What the user lacks on one folder that it must read."""

    folder: str
    above: tuple[str, ...]
    """Folders above it that it can't pass."""
    below: str
    """The first path in it, or itself, that it can't read; "" where it can read all that was tried."""
    private_of: str
    """Id of the owner of weights in it that this owner alone may read: the next ones will be closed too; "" where there are none."""


def lacking(folders: Iterable[Path], user: int, groups: Sequence[int]) -> list[Lack]:
    """What keeps a user with these groups (the first is its own) from reading the folders. Only root can ask; folders that do not exist
    lack nothing."""
    wanted = [Path(os.path.realpath(folder)) for folder in folders if os.path.isdir(folder)]
    opened = [[os.open(part, os.O_PATH | os.O_DIRECTORY) for part in (*reversed(folder.parents), folder)] for folder in wanted]
    try:
        answer = ask_as(
            user, groups, lambda: [asdict(_tried(folder, descriptors)) for folder, descriptors in zip(wanted, opened, strict=True)]
        )
    finally:
        for number in itertools.chain.from_iterable(opened):
            os.close(number)
    lacks = [Lack(**{**fields, "above": tuple(fields["above"])}) for fields in answer]
    return [replace(lack, private_of=_private_of(lack.folder, user) if lack.below else "") for lack in lacks if lack.above or lack.below]


def may_read(file: Path, user: int, groups: Sequence[int]) -> bool:
    """Whether a user with these groups (the first is its own) may read a file. Only root can ask."""
    return bool(ask_as(user, groups, lambda: os.access(file, os.R_OK, effective_ids=True)))


def _private_of(folder: str, user: int) -> str:
    """The owner of the first weights that their owner alone may read."""
    count = 0
    for place, folders, files in os.walk(folder):
        folders.sort()
        count += len(files)
        for name in files:
            status = os.stat(f"{place}/{name}", follow_symlinks=False)
            if name.endswith(".safetensors") and stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077 and status.st_uid != user:
                return str(status.st_uid)
        if count > _MOST:
            break
    return ""


def _tried(folder: Path, descriptors: Sequence[int]) -> Lack:
    above = [
        str(parent) for parent, number in zip(reversed(folder.parents), descriptors, strict=False)
        if not os.access(".", os.X_OK, dir_fd=number, effective_ids=True)
    ]  # fmt: skip
    if not os.access(".", os.R_OK | os.X_OK, dir_fd=descriptors[-1], effective_ids=True):
        return Lack(str(folder), tuple(above), str(folder), "")
    count = 0
    for place, folders, files, number in os.fwalk(".", dir_fd=descriptors[-1]):
        folders[:] = [name for name in folders if not name.startswith(".") and name != _COMPILED]
        for names, right in ((folders, os.R_OK | os.X_OK), (files, os.R_OK)):
            for name in names:
                is_link = stat.S_ISLNK(os.stat(name, dir_fd=number, follow_symlinks=False).st_mode)
                if not is_link and not os.access(name, right, dir_fd=number, effective_ids=True):
                    return Lack(str(folder), tuple(above), os.path.normpath(folder / place / name), "")
        count += len(folders) + len(files)
        if count > _MOST:
            break
    return Lack(str(folder), tuple(above), "", "")


def granting(lacks: Iterable[Lack], user: str) -> list[Action]:
    """ACLs that let the user read, for what is there and for what comes, each with what takes it back."""
    actions: list[Action] = []
    for lack in lacks:
        for folder in lack.above:
            actions.append(_acl(("-m", f"u:{user}:x", folder), ("-x", f"u:{user}", folder)))
        if lack.below:
            actions.append(_acl(("-R", "-m", f"u:{user}:rX", lack.folder), ("-R", "-x", f"u:{user}", lack.folder)))
            actions.append(_acl(("-R", "-d", "-m", f"u:{user}:rX", lack.folder), ("-R", "-d", "-x", f"u:{user}", lack.folder)))
    return list(dict.fromkeys(actions))


def _acl(words: tuple[str, ...], back: tuple[str, ...]) -> Action:
    return Action(("setfacl", *words), undo=Undo(kind="command", argv=("setfacl", *back)))
