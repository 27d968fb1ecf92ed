"""`python -m tests.runner.toy_handlers JOB_FILE`: the real child entry, with toy stages in the place of the heavy ones.

`TOY_LOG=FILE`: a line for each attempt that begins, so that a test can count what was repeated.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

from handlers.__main__ import EXIT_DISK_FULL, main
from tests.runner.toy_stages import swap

if __name__ == "__main__":
    job_file = Path(sys.argv[1])
    job = json.loads(job_file.read_bytes())
    # Where a package was removed meanwhile the real entry says what is missing.
    if job["stage"] != "report" and importlib.util.find_spec(job["entry"].partition(".")[0].partition(":")[0]) is not None:
        try:
            job_file.write_text(json.dumps({**job, "entry": "tests.runner.toy_stages:run"}))
        except OSError:  # a write that is the toy's alone: as the real entry ends where it can't write
            sys.exit(EXIT_DISK_FULL)
    if log := os.environ.get("TOY_LOG"):
        with open(log, "a") as stream:
            stream.write(f"{job['job']} {job['stage']} {job['attempt']}\n")
    swap(job["stage"], job["base"])
    sys.exit(main(str(job_file)))
