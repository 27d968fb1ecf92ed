"""`python -m tests.simulation`: play worlds by hand, or replay the seed of one that failed."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.absences import play as absences
from tests.simulation.play import Outcome, play


def main() -> int:
    """1 where an invariant was violated."""
    parser = argparse.ArgumentParser(description="Simulated trainers against the detection, on a virtual clock.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--worlds", type=int, default=1, help="how many seeds from there")
    parser.add_argument("--runs", type=int, default=5, help="training runs in a world")
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    parser.add_argument("--reckless", action="store_true", help="trainers that pause where only time can tell; violations are expected")
    parser.add_argument("--absences", action="store_true", help="instead: worlds in which what exports read goes away and comes back")
    options = parser.parse_args()
    began = time.perf_counter()
    seeds = range(options.seed, options.seed + options.worlds)
    if options.absences:
        counts = Counter[str]()
        failed = absences.play(seeds, counts, trace=options.trace)
        outcome = Outcome(counts, failed, "--absences ")
    else:
        outcome = play(seeds, runs=options.runs, reckless=options.reckless, trace=options.trace)
    print(outcome.report())
    print(f"{time.perf_counter() - began:.1f} s, {len(outcome.failed)} of {options.worlds} worlds violated an invariant")
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
