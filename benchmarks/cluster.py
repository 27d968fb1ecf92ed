"""What a scheduler costs a stage: overhead beside a stage of this box, and beside the scheduler's own round trip; many short stages beside
sbatch in a loop; the daemon's memory with a thousand attempts open; calls to the scheduler a minute.

A real Slurm of one machine is made of the distribution's packages for it (`tests.cluster.slurm_site`), which need apt-get; a real Ray of
the package, in an environment of its own unless there is one (`tests.cluster.ray_site`). Ray's part also measures what its client holds.
"""

from __future__ import annotations

import os
import resource
import shlex
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common
from daemon.contract.jobs.options import Work
from daemon.running.attempts.executor import Attempt, Executor, Order
from daemon.running.cluster.port import Resources, Scheduler
from daemon.running.cluster.ray.scheduler import Ray
from daemon.running.cluster.slurm.scheduler import Slurm
from daemon.running.workers.executor import LocalExecutor
from tests.cluster.bench import Bench
from tests.cluster.fake import FakeScheduler
from tests.cluster.ray_site import RaySite, python_with_ray
from tests.cluster.slurm_site import SlurmSite, fetch

ROUNDS = 7
STAGES = 200
OPEN = 1000
CHILD = (sys.executable, "-m", "tests.cluster.child")


class Counted(Slurm):
    """Slurm, whose calls are counted."""

    calls: ClassVar[Counter[str]] = Counter()

    def _call(self, program: str, words: Sequence[str]) -> tuple[int, str, str]:
        self.calls[program] += 1
        return super()._call(program, words)


