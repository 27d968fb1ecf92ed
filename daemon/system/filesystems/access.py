"""What a user may not read, and the commands that change it.

Asks the kernel, as the user that this process is (`access(2)` with the effective ids, so that groups, ACLs and capabilities count), and
looks upwards: what keeps a file from being read is as often a directory above it.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from daemon.contract.faults.advice import in_command
from daemon.contract.light import dataclass

Right = Literal["enter", "list", "read"]
_MODES: dict[Right, int] = {"enter": os.X_OK, "list": os.R_OK | os.X_OK, "read": os.R_OK}


@dataclass(frozen=True)
class Denial:
    """A right that this process's user lacks."""

    path: str
    """The very file or directory that is closed."""
    right: Right
    user: str
    owner: str | None
    """None where not even that can be seen."""
    group: str | None
    mode: int | None
    """Permission bits."""

    @property
    def cause(self) -> str:
        """Who lacks what on which path, as a clause."""
        whose = f" (mode {self.mode:04o}, owner {self.owner}, group {self.group})" if self.mode is not None else ""
        return f"the user {self.user} has no right to {self.right} {self.path}{whose}"

    @property
    def private(self) -> bool:
        """Whether it is a file that its owner alone may read."""
        return self.right == "read" and self.mode is not None and not self.mode & 0o077


def user_name(user: int | None = None) -> str:
    """The name of a user id, by default of the one that this process is; the id where it has none."""
    return _name(lambda number: pwd.getpwuid(number).pw_name, os.geteuid() if user is None else user)


def _name(look: Callable[[int], str], number: int) -> str:
    try:
        return look(number)
    except KeyError:
        return str(number)


def denial(path: Path, right: Right) -> Denial | None:
    """What keeps this process's user from having that right on an absolute path, the outermost first; None where nothing does.

    A path that does not exist denies nothing.
    """
    with contextlib.suppress(ValueError):
        if os.access(path, _MODES[right], effective_ids=True):
            return None  # the kernel goes through all that lies above it
    for folder in reversed(path.parents):
        if not _may(folder, "enter"):
            return _denial(folder, "enter")
    return None if _may(path, right) else _denial(path, right)


def denial_below(folder: Path, names: Iterable[str]) -> Denial | None:
    """The first of `names` below an absolute `folder` that can't be read, or what lies above it; None where all can."""
    above = denial(folder, "list")
    if above is not None:
        return above
    for name in names:
        for inner in reversed(Path(name).parents[:-1]):
            if not _may(folder / inner, "list"):
                return _denial(folder / inner, "list")
        if not _may(folder / name, "read"):
            return _denial(folder / name, "read")
    return None


def _may(path: Path, right: Right) -> bool:
    """Whether nothing is denied: a link that leads nowhere, or back to itself, is no matter of rights."""
    try:
        if os.access(path, _MODES[right], effective_ids=True):
            return True
        os.stat(path)
    except PermissionError:
        return not os.path.lexists(path)
    except (OSError, ValueError):  # ValueError: a name that no file system takes
        return True
    return False


def _denial(path: Path, right: Right) -> Denial:
    status = None
    with contextlib.suppress(OSError):
        status = os.stat(path)
    if status is None:
        return Denial(str(path), right, user_name(), None, None, None)
    group = _name(lambda number: grp.getgrgid(number).gr_name, status.st_gid)
    return Denial(str(path), right, user_name(), user_name(status.st_uid), group, stat.S_IMODE(status.st_mode))


def commands(denial: Denial, below: Path) -> list[str]:
    """The command lines that mend it for what lies in the directory `below` now; run as root or as the owner. None for odd paths."""
    user, target = shlex.quote(denial.user), in_command(denial.path if denial.right == "enter" else below)
    if target is None:
        return []
    return [f"setfacl -m u:{user}:x {target}"] if denial.right == "enter" else [f"setfacl -R -m u:{user}:rX {target}"]


def remedy(denial: Denial, below: Path) -> str:
    """What to do about it, as a clause. `below`: the directory around all that training writes, of the configuration or below a root."""
    now, folder = " && ".join(f"sudo {command}" for command in commands(denial, below)), in_command(below)
    if not now or folder is None:
        return "give that user the right to read it, or rename the folder and do it then"
    if denial.right == "enter":
        return f"give that user access to this folder: `{now}`"
    if denial.owner in (None, _name(lambda number: pwd.getpwuid(number).pw_name, 0)):
        as_owner = "let a user write there as whom the service can run"  # it is no service of root's
    else:
        as_owner = f"run the service as {denial.owner} (`sudo ckptd install-service --run-as {denial.owner}`)"
    if denial.private:
        return (
            f"make the existing files readable: `{now}`; such files are created with mode 0600, whatever umask and default ACL say"
            f" (safetensors 0.8 does this), and so are the next ones; for those {as_owner}"
        )
    later = f"sudo setfacl -R -d -m u:{shlex.quote(denial.user)}:rX {folder}"
    return (
        f"give that user access: `{now}`; to new files also: `{later}`; or use a group that both users are in:"
        f" `sudo chgrp -R GROUP {folder} && sudo chmod -R g+rXs {folder}`, and run the training with"
        f" umask 0027; or {as_owner}"
    )
