"""`python -m tests.cluster.child JOB_FILE`: the real child entry with a stage that writes a file, and stays while `hold` lies beside it.
Where `full` does, there is no room for what it writes; where `large` does, it writes as many bytes as that says; where `greedy` does, it
takes as many bytes of memory."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from daemon.contract.jobs.messages import StageContext
from handlers.__main__ import main
from handlers.child.progress import Reporter, StageOutput

PAUSE = 0.05


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Write `out.bin`, which names the attempt."""
    folder = Path(context.result).parent
    with open(folder.parent / "begun", "a", encoding="utf-8") as stream:
        stream.write(f"{context.attempt_id}\n")
    (folder / "clock").write_text(str(time.time()))
    taken = b""
    while (folder / "hold").exists():
        reporter.progress(0.5, "held")
        if not taken and (folder / "greedy").exists():
            taken = b"x" * int((folder / "greedy").read_text())
        time.sleep(PAUSE)
    if (folder / "full").exists():
        with open("/dev/full", "wb", buffering=0) as stream:
            stream.write(b"no room")
    if (folder / "large").exists():
        with open(Path(context.staging) / "large.bin", "wb") as stream:
            for _ in range(int((folder / "large").read_text()) >> 16):
                stream.write(bytes(1 << 16))
    (Path(context.staging) / "out.bin").write_text(context.attempt_id)
    return StageOutput()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "entry": "tests.cluster.child:run"}))
    sys.exit(main(str(path)))
