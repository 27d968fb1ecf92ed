"""What the daemon costs: time to `--help`, resident memory and CPU while idle, and the scan of 10,000 runs.

Beside it, in the same run, two yardsticks: an interpreter that only starts (`python -c pass`), and a plain watchdog
script that takes no notice of events, idle on the same roots at the same time, without runs, and beside 200 that are known and 200 that are
incomplete. `--scale` adds what thousands of runs cost: idle beside
5,000 that are known and 5,000 that are incomplete, and the memory over `--jobs` jobs whose attempts end at once (`_toy_daemon.py`).
"""

from __future__ import annotations

import json
import shutil
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common

IDLE_SECONDS = 20.0
REST_SECONDS = 100.0
"""So long the daemon looks at what has just been written again and again, since writes through a mapping show late."""
BATCH = 50
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


def fill(folder: Path, runs: int, *, whole: bool) -> Path:
    """A tree of `runs` runs below `folder` with a checkpoint each, known to a journal where they are whole; gives the configuration."""
    from daemon.checkpoints.files import fingerprint
    from daemon.config.places.paths import prepare
    from daemon.journal.journal import Journal
    from daemon.watching.taking.entering import digest_of_fingerprint

    journal, seen = Journal(prepare(folder / "state", folder / "out").journal), []
    for number in range(runs):
        checkpoint = folder / "runs" / f"run-{number:05}" / "checkpoint-10"
        write_checkpoint(checkpoint, number, 10)
        if whole:
            seen.append((str(checkpoint), digest_of_fingerprint(fingerprint(checkpoint))))
        else:
            (checkpoint / "model.safetensors").unlink()
    journal.database.write("fill", lambda c: c.executemany("INSERT INTO seen VALUES (?, ?, 'known', NULL, '')", seen))
    journal.close()
    return write_config(folder)


def write_checkpoint(folder: Path, run: int, step: int) -> None:
    """A whole model of four numbers, as Trainer leaves it."""
    folder.mkdir(parents=True)
    header = json.dumps({"model.w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<4f", run, step, 1, 2))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))


def write_config(folder: Path) -> Path:
    """A configuration for everything below `folder`."""
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    config = folder / "config.toml"
    config.write_text(
        f'[watch]\nroots = ["{folder}/runs"]\n[output]\ndirectory = "{folder}/out"\n[state]\ndirectory = "{folder}/state"\n'
        '[export]\nvariants = ["pytorch"]\n[retention]\nkeep_last = 1\n[limits]\ndisk_reserve = 0\n[log]\nlevel = "error"\n'
    )
    return config


def cpu_seconds(process: psutil.Popen) -> float:
    """CPU time of all its threads, those that have ended too, to the nanosecond (the kernel's clock of a process, clock_getcpuclockid)."""
    return time.clock_gettime((~process.pid << 3) | 2)


def idle_beside(trees: dict[str, Path], settle: float, seconds: float) -> dict[str, dict[str, float]]:
    """The daemon and a watchdog script on each tree (name → configuration), all at the same time: name → figures.

    The script has a copy of the tree to itself: it asks for events of opening too, and the daemon's scans would keep it busy.
    """
    running: dict[tuple[str, str], psutil.Popen] = {}
    try:
        for name, config in trees.items():
            copy = shutil.copytree(config.parent / "runs", config.parent / "copy")
            script = [sys.executable, "-c", WATCHDOG_SCRIPT, str(copy)]
            for who, argv in (("ckptd", [sys.executable, "-m", "daemon", "run", "--config", str(config)]), ("watchdog", script)):
                running[name, who] = psutil.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(settle)
        before, began = {key: cpu_seconds(process) for key, process in running.items()}, time.perf_counter()
        time.sleep(seconds)
        taken = time.perf_counter() - began
        cpu = {key: round(100 * (cpu_seconds(process) - before[key]) / taken, 4) for key, process in running.items()}
        rss = {key: round(process.memory_info().rss / (1 << 20), 1) for key, process in running.items()}
    finally:
        for process in running.values():
            process.terminate()
            process.wait(60)
    return {
        name: {
            "cpu_percent": cpu[name, "ckptd"], "watchdog_cpu_percent": cpu[name, "watchdog"],
            "rss_mb": rss[name, "ckptd"], "watchdog_rss_mb": rss[name, "watchdog"],
        }
        for name in trees
    }  # fmt: skip


def memory_over(folder: Path, jobs: int) -> dict[str, float]:
    """Resident MiB of the daemon after so many jobs: number → figure. Trainers keep their last checkpoints alone, as they do for weeks."""
    from daemon.operating.monitoring.status import snapshot

    config, found, done = write_config(folder), dict[str, float](), 0
    process = psutil.Popen(_common.python(str(Path(__file__).parent / "_toy_daemon.py"), str(config)), stdout=subprocess.DEVNULL)
    try:
        while done < jobs:
            for number in range(done, done := done + BATCH):
                write_checkpoint(folder / "runs" / f"run-{number % 20}" / f"checkpoint-{number + 1}", number % 20, number + 1)
            while (counts := snapshot(folder / "state", limit=1).counts).get("succeeded", 0) < done:
                if process.poll() is not None or counts.get("failed"):
                    raise RuntimeError(f"the daemon ended, or an export failed: {counts}")
                time.sleep(0.2)
            for number in range(done - BATCH, done - 20):
                shutil.rmtree(folder / "runs" / f"run-{number % 20}" / f"checkpoint-{number + 1}")
            if done == BATCH or done % (jobs // 6) < BATCH:
                found[str(done)] = round(process.memory_info().rss / (1 << 20), 1)
                print(f"  {done} jobs: {found[str(done)]} MiB", flush=True)
    finally:
        process.terminate()
        process.wait(60)
    return found


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
    parser = _common.parser("What the daemon costs when there is nothing to do.")
    parser.add_argument("--scale", action="store_true", help="also beside 5,000 known and 5,000 incomplete runs, and memory over jobs")
    parser.add_argument("--jobs", type=int, default=3000, help="jobs over which memory is measured with --scale")
    options = parser.parse_args()
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
        trees = {f"{name}_200": fill(folder / f"{name}-200", 200, whole=name == "known") for name in ("known", "incomplete")}
        if options.scale:
            trees["known_5000"] = fill(folder / "known-5000", 5000, whole=True)
            trees["incomplete_5000"] = fill(folder / "incomplete-5000", 5000, whole=False)
        beside = idle_beside(trees, 150.0 if options.scale else REST_SECONDS, 60.0)
        memory = memory_over(folder / "jobs", options.jobs) if options.scale else {}
    figures: dict[str, Any] = {
        "help_ms": round(taken, 1), "bare_interpreter_ms": round(bare, 1), "help_over_bare": round(taken / bare, 2),
        "idle_rss_mb": round(rss, 1), "idle_cpu_percent": round(cpu, 3),
        "watchdog_script_rss_mb": round(plain_rss, 1), "watchdog_script_cpu_percent": round(plain_cpu, 3),
        "scan_10k_s": round(scan, 3),
        **{f"idle_{name}": one for name, one in beside.items()},
        **({"rss_mb_after_jobs": memory} if memory else {}),
    }  # fmt: skip
    _common.write("daemon", figures, options.json, libraries=("watchdog", "pydantic", "typer", "rich", "structlog", "psutil"))


if __name__ == "__main__":
    main()
