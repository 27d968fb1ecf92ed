"""Runs a command that can make no sockets but local ones, and no namespaces, as the service may not: `python no_network.py COMMAND…`.

x86-64 alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys

NO_NEW_RIGHTS, FILTER_CALLS, BY_FILTER = 38, 22, 2
"""PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP and SECCOMP_MODE_FILTER of prctl(2)."""
LOAD, EQUAL, GIVE = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
SOCKET, LOCAL, ARGUMENT = 41, 1, 16
NEVER = {"unshare": 272, "setns": 308, "mount": 165, "chroot": 161, "pivot_root": 155}


def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def restrict() -> None:
    steps = [step(LOAD, 0)]
    for number in NEVER.values():
        steps += [step(EQUAL, number, 0, 1), step(GIVE, REFUSE | errno.EPERM)]
    steps += [step(EQUAL, SOCKET, 0, 3), step(LOAD, ARGUMENT), step(EQUAL, LOCAL, 1, 0), step(GIVE, REFUSE | errno.EAFNOSUPPORT)]
    steps.append(step(GIVE, ALLOW))
    block = ctypes.create_string_buffer(b"".join(steps))
    program = Program(len(steps), ctypes.cast(block, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((NO_NEW_RIGHTS, 1, 0, 0, 0), (FILTER_CALLS, BY_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    restrict()
    try:
        socket.socket(socket.AF_INET).close()
    except OSError:
        os.execv(sys.argv[1], sys.argv[1:])
    sys.exit("the restriction does not hold")