def seconds_of(what: Callable[[], object]) -> float:
    """Wall-clock time of a call."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def to_the_end(attempts: Sequence[Attempt]) -> None:
    """Ask as the runner does, until all have ended."""
    left = list(attempts)
    while left:
        left = [attempt for attempt in left if attempt.poll() is None]
        time.sleep(0.02)


def round_trip(scheduler: Scheduler, folder: Path, count: int = 1) -> None:
    """`count` jobs that do nothing, handed in in a loop, until a file of each is there."""
    marks = []
    for number in range(count):
        script, mark = folder / f"{number}.sh", folder / f"{number}.done"
        script.write_text(f"#!/bin/sh\n: > {mark}\n")
        script.chmod(0o755)
        mark.unlink(missing_ok=True)
        marks.append(mark)
        scheduler.submit(f"plain-{time.monotonic_ns()}-{number}", script, Resources(1, 50 << 20, 60))
    while not all(mark.exists() for mark in marks):
        time.sleep(0.02)


def overhead(bench: Bench, local: Executor, scheduler: Scheduler, folder: Path) -> dict[str, float]:
    """Seconds of one stage that does nothing: on this box, by the scheduler, by its own round trip; medians of rounds that alternate."""
    name = scheduler.name
    rows: dict[str, list[float]] = {"local_s": [], f"{name}_s": [], "round_trip_s": []}
    for _ in range(ROUNDS):
        rows["local_s"].append(seconds_of(lambda: to_the_end([local.start(bench.order())])))
        rows[f"{name}_s"].append(seconds_of(lambda: to_the_end([bench.start()])))
        rows["round_trip_s"].append(seconds_of(lambda: round_trip(scheduler, folder)))
    medians = {name: statistics.median(values) for name, values in rows.items()}
    return {**medians, f"{name}_overhead_s": medians[f"{name}_s"] - medians["local_s"] - medians["round_trip_s"]}


def throughput(bench: Bench, slurm: Slurm, folder: Path) -> dict[str, float]:
    """Seconds of many short stages, and of as many jobs by sbatch in a loop that start the same child without anybody above it."""
    ours = seconds_of(lambda: to_the_end([bench.start() for _ in range(STAGES)]))
    loop = seconds_of(lambda: in_a_loop(bench, slurm))
    plain = seconds_of(lambda: round_trip(slurm, folder, STAGES))
    return {"stages": STAGES, "ckptd_s": ours, "sbatch_loop_s": loop, "ckptd_over_loop": ours / loop, "sbatch_loop_of_nothing_s": plain}


def in_a_loop(bench: Bench, slurm: Slurm) -> None:
    """As many stages with nobody above them, until each has written its result."""
    results = []
    for number in range(STAGES):
        order = bench.order()
        script, child = order.folder / "plain.sh", shlex.join([*CHILD, str(order.write_job_file())])
        script.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin PYTHONPATH={shlex.quote(str(_common.ROOT))} exec {child}\n")
        script.chmod(0o755)
        results.append(Path(order.context.result))
        slurm.submit(f"loop-{time.monotonic_ns()}-{number}", script, Resources(1, 50 << 20, 60))
    while not all(result.exists() for result in results):
        time.sleep(0.02)


def open_attempts(folder: Path) -> dict[str, float]:
    """Memory of this process with many attempts open that wait, beside before, and how much of it their orders are, which the runner holds
    wherever they run; and questions a minute."""
    fake = FakeScheduler()
    fake.held = True
    bench = Bench(folder, fake)
    to_begin = resident()
    text = bench.order().context.work.text
    orders = [_from_journal(bench.order(), text) for _ in range(OPEN)]
    ordered = resident() - to_begin
    attempts = [bench.executor.start(order) for order in orders]
    while len(fake.submitted) < OPEN:
        time.sleep(0.1)
    time.sleep(6)
    calls, began = fake.calls, time.monotonic()
    time.sleep(30)
    asked = (fake.calls - calls) / (time.monotonic() - began) * 60
    grown = resident() - to_begin
    bench.close()
    sizes = {"grown_mib": grown / (1 << 20), "of_orders_mib": ordered / (1 << 20)}
    return {"open": len(attempts), **sizes, "calls_a_minute": asked}


def _from_journal(order: Order, text: str) -> Order:
    """The order with its job's configuration as the runner has it: of the text in the job's row."""
    return replace(order, context=order.context.model_copy(update={"work": Work.recovered(text)}))


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    """Print the figures, and write them with --json."""
    parser = _common.parser(str(__doc__))
    parser.add_argument("--only", choices=("open", "slurm", "ray"), help="one part of it")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(_common.ROOT)
    figures: dict[str, Any] = {}
    with _common.scratch("cluster") as folder:
        if options.only in (None, "open"):
            figures["open"] = open_attempts(folder / "open")
        if options.only in (None, "slurm"):
            figures |= by_slurm(folder)
        if options.only in (None, "ray"):
            figures["ray"] = by_ray(folder)
    _common.write("cluster", figures, options.json)


def by_slurm(folder: Path) -> dict[str, Any]:
    """What takes a real Slurm."""
    site = SlurmSite(fetch(folder / "packages"), folder / "site")
    try:
        slurm = Counted(directory=str(site.commands))
        bench, plain = Bench(folder / "bench", slurm), folder / "plain"
        plain.mkdir()
        measured = {"overhead": overhead(bench, LocalExecutor(CHILD), slurm, plain), "throughput": throughput(bench, slurm, plain)}
        bench.close()
        return {**measured, "calls": dict(slurm.calls)}
    finally:
        site.close()


def by_ray(folder: Path) -> dict[str, Any]:
    """What takes a real Ray. What its client holds would be the daemon's, were it connected itself."""
    kept = os.environ.get("RAY_TEST_ENVIRONMENT")
    site = RaySite(python_with_ray(Path(kept) if kept else folder / "ray-environment"))
    os.environ |= site.variables
    ray = Ray(site.address, str(site.python))
    bench, plain = Bench(folder / "bench-ray", ray), folder / "plain-ray"
    plain.mkdir()
    try:
        to_the_end([bench.start()])  # the client connects, and Ray's first worker starts
        measured = overhead(bench, LocalExecutor(CHILD), ray, plain)
        status = Path(f"/proc/{ray.connection.pid}/status").read_text()
        return {"overhead": measured, "client_mib": field_of(status, "VmRSS") / 1024, "client_threads": field_of(status, "Threads")}
    finally:
        bench.close()
        ray.close()
        site.close()


def field_of(status: str, name: str) -> float:
    """A number of /proc/PID/status."""
    return next(float(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
