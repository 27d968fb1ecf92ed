"""A child that misbehaves in the way that its first argument names; the second one is the job file, as for a real child."""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import resource
import signal
import struct
import sys
import time
from pathlib import Path
from typing import NoReturn

from daemon.contract.jobs.messages import ChildLimits, Outcome, StageContext, StageResult
from handlers import __main__ as entry
from handlers.child import process, warm
from handlers.child.progress import Reporter

BOMB = 300
"""Processes after which the fork bomb stops by itself, in case nobody contains it."""


def _sleep() -> NoReturn:
    while True:
        time.sleep(60)


def _succeed(context: StageContext) -> None:
    Path(context.result).write_text(StageResult(outcome=Outcome.SUCCEEDED).model_dump_json())


def segfault(context: StageContext) -> None:
    ctypes.string_at(0)


def abort(context: StageContext) -> None:
    os.abort()


def exit_137(context: StageContext) -> None:
    os._exit(137)


def exit_3(context: StageContext) -> None:
    print("what the library said last", file=sys.stderr)
    os._exit(3)


def no_result(context: StageContext) -> None:
    os._exit(0)


def garbage_result(context: StageContext) -> None:
    Path(context.result).write_bytes(os.urandom(5000))


def truncated_result(context: StageContext) -> None:
    text = StageResult(outcome=Outcome.SUCCEEDED, figures={"key": "value" * 100}).model_dump_json()
    Path(context.result).write_text(text[:-50])


def other_contract(context: StageContext) -> None:
    Path(context.result).write_text(json.dumps({"contract": 99, "outcome": "succeeded"}))


def other_files(context: StageContext) -> None:
    files = [{"path": "model.safetensors", "size": 10, "sha256": "0" * 64}]
    Path(context.result).write_text(json.dumps({"outcome": "succeeded", "files": files}))


def killed(context: StageContext) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stopped(context: StageContext) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    _sleep()


def sleeps(context: StageContext) -> None:
    _sleep()


def beats(context: StageContext) -> None:
    Reporter(sys.stdout).start_heartbeat(0.1)
    _sleep()


def deaf(context: StageContext) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(json.dumps({"fraction": 0.5, "message": "deaf"}), flush=True)
    _sleep()


def finishes_late(context: StageContext) -> None:
    def finish(*_: object) -> None:
        _succeed(context)
        os._exit(0)

    signal.signal(signal.SIGTERM, finish)
    print(json.dumps({"fraction": 0.5, "message": "ready"}), flush=True)
    _sleep()


def fails_when_told(context: StageContext) -> None:
    def fail(*_: object) -> None:
        Path(context.result).write_text(StageResult(outcome=Outcome.PERMANENT).model_dump_json())
        os._exit(0)

    signal.signal(signal.SIGTERM, fail)
    print(json.dumps({"fraction": 0.5, "message": "ready"}), flush=True)
    _sleep()


def garbage_progress(context: StageContext) -> None:
    rows = [
        b"\x00\xff\xfe not utf-8", b"[" * 100_000, b"17", b'"text"', b"null", b'{"fraction": "x", "message": 1}', b'{"fraction": 0.1}',
        b'{"fraction": NaN, "message": "nan"}', b'{"fraction": Infinity, "message": "inf"}', b"x" * 3_000_000,
        b'{"fraction": ' + b"9" * 5000 + b', "message": "long"}',
        *(b'{"warning": "warning %d"}' % number for number in range(150)), b"", *([b'{"warning": "more"}'] * 150),
        b'{"fraction": 0.75, "message": "and \\u001b[31mon"}',
    ]  # fmt: skip
    for row in rows:
        os.write(1, row + b"\n") if len(row) < 60_000 else sys.stdout.buffer.write(row + b"\n")
        sys.stdout.buffer.flush()
        time.sleep(0.002)
    _succeed(context)


