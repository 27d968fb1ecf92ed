"""`python -m tests.runner.toy_handlers JOB_FILE`: the real child entry, with toy stages in the place of the heavy ones.

`TOY_LOG=FILE`: a line for each attempt that begins, so that a test can count what was repeated.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from daemon.contract.plan import BY_NAME
from handlers.__main__ import main

if __name__ == "__main__":
    for name, spec in BY_NAME.items():
        if name != "report":
            BY_NAME[name] = replace(spec, entry="tests.runner.toy_stages:run")
    if log := os.environ.get("TOY_LOG"):
        job = json.loads(Path(sys.argv[1]).read_bytes())
        with open(log, "a") as stream:
            stream.write(f"{job['job']} {job['stage']} {job['attempt']}\n")
    sys.exit(main(sys.argv[1]))
