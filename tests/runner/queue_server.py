"""`python -m tests.runner.queue_server QUEUE`: a server that runs what is handed in through a folder, and knows of no daemon.

Each entry is a folder named by a number. `job` holds the path of a job file, and is written last by who hands it in; the server adds
`taken`, `progress` (what the child says), and at the end `ended` with the exit code. `stop` and `kill` ask it to end the child.
It serves until `QUEUE/close` is there, and then ends what it runs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

COMMAND = (sys.executable, "-m", "tests.runner.toy_handlers")


def begin(entry: Path) -> subprocess.Popen[bytes]:
    job = Path((entry / "job").read_text())
    with open(entry / "progress", "wb") as said, open(job.with_name("log.txt"), "ab") as log:
        return subprocess.Popen([*COMMAND, str(job)], stdin=subprocess.DEVNULL, stdout=said, stderr=log, start_new_session=True)


def finish(entry: Path, code: int) -> None:
    (entry / "code").write_text(str(code))
    (entry / "code").rename(entry / "ended")


def serve(queue: Path) -> None:
    running: dict[Path, subprocess.Popen[bytes]] = {}
    stopped: set[Path] = set()
    while not (queue / "close").exists():
        for entry in sorted(path.parent for path in queue.glob("*/job")):
            if not (entry / "taken").exists() and not (queue / "hold").exists():
                (entry / "taken").touch()
                running[entry] = begin(entry)
        for entry, child in list(running.items()):
            if (entry / "kill").exists():
                child.kill()
            elif (entry / "stop").exists() and entry not in stopped:
                stopped.add(entry)
                child.send_signal(signal.SIGTERM)
            if (code := child.poll()) is not None:
                del running[entry]
                finish(entry, code)
        time.sleep(0.01)
    for child in running.values():
        child.kill()
        child.wait()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