def much_progress(context: StageContext) -> None:
    line = json.dumps({"fraction": 0.5, "message": "x" * 60}).encode() + b"\n"
    block = line * (1_000_000 // len(line))
    for _ in range(100):
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    _succeed(context)


def much_log(context: StageContext) -> None:
    print("the first line", file=sys.stderr, flush=True)
    block = b"".join(b"line %08d of a library that talks too much\n" % number for number in range(20_000))
    for _ in range(100_000_000 // len(block)):
        sys.stderr.buffer.write(block)
        sys.stderr.buffer.flush()
    print("the last line", file=sys.stderr, flush=True)
    _succeed(context)


def fork_bomb(context: StageContext) -> None:
    counter = mmap.mmap(-1, 8)
    while True:
        (count,) = struct.unpack("q", counter[:8])
        if count >= BOMB:
            _sleep()
        counter[:8] = struct.pack("q", count + 1)
        os.fork()


def daemonizes(context: StageContext) -> None:
    """A grandchild that leaves group, session and parent behind, and holds on to both pipes."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(context.staging, "daemon.pid").write_text(str(os.getpid()))
            _sleep()
        os._exit(0)
    os.wait()
    while not Path(context.staging, "daemon.pid").exists():
        time.sleep(0.01)
    _succeed(context)


def unmarked(context: StageContext) -> None:
    """As `daemonizes`, with an environment that tells nothing."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(context.staging, "daemon.pid").write_text(str(os.getpid()))
            os.execve("/bin/sleep", ["sleep", "3600"], {})
        os._exit(0)
    os.wait()
    daemonizes(context)


def hog(context: StageContext) -> None:
    held = []
    while True:
        held.append(b"x" * (8 << 20))
        time.sleep(0.02)


def shares(context: StageContext) -> None:
    """200 MB that four forks share, held once."""
    held = bytearray(b"x") * (200 << 20)
    for _ in range(4):
        if os.fork() == 0:
            _sleep()
    print(json.dumps({"fraction": 0.5, "message": "shared"}), flush=True)
    time.sleep(2.5)
    _succeed(context)
    os._exit(len(held) and 0)


def python_exception(context: StageContext) -> None:
    raise RuntimeError("nobody caught this")


def disk_full(context: StageContext) -> None:
    """The real child's own end, with a result that the file system doesn't take."""
    from handlers.__main__ import _write

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    os._exit(_write(context, StageResult(outcome=Outcome.SUCCEEDED, figures={"much": "x" * 4000})))


def misbehave(job: str, case: str = "") -> int:
    """Bind as a real child does, then misbehave; a forked one is told how by the entry of its job."""
    context = StageContext.model_validate_json(Path(job).read_bytes())
    case = case or context.entry
    if ":" in case:
        return entry.main(job)
    process.bind(context.limits)
    assert gc.isenabled(), "also where the process that this one comes from is loading libraries"
    os.makedirs(context.staging, exist_ok=True)
    globals()[case](context)
    sys.stdout.flush()
    return 0


def main() -> None:
    """As the real entry: one attempt, or the process that attempts are forked from. That one loads nothing."""
    if sys.argv[1] != "--loaded":
        misbehave(sys.argv[2], sys.argv[1])
        return
    _, descriptor, limits, idle, first = sys.argv[2:]
    held = Path(os.environ.get("CKPTD_TEST_HELD", "/nowhere"))
    libraries = (first, "__main__:held_up") if held.parent.is_dir() else ()
    warm.serve(int(descriptor), ChildLimits.model_validate_json(limits), float(idle), misbehave, libraries, first)


def __getattr__(name: str) -> object:
    """`held_up` is a library that loads for as long as there is the file that $CKPTD_TEST_HELD names."""
    while name == "held_up" and Path(os.environ["CKPTD_TEST_HELD"]).exists():
        time.sleep(0.01)
    raise AttributeError(name)


if __name__ == "__main__":
    main()
