"""`python -m tests.detection.fuse_server MOUNTPOINT`: a file system in user space that can be stopped, as a hung NFS or FUSE mount is.

It holds one empty directory `run` and answers until it gets SIGSTOP; then everything that asks for it waits, until SIGCONT. Speaks the
kernel's protocol (linux/fuse.h, version 7.31) on /dev/fuse itself, so that no library is needed. Mounting needs root, or a user namespace
(`unshare --user --map-root-user --mount`). It says "mounted" once it is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import time

LOOKUP, FORGET, GETATTR, STATFS, INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, BATCH_FORGET, READDIRPLUS = (
    1, 2, 3, 17, 26, 27, 28, 29, 34, 36, 42, 44,
)  # fmt: skip
HEADER = struct.Struct("=IIQQIIII")
ROOT, RUN = 1, 2


def attributes(node: int) -> bytes:
    """`struct fuse_attr` of a directory."""
    now = int(time.time())
    return struct.pack(
        "=QQQQQQIIIIIIIIII", node, 0, 0, now, now, now, 0, 0, 0, stat.S_IFDIR | 0o755, 2, os.getuid(), os.getgid(), 0, 4096, 0
    )  # fmt: skip


def entries(offset: int) -> bytes:
    """`struct fuse_dirent` of each entry of the root from `offset` on."""
    found = b""
    for place, (node, name) in enumerate([(ROOT, b"."), (ROOT, b".."), (RUN, b"run")], 1):
        if place > offset:
            found += struct.pack("=QQII", node, place, len(name), stat.S_IFDIR >> 12) + name.ljust(-(-len(name) // 8) * 8, b"\0")
    return found


def answer(code: int, node: int, body: bytes) -> bytes | int | None:
    """The answer's body; an errno; None for what has no answer."""
    if code == INIT:
        return struct.pack("=IIIIHHIIHH8I", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 1, 0, *[0] * 8)
    if code == GETATTR:
        return struct.pack("=QII", 0, 0, 0) + attributes(node)
    if code == LOOKUP:
        if node != ROOT or body.rstrip(b"\0") != b"run":
            return errno.ENOENT
        return struct.pack("=QQQQII", RUN, 0, 0, 0, 0, 0) + attributes(RUN)
    if code == OPENDIR:
        return struct.pack("=QII", 0, 0, 0)
    if code == READDIR:
        return entries(struct.unpack_from("=QQ", body)[1]) if node == ROOT else b""
    if code in (RELEASEDIR, ACCESS):
        return b""
    if code == STATFS:
        return struct.pack("=QQQQQIIII6I", 1000, 500, 500, 100, 50, 4096, 255, 4096, 0, *[0] * 6)
    return None if code in (FORGET, BATCH_FORGET, INTERRUPT) else errno.ENOSYS


def main() -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"ckptd-test", os.fsencode(sys.argv[1]), b"fuse", 0, options) != 0:
        sys.exit(f"could not mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    while True:
        try:
            asked = os.read(device, 1 << 17)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            continue
        _, code, unique, node, *_ = HEADER.unpack_from(asked)
        given = answer(code, node, asked[HEADER.size :])
        if given is not None:
            body, number = (b"", -given) if isinstance(given, int) else (given, 0)
            os.write(device, struct.pack("=IiQ", 16 + len(body), number, unique) + body)


if __name__ == "__main__":
    main()
