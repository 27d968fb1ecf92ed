"""`python -m tests.soak [--minutes 30] [--seed N] [--json FILE]`: one real daemon, and everything at once.

Trainers write well and badly while the daemon and its children are killed, disks fill and fail, the wall clock jumps, people use
every verb, the base goes away and comes back, hostile directories come, and a second daemon publishes into the same output. All
along the daemon keeps to its limits; at the end everything that stayed has been exported exactly once and whole, nothing else has,
a secret of the configuration stands nowhere, and `ckptd verify --journal` finds nothing. The stages are toys, so that thousands of them fit
into half an hour; daemon, journal, children, publication and verbs are the real ones.

Exit status 0 when nothing was wrong. The seed is printed first and makes the same choices again, not the same times.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from tests import models
from tests.soak.box import Box


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true", help="leave the folder, whatever was found")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ckptd-soak-"))
    print(f"seed {options.seed}, {options.minutes:g} minutes, below {folder}", flush=True)
    source = models.train_run(models.make_base(folder / "base"), folder / "source") / "checkpoint-4"
    box = Box(folder, source, options.seed)
    problems = box.soak(options.minutes * 60)
    result = {"seed": options.seed, "minutes": options.minutes, "counts": dict(sorted(box.counts.items())), "problems": problems}
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    if not problems and not options.keep:
        box.remove()
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
