"""Puts the filter over itself, hands the listening end to the test, and becomes the command to be tested.

Run by path by `tests.faults.layer`: `install.py SOCKET AUDIT SECCOMP NUMBER,NUMBER… COMMAND…`. Whatever the command
starts inherits the filter, C code included. Knows nothing of the project, so that it starts in no time.
"""

import array
import ctypes
import errno
import os
import socket
import struct
import sys

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
NOTIFY, ALLOW = 0x7FC00000, 0x7FFF0000
NO_NEW_PRIVILEGES, SET_MODE_FILTER = 38, 1
NEW_LISTENER, WAIT_KILLABLE = 1 << 3, 1 << 5


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def program(audit: int, numbers: list[int]) -> bytes:
    """Classic BPF: ask the listener about these system calls of this architecture, and let every other one through."""
    rows = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, audit), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, 0)]
    rows += [(EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    rows += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOTIFY)]
    return b"".join(struct.pack("=HBBI", *row) for row in rows)


def listen(seccomp: int, code: bytes) -> int:
    """Install the filter; gives the listener's descriptor, or raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    what = Program(len(code) // 8, code)
    # Without the second flag (Linux 5.19) a signal could interrupt a call that is then made, and counted, twice.
    for flags in (NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER):
        listener = libc.syscall(seccomp, SET_MODE_FILTER, flags, ctypes.byref(what))
        if listener >= 0:
            return int(listener)
        if ctypes.get_errno() != errno.EINVAL:
            break
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    """See the module."""
    peer = socket.socket(fileno=int(sys.argv[1]))
    numbers = [int(number) for number in sys.argv[4].split(",")]
    try:
        listener = listen(int(sys.argv[3]), program(int(sys.argv[2]), numbers))
    except OSError as error:
        peer.sendall(f"E{error}".encode())
        os._exit(125)
    peer.sendmsg([b"L"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
    os.close(listener)
    peer.close()
    os.execvp(sys.argv[5], sys.argv[5:])


main()
