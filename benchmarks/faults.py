"""What kills, full disks and mutated inputs do to a daemon: how many were tried, and what was lost, twice, half or blocked (0 of each).

The daemon, its journal, its children's entry, pins and publication are real, the stages are toys (`tests.runner.toy_stages`).

- Kills: kill -9 at random times while checkpoints come in; then everything has to be there once, whole, and `fsck` finds nothing.
- Fills: writes below the state and the output fail with ENOSPC or EDQUOT, each once, or all from one of them on until there is room again
  (`tests.faults.fills`). The same artifacts have to come out, no attempt may count, and the daemon may not end. `--fills-from FILE` takes
  the figures of a whole sweep, which runs for most of an hour, from what it wrote with `FILL_JSON=FILE`.
- Mutated inputs: configurations, states, headers, indexes and archives in which something is other than trainers write it, through the look
  of the daemon and the planning of the stages (`tests.border.mutations`). Each is taken, refused or incomplete; none ends in a traceback.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common

BAD = ("lost", "twice", "half", "blocked")


def pico(folder: Path) -> Path:
    """A small adapter's checkpoint."""
    from tests.models import make_base, train_run

    return train_run(make_base(folder / "pico"), folder / "pico-run") / "checkpoint-4"


def kills(folder: Path, checkpoint: Path, rounds: int, seed: int) -> dict[str, float]:
    """Kill the daemon `rounds` times at random moments of its work; what was found afterwards."""
    from daemon.contract.files import files_below
    from daemon.operating.integrity.fsck import examine
    from daemon.publishing.verification import exports_below
    from tests.faults.fills import is_whole
    from tests.runner.conftest import Toy, copied

    generator, count = random.Random(seed), 0
    toy = Toy(folder, extra="[limits]\nretry_seconds = 0.1\nattempts = 50\ncrashes = 1000\n")
    blocked = 0
    try:
        for number in range(rounds):
            if number % 4 == 0:
                count += 1
                copied(checkpoint, toy, f"run-{generator.randrange(3)}", count)
            toy.start()
            time.sleep(generator.uniform(0.3, 2.0))
            toy.kill()
        toy.start()
        try:
            toy.wait_ended(count, seconds=300)
        except AssertionError:
            blocked = sum(job["state"] in ("pending", "running") for job in toy.status()["jobs"])
        toy.stop()
    finally:
        if toy.process is not None and toy.process.poll() is None:
            toy.kill()
    jobs = toy.status()["jobs"]
    by_checkpoint = Counter(job["checkpoint"] for job in jobs)
    found = examine(toy.state, toy.exports, quiescent=True, deep=True).findings
    exports = list(exports_below(toy.exports))
    linked = [path for export in exports for path in files_below(export) if path.stat().st_nlink != 1]
    return {
        "kills": rounds,
        "lost": count - len(by_checkpoint) + sum(job["state"] not in ("succeeded", "pending", "running") for job in jobs),
        "twice": sum(times - 1 for times in by_checkpoint.values()),
        "half": len(found) + len(linked) + sum(not is_whole(export) for export in exports),
        "blocked": blocked,
    }


def fills(folder: Path, checkpoint: Path, cases: int | None, seed: int) -> dict[str, Any]:
    """Fill the disks in `cases` exports of either kind (None: at every point there is); what was tried and found."""
    from tests.faults.fills import sweep

    return {"seed": seed, **sweep(folder, checkpoint, seed, most=cases).figures()}


def of_fills(found: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a sweep of full disks, under the names that this benchmark gives them."""
    return {
        "fills": found["filled_once"] + found["filled_lasting"],
        "fill_places": found["places"] - len(found["never_filled"]),
        "fill_exports": found["exports"],
        "fill_failed_calls": found["refused_calls"],
        "fill_seed": found["seed"],
        **{name: found[name] for name in (*BAD, "counted", "ended", "unsaid", "tracebacks")},
        "said_after_s": found["said_after_s"].get("median", 0.0),
        "end_after_room_s": found["end_after_room_s"].get("median", 0.0),
    }


def mutated(cases: int, seed: int) -> tuple[dict[str, float], list[str]]:
    """Try mutated inputs; how many, what became of them, and what nobody foresaw. `blocked`: those that ended in a traceback."""
    from tests.border.mutations import mutated_inputs

    counts = mutated_inputs(seed, cases)
    figures = {f"inputs_{name}" if name != "inputs" else name: float(value) for name, value in counts.figures().items() if name != "seed"}
    return {**figures, "blocked": len(counts.findings)}, counts.findings


def main() -> int:
    """1 where anything was lost, twice, half or blocked."""
    parser = _common.parser(__doc__ or "")
    parser.add_argument("--kills", type=int, default=12, metavar="N", help="how often the daemon is killed")
    parser.add_argument("--fills", type=int, default=2, metavar="N", help="exports with full disks of either kind; 0: all, most of an hour")
    parser.add_argument("--fills-from", type=Path, metavar="FILE", help="take the figures of full disks from a sweep that ran before")
    parser.add_argument("--inputs", type=int, default=20_000, metavar="N", help="mutated inputs")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    machine = _common.machine()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}")
    with _common.scratch("faults") as folder:
        for name in ("model", "kills", "fills"):
            (folder / name).mkdir()
        checkpoint = pico(folder / "model")
        killed = kills(folder / "kills", checkpoint, options.kills, seed)
        found = json.loads(options.fills_from.read_text()) if options.fills_from else None
        found = found or fills(folder / "fills", checkpoint, options.fills or None, seed)
        tried, met = mutated(options.inputs, seed)
    filled = of_fills(found)
    figures = {**tried, **filled, **killed, **{name: sum(part.get(name, 0) for part in (killed, filled, tried)) for name in BAD}}
    for problem in (*found["problems"], *met):
        print(problem, file=sys.stderr)
    _common.write("faults", {**figures, "seed": seed}, options.json, libraries=("psutil",), taken_on=machine)
    return int(any(figures[name] for name in BAD))


if __name__ == "__main__":
    sys.exit(main())
