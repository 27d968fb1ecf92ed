"""Runs the stages that lead from a merged model to one variant, one after the other, each in the Python that the daemon would take.

    python benchmarks/_chain.py STATE MODEL TARGET CACHE STAGE…

Called by `formats.py`, which measures this process: its peak is that of its largest child, since it stays small itself. TARGET is where
the last stage's output comes to lie. CACHE keeps templates for the next call; "-" is a cache for this one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _stages
from daemon.contract.jobs.messages import ChildLimits
from daemon.contract.jobs.plan import spec_of
from daemon.toolchains.registry import HANDLERS, Toolchains, command_in

LIMITS = ChildLimits(threads=2, nice=0, idle=False)


def main() -> None:
    """Run the stages; the exit code is that of the first that fails."""
    state, model, target = (Path(one) for one in sys.argv[1:4])
    kept, stages = sys.argv[4], sys.argv[5:]
    chains, inputs = Toolchains(state), {"merge": model}
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        cache = Path(scratch, "cache") if kept == "-" else Path(kept)
        for stage in stages:
            folder = Path(scratch, stage)
            job = _stages.job_file(folder, stage, inputs, model, limits=LIMITS, cache=cache)
            name = spec_of(stage).toolchain
            chain = chains.get(name) if name else None
            command = command_in(chain.folder, "handlers") if chain is not None else HANDLERS
            done = subprocess.run([*command, str(job)], env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])})
            if done.returncode != 0:
                sys.exit(done.returncode)
            inputs[stage] = folder / "staging"
        shutil.move(str(inputs[stages[-1]]), str(target))


if __name__ == "__main__":
    main()
