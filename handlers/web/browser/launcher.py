"""Becomes a browser that ends with its parent: `python -I -S launcher.py READ WRITE PARENT FOLDER PROGRAM [ARGUMENT…]`.

Started by `chromium.Chromium`. READ and WRITE are the descriptors of two pipes, which the browser gets as 3 and 4, where it looks for them.
What can't be asked for of a browser is done here: it is killed when its parent ends, however that happens; it has no rights that its
user's files don't give, so that it does not raise its own priority either; and its temporary files lie in FOLDER, by a short name, since it
makes a socket there whose path has a greatest length. Imports the standard library alone.
"""

import ctypes
import fcntl
import os
import sys

DEATH_SIGNAL, DROP_RIGHT, KILL, LAST_RIGHT = 1, 24, 9, 63
"""PR_SET_PDEATHSIG and PR_CAPBSET_DROP of prctl(2), SIGKILL, and the largest number that a capability may have."""


def main(read: int, write: int, parent: int, folder: str, command: list[str]) -> None:
    """Does not return."""
    libc = ctypes.CDLL(None)
    libc.prctl(DEATH_SIGNAL, KILL)
    if os.getppid() != parent:
        os._exit(1)
    for right in range(LAST_RIGHT + 1):
        libc.prctl(DROP_RIGHT, right, 0, 0, 0)  # without the right to do so this fails: then there is nothing to drop
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (read, write)]  # 3 or 4 may be one of the two
    for number, descriptor in zip((3, 4), high, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for descriptor in {read, write} - {3, 4}:
        os.close(descriptor)
    place = fcntl.fcntl(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), fcntl.F_DUPFD, 10)  # open as long as the browser lives
    os.execve(command[0], command, {**os.environ, "TMPDIR": f"/proc/{os.getpid()}/fd/{place}"})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
