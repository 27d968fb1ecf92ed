"""What the daemon costs: time to `--help`, resident memory and CPU while idle, and the scan of 10,000 runs.

Beside it, in the same run, two yardsticks: an interpreter that only starts (`python -c pass`), and a plain watchdog
script that merely prints events, idle on the same roots.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common

IDLE_SECONDS = 20.0
WATCHDOG_SCRIPT = """
import sys, time
from watchdog.events import FileSystemEventHandler
from watchdog.observers import Observer
observer = Observer(); observer.schedule(FileSystemEventHandler(), sys.argv[1], recursive=True); observer.start()
time.sleep(3600)
"""


def help_ms(rounds: int) -> tuple[float, float]:
    """Median wall time of `ckptd --help` and of a bare interpreter, in ms, measured in turns."""
    taken = _common.interleaved({"help": _common.python("-m", "daemon", "--help"), "bare": _common.python("-c", "pass")}, rounds)
    return 1000 * taken["help"]["seconds"], 1000 * taken["bare"]["seconds"]


def make_runs(root: Path, runs: int) -> None:
    """`runs` run directories with one empty checkpoint directory each."""
    for number in range(runs):
        (root / f"run-{number:05}" / "checkpoint-10").mkdir(parents=True)


def scan_seconds(root: Path) -> float:
    """One walk for checkpoint directories."""
    from daemon.watching.scan import Scanner

    def complain(error: OSError) -> None:
        raise error

    started = time.perf_counter()
    found = sum(1 for _ in Scanner().find(root, complain))
    taken = time.perf_counter() - started
    if found == 0:
        raise RuntimeError("the scan found nothing")
    return taken


def idle(argv: list[str], settle: float, seconds: float) -> tuple[float, float]:
    """Resident MiB and CPU percent of one core of a process that has nothing to do."""
    process = psutil.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(settle)
        before, began = process.cpu_times(), time.perf_counter()
        time.sleep(seconds)
        after, taken = process.cpu_times(), time.perf_counter() - began
        cpu = (after.user + after.system - before.user - before.system) / taken
        return process.memory_info().rss / (1 << 20), 100 * cpu
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    """Measure, print a table, write the JSON file."""
    options = _common.parser("What the daemon costs when there is nothing to do.").parse_args()
    with _common.scratch("daemon") as folder:
        root = folder / "runs"
        root.mkdir()
        config = folder / "config.toml"
        config.write_text(f'[watch]\nroots = ["{root}"]\n[output]\ndirectory = "{folder}/exports"\n[state]\ndirectory = "{folder}/state"\n')
        taken, bare = help_ms(7)
        rss, cpu = idle([sys.executable, "-m", "daemon", "run", "--config", str(config)], 4.0, IDLE_SECONDS)
        plain_rss, plain_cpu = idle([sys.executable, "-c", WATCHDOG_SCRIPT, str(root)], 2.0, IDLE_SECONDS)
        make_runs(root, 10_000)
        scan_seconds(root)
        scan = statistics.median(scan_seconds(root) for _ in range(5))
    figures: dict[str, Any] = {
        "help_ms": round(taken, 1), "bare_interpreter_ms": round(bare, 1), "help_over_bare": round(taken / bare, 2),
        "idle_rss_mb": round(rss, 1), "idle_cpu_percent": round(cpu, 3),
        "watchdog_script_rss_mb": round(plain_rss, 1), "watchdog_script_cpu_percent": round(plain_cpu, 3),
        "scan_10k_s": round(scan, 3),
    }  # fmt: skip
    _common.write("daemon", figures, options.json, libraries=("watchdog", "pydantic", "typer", "rich", "structlog", "psutil"))


if __name__ == "__main__":
    main()
