"""A command that is run for somebody who waits, line by line; nothing of it outlives this process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

_PDEATHSIG = 1


def run_to_end(
    command: Sequence[str], heard: Callable[[bytes], None], *, environment: Mapping[str, str], stderr: int | None = None,
    pass_fds: Sequence[int] = (),
) -> int:  # fmt: skip
    """Run a command in a session of its own; gives its exit code, or the negative number of the signal that ended it.

    `heard` gets each line of its stdout; `stderr` as for `subprocess`. What is raised meanwhile, Ctrl-C for example, kills its whole group.
    """
    libc = ctypes.CDLL(None)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=environment, pass_fds=pass_fds,
        preexec_fn=lambda: libc.prctl(_PDEATHSIG, signal.SIGKILL), start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                heard(line)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.wait()
