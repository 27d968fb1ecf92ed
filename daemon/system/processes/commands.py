"""Commands that are run for somebody who waits, line by line: one, or several side by side; nothing of them outlives this process."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from daemon.contract.parent import end_with_parent


def run_to_end(
    command: Sequence[str], heard: Callable[[bytes], None], *, environment: Mapping[str, str], stderr: int | None = None,
    pass_fds: Sequence[int] = (),
) -> int:  # fmt: skip
    """Run a command in a session of its own; gives its exit code, or the negative number of the signal that ended it.

    `heard` gets each line of its stdout; `stderr` as for `subprocess`. What is raised meanwhile, Ctrl-C for example, kills its whole group.
    """
    ended = run_side_by_side(
        [command], lambda _, line: heard(line), most=1, environment=environment, stderr=stderr, pass_fds=pass_fds,
    )  # fmt: skip
    with contextlib.closing(ended):
        return next(ended)[1]


def run_side_by_side(
    commands: Iterable[Sequence[str]], heard: Callable[[int, bytes], None], *, most: int, environment: Mapping[str, str],
    stderr: int | None = subprocess.STDOUT, pass_fds: Sequence[int] = (),
) -> Generator[tuple[int, int], None, None]:  # fmt: skip
    """Run commands as `run_to_end` does, up to `most` at once; gives (number, exit code) of each when it has ended.

    The next of `commands` is asked for when there is room for it. `heard` gets the number of a command, from 0, and a line of what it says
    on stdout (and stderr, unless that goes elsewhere). What is raised meanwhile, also where the answers are used, kills them all.
    """
    waiting = enumerate(commands)
    running: dict[int, tuple[int, subprocess.Popen[bytes], bytearray]] = {}
    with selectors.DefaultSelector() as ready:
        try:
            while True:
                while len(running) < most and (following := next(waiting, None)):
                    process = subprocess.Popen(
                        following[1], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=environment,
                        pass_fds=pass_fds, preexec_fn=end_with_parent, start_new_session=True,
                    )  # fmt: skip
                    assert process.stdout is not None
                    running[process.stdout.fileno()] = (following[0], process, bytearray())
                    ready.register(process.stdout, selectors.EVENT_READ)
                if not running:
                    return
                for key, _ in ready.select():
                    number, process, rest = running[key.fd]
                    said = os.read(key.fd, 1 << 16)
                    *lines, last = bytes(rest + said).splitlines(keepends=True) or [b""]
                    whole = not said or last.endswith(b"\n")
                    rest[:] = b"" if whole else last
                    for line in (*lines, last) if whole and last else lines:
                        heard(number, line)
                    if not said:
                        ready.unregister(key.fileobj)
                        assert process.stdout is not None
                        process.stdout.close()
                        code = process.wait()
                        del running[key.fd]
                        yield number, code
        finally:
            for _, process, _ in running.values():
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
