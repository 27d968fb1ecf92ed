"""How long a scrape of the metrics takes with 10,000 jobs in the journal and a daemon that writes to it, beside the library by itself.

Each round takes the figures, as the daemon's tick does (`taken`), and answers two scrapes: in another format than the last one
(`rewritten`), then as Prometheus asks, whose format was written when the figures were taken (`scrape`). In the same round, as the peer, the
library writes its default registry: what a process has that exposes nothing of its own. Meanwhile another thread commits to the journal
without a pause; a busy daemon does so some times a second.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common
from benchmarks.journal import fill

ACCEPTED = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
PAUSE_SECONDS = 0.01
"""Between two rounds, in which the writer has the processor."""


@contextmanager
def written_to(write: Callable[[], object]) -> Iterator[list[int]]:
    """Another thread writes again and again; gives how often it did."""
    stop, written = threading.Event(), [0]

    def work() -> None:
        while not stop.is_set():
            write()
            written[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()


def p95(samples: list[float]) -> float:
    return 1000 * sorted(samples)[int(0.95 * len(samples))]


def measure(folder: Path, jobs: int, rounds: int) -> dict[str, float]:
    """Times in ms, sizes in kB."""
    from daemon.config.settings import Settings
    from daemon.contract.jobs.plan import stage_names
    from daemon.operating.engine import engine
    from daemon.operating.monitoring.live import Condition, ConfigLoad
    from daemon.watching.groups import Watchers

    state, output, roots = folder / "state", folder / "exports", [folder / f"root-{number}" for number in range(8)]
    for root in roots:
        root.mkdir()
    fill(state, output, jobs)
    settings = Settings.model_validate({"watch": {"roots": roots}, "state": {"directory": state}, "output": {"directory": output}})
    from prometheus_client import REGISTRY, generate_latest

    from daemon.operating.monitoring.metrics.exposition import Exposition
    from daemon.operating.monitoring.metrics.gauges import take_gauges

    with engine(settings, state) as parts:
        watchers = Watchers(settings, parts.intake, taken=lambda: None)
        exposition = Exposition(parts.journal, stage_names(settings.work, ""), settings.variants)
        now = parts.journal.jobs.oldest_open() or ""

        def take() -> None:
            exposition.take(take_gauges(
                settings, parts.paths, parts.journal, parts.runner, watchers, started="2026-01-01T00:00:00+00:00", loaded=ConfigLoad(now),
                condition=Condition("healthy"), low_disks=0,
            ))  # fmt: skip

        ways: dict[str, Callable[[], object]] = {
            "taken": take, "rewritten": exposition.answer, "scrape": lambda: exposition.answer(ACCEPTED),
            "default_registry": lambda: generate_latest(REGISTRY),
        }  # fmt: skip
        samples: dict[str, list[float]] = {name: [] for name in ways}
        began = time.perf_counter()
        with written_to(parts.journal.controls.heartbeat) as written:
            for _ in range(rounds):
                for name, way in ways.items():
                    started = time.perf_counter()
                    way()
                    samples[name].append(time.perf_counter() - started)
                time.sleep(PAUSE_SECONDS)
        commits = written[0] / (time.perf_counter() - began)
        text, _ = exposition.answer()
    return {
        **{f"{name}_p95_ms": p95(values) for name, values in samples.items()},
        "rewritten_over_default_registry": p95(samples["rewritten"]) / p95(samples["default_registry"]),
        "commits_per_s": commits, "series": float(sum(not line.startswith(b"#") for line in text.splitlines())), "text_kb": len(text) / 1e3,
    }  # fmt: skip


if __name__ == "__main__":
    arguments = _common.parser(__doc__)
    arguments.add_argument("--jobs", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=300)
    chosen = arguments.parse_args()
    with _common.scratch("metrics") as scratch:
        _common.write("metrics", measure(scratch, chosen.jobs, chosen.rounds), chosen.json, libraries=("prometheus_client",))
