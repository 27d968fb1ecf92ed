"""What kills, full disks and mutated inputs do to a daemon: how many were tried, and what was lost, twice, half or blocked (0 of each).

The daemon, its journal, its children's entry, pins and publication are real, the stages are toys (`tests.runner.toy_stages`).

- Kills: kill -9 at random times while checkpoints come in; then everything has to be there once, whole, and `fsck` finds nothing.
- Fills: writes below the state and the output fail with ENOSPC or EDQUOT, each once, or all from one of them on until there is room again
  (`tests.faults.fills`). The same artifacts have to come out, no attempt may count, and the daemon may not end.
- Mutated inputs: configurations, states, headers, indexes and archives in which something is other than trainers write it, through the look
  of the daemon and the planning of the stages (`tests.border.mutations`). Each is taken, refused or incomplete; none ends in a traceback.
"""

from __future__ import annotations

import errno
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

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


def fills(folder: Path, checkpoint: Path, cases: int | None, seed: int) -> tuple[dict[str, float], list[str]]:
    """Fill the disks, `cases` of either kind for each error (None: all there are); what was found, and in words."""
    from tests.faults.fills import Tally, sweep

    tally = Tally()
    for number in (errno.ENOSPC, errno.EDQUOT):
        (folder / str(number)).mkdir()
        tally.add(sweep(folder / str(number), checkpoint, number, once=cases, lasting=cases, seed=seed))
    figures = {
        "fills": tally.points,
        "fill_exports": tally.cases,
        "fill_failed_calls": tally.failed_calls,
        **{name: getattr(tally, name) for name in BAD},
        "counted": tally.counted,
        "ended": tally.ended,
        "unsaid": tally.unsaid,
        "end_after_room_s": statistics.median(tally.seconds),
    }
    return figures, tally.problems


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
    parser.add_argument("--fills", type=int, default=4, metavar="N", help="cases of either kind and error; 0 for all, which takes hours")
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
        filled, problems = fills(folder / "fills", checkpoint, options.fills or None, seed)
        tried, met = mutated(options.inputs, seed)
    figures = {**tried, **filled, **killed, **{name: sum(part.get(name, 0) for part in (killed, filled, tried)) for name in BAD}}
    for problem in (*problems, *met):
        print(problem, file=sys.stderr)
    _common.write("faults", {**figures, "seed": seed}, options.json, libraries=("psutil",), taken_on=machine)
    return int(any(figures[name] for name in BAD))


if __name__ == "__main__":
    sys.exit(main())
