"""Many `ckptd export` in one process, one after the other, which share the processes that have libraries loaded.

Run as `python -m tests.matrix.exports LIST`, where LIST is a JSON file with `[checkpoint, output, answer]` for each: the command's exit
code and what it said go to the file `answer`. A loaded process ends with the thread that started it, and each command has a thread of its
own; here one thread starts them for all, without which most of the time would go into imports.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from daemon.cli.main import main
from daemon.running.workers import warm


def export(checkpoint: str, output: str, answer: str) -> None:
    """The command as a user gives it."""
    sys.argv = ["ckptd", "export", checkpoint, "--output", output]
    kept = [os.dup(1), os.dup(2)]
    with open(f"{answer}.text", "wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        try:
            code = main()
        finally:
            sys.stdout.flush()
            for number, descriptor in enumerate(kept, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)
    text = Path(f"{answer}.text").read_text()
    Path(answer).write_text(json.dumps({"code": code, "text": text}))


if __name__ == "__main__":
    pool, start = ThreadPoolExecutor(1), warm.get_ready
    warm.get_ready = lambda *given: pool.submit(start, *given).result()
    for line in json.loads(Path(sys.argv[1]).read_text()):
        export(*line)
    warm.end_all()
