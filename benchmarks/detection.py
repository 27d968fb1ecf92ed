"""How fast, how surely and how cheaply checkpoints are found, beside what people write instead.

Latency: from the last byte written to the job in the journal, beyond the settle time, with 1 and with 200 concurrent writers, and beside
checkpoints that take long to read or to pin.
Sureness: the same trainers with every bad habit, watched by ckptd, two plain watchdog handlers and watchfiles at once.
Cost: scans of 10,000 and 100,000 runs beside a walk by names alone, a data set of a million files below a root, a rescan, a hint.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structlog

from benchmarks import _common, _watchers
from benchmarks._writers import JUDGED, LIFE, STATE, contents
from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.names import is_checkpoint_name
from daemon.contract.disk.files import fsync_directory, fsync_file
from daemon.watching.scan import Scanner, is_ignored
from daemon.watching.taking.entering import digest_of_fingerprint
from daemon.watching.tracker import Tracker

SETTLE = 1.0
RAM = Path("/dev/shm")
"""Trees for the scans lie in memory: making 200,000 directories on a disk would take longer than all the rest."""
Line = dict[str, Any]


def write_checkpoints(way: str, folder: Path, count: int, seconds: float) -> list[Line]:
    """Run the scripted trainers below `folder`/runs to their end; gives what they held to be complete."""
    log = folder / "truth.jsonl"
    script = Path(__file__).with_name("_writers.py")
    subprocess.run([sys.executable, str(script), way, str(folder / "runs"), str(log), str(count), str(seconds)], check=True)
    return [json.loads(line) for line in log.read_text().splitlines()]


def latency(folder: Path, writers: int, seconds: float, bombs: int = 0, *, watched: bool = True) -> dict[str, list[float]]:
    """For each of the writers' checkpoints, in ms beyond the settle time: until it was quiet and complete, and until its job stood.

    `bombs`: runs beside them whose checkpoints take long to read or to pin, `watched` or beside the root: to write them keeps the disk
    busy too.
    """
    (folder / "runs").mkdir(parents=True)
    ckptd = _watchers.Ckptd(folder / "home", folder / "runs", SETTLE)
    try:
        time.sleep(1)
        place = folder / ("runs" if watched else "beside")
        for number in range(bombs):  # by another process: to make them up takes seconds of this one's interpreter
            subprocess.run(_common.python(__file__, "--plant", str(place / f"bomb-{number}" / "checkpoint-1"), str(number)), check=True)
        truth = write_checkpoints("steady", folder, writers, seconds)
        end, paths = time.monotonic() + SETTLE + 60, {line["path"] for line in truth}
        while not paths <= ckptd.intake.times.keys() and time.monotonic() < end:
            time.sleep(0.05)
        times = dict(ckptd.intake.times)
    finally:
        ckptd.stop()
    found = [(times[line["path"]], line["since"] + SETTLE) for line in truth if line["path"] in times]
    return {
        "quiet": [1000 * (asked - due) for (asked, _), due in found],
        "entered": [1000 * (entered - due) for (_, entered), due in found],
        "intake": [1000 * (entered - asked) for (asked, entered), _ in found],
        "lost": [1.0] * (len(truth) - len(found)),
    }


def plant(target: Path, number: int) -> None:
    """A checkpoint, renamed into place, with a training log of 112 MB, 3,000 further files, or a rank for each of 200,000 modules."""
    made = target.parent.with_name(f".{target.parent.name}")
    made.mkdir(parents=True)
    files = contents(random.Random(number), 1, 500_000)
    if number % 3 == 0:
        rows = [
            {"step": row, "loss": 1 / (row + 1), "learning_rate": 1e-4, "grad_norm": 0.5, "epoch": row / 100} for row in range(1_100_000)
        ]
        files[STATE] = json.dumps({"global_step": 1, "log_history": rows}).encode()
    elif number % 3 == 1:
        files = {**{f"extra-{extra}.json": b"{}" for extra in range(3000)}, **files}
    else:
        ranks = {f"model.layers.{layer}.mlp": 8 for layer in range(200_000)}
        files["adapter_config.json"] = json.dumps({"peft_type": "LORA", "r": 8, "rank_pattern": ranks}).encode()
    for name, content in files.items():
        (made / name).write_bytes(content)
    target.parent.mkdir(parents=True)
    made.rename(target)


def beside_bombs(folder: Path) -> dict[str, Any]:
    """What six such runs add to the time until the jobs of 60 others stand, which save within 20 seconds: watched, or beside the root."""
    alone, beside = latency(folder / "alone", 60, 20.0, bombs=6, watched=False), latency(folder / "beside", 60, 20.0, bombs=6)
    figures: dict[str, Any] = {}
    for label, taken in (("alone", alone), ("beside_bombs", beside)):
        figures[f"{label}_p50_ms"], figures[f"{label}_missed"] = round(percentile(taken["entered"], 0.5), 1), len(taken["lost"])
        figures[f"{label}_p99_ms"] = round(percentile(taken["entered"], 0.99), 1)
    settled = 1000 * SETTLE
    figures["bombs_p99_ratio"] = round((figures["beside_bombs_p99_ms"] + settled) / (figures["alone_p99_ms"] + settled), 2)
    return figures


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000 * len(ordered)) // 1000) - 1))]


def floor_ms(source: Path, folder: Path) -> float:
    """Copying and fsyncing the files of one checkpoint, and nothing else: no pin can be faster here."""
    samples = []
    for number in range(10):
        target = folder / f"floor-{number}"
        began = time.perf_counter()
        target.mkdir()
        for name in JUDGED:
            (target / name).write_bytes((source / name).read_bytes())
            fsync_file(target / name)
        fsync_directory(target)
        samples.append(1000 * (time.perf_counter() - began))
    return statistics.median(samples)


def latencies(folder: Path) -> dict[str, Any]:
    """The figures with one writer (12 times), with 200 that save within 20 seconds, and with 200 that save at once."""
    single: dict[str, list[float]] = {}
    for number in range(12):
        for name, values in latency(folder / f"single-{number}", 1, 0.0).items():
            single.setdefault(name, []).extend(values)
    many, burst = latency(folder / "many", 200, 20.0), latency(folder / "burst", 200, 0.0)
    figures: dict[str, Any] = {}
    for label, taken in (("1_writer", single), ("200_writers", many), ("200_at_once", burst)):
        figures |= {
            f"{label}_p50_ms": round(percentile(taken["entered"], 0.5), 1), f"{label}_p99_ms": round(percentile(taken["entered"], 0.99), 1),
            f"{label}_quiet_p99_ms": round(percentile(taken["quiet"], 0.99), 1),
            f"{label}_intake_p50_ms": round(percentile(taken["intake"], 0.5), 1), f"{label}_missed": len(taken["lost"]),
        }  # fmt: skip
    figures["pin_floor_ms"] = round(floor_ms(folder / "many" / "runs" / "run-000" / "checkpoint-10", folder), 1)
    return {"latency_p50_ms": figures["200_writers_p50_ms"], "latency_p99_ms": figures["200_writers_p99_ms"], **figures}


def sureness(folder: Path, writers: int) -> dict[str, Any]:
    """What each watcher took too early and missed of the same saves."""
    root = folder / "runs"
    root.mkdir(parents=True)
    watch = _watchers.find_watchfiles(folder / "site")
    watchers: dict[str, Any] = {"ckptd": _watchers.Ckptd(folder / "home", root, SETTLE, rescan=2.0)}
    watchers["watchdog_last_file"] = _watchers.OnLastFile(root)
    watchers["watchdog_debounce"] = _watchers.OnDebounce(root)
    if watch is not None:
        watchers["watchfiles"] = _watchers.OnWatchfiles(root, watch)
    try:
        time.sleep(1)
        truth = write_checkpoints("faults", folder, writers, 0.0)
        time.sleep(LIFE)
    finally:
        for watcher in watchers.values():
            watcher.stop()
    meant = {(line["path"], line["digest"]) for line in truth}
    due = {(line["path"], line["digest"]) for line in truth if line["until"] is None or line["until"] - line["since"] >= LIFE - 0.5}
    figures: dict[str, Any] = {"saves": len(due)}
    for name, watcher in watchers.items():
        taken = set(watcher.takes)
        prefix = "" if name == "ckptd" else f"{name}_"
        figures |= {f"{prefix}missed": len(due - taken), f"{prefix}too_early": len(taken - meant)}
        figures[f"{prefix}takes"] = len(watcher.takes)
    return figures


def make_runs(root: Path, runs: int) -> None:
    """Run directories with one small checkpoint each, not complete."""
    for number in range(runs):
        folder = root / f"run-{number:06}" / "checkpoint-10"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").touch()


def by_names(root: Path) -> list[Path]:
    """The peer: a walk that goes by names alone, four levels deep."""
    found, levels = [], [(str(root), 1)]
    while levels:
        folder, level = levels.pop()
        with os.scandir(folder) as listing:
            for entry in listing:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                if is_checkpoint_name(entry.name):
                    found.append(Path(entry.path))
                elif level < 4 and not is_ignored(entry.name):
                    levels.append((entry.path, level + 1))
    return found


def foreign(folder: Path, files: int) -> dict[str, Any]:
    """A data set below a root: the first walk lists it, the next ones ask for its time alone."""
    data = folder / "runs" / "data"
    data.mkdir(parents=True)
    for number in range(files):
        os.close(os.open(data / f"{number}.bin", os.O_CREAT))
    scanner = Scanner()
    times = []
    for _ in range(4):
        times.append(_seconds(lambda: sum(1 for _ in scanner.find(folder / "runs", print))))
        time.sleep(3.1)
    label = f"{files // 1000}k"
    return {f"foreign_{label}_first_s": round(times[0], 3), f"foreign_{label}_later_s": round(times[-1], 6)}


def scans(folder: Path, runs: int) -> dict[str, Any]:
    """The walk over `runs` runs; the first scan with its looks; a rescan of what the journal knows; a hint."""
    root = folder / "runs"
    make_runs(root, runs)
    label = f"{runs // 1000}k"
    walks, named = [], []
    for _ in range(7):  # in turns, and the best of each: what else the box does at that moment belongs to neither
        walks.append(_seconds(lambda: sum(1 for _ in Scanner().find(root, print))))
        named.append(_seconds(lambda: by_names(root)))
    home = _watchers.Ckptd(folder / "home", folder / "nothing", SETTLE)
    home.watcher.stop()
    tracker = Tracker(home.watcher.tracker._settings.model_copy(update={"roots": (root,)}), home.intake, lambda: None)
    first = _seconds(lambda: (tracker.scan(root, 0.0), tracker.look_at_due(0.0)))
    figures: dict[str, Any] = {f"scan_{label}_s": round(min(walks), 3), f"first_look_{label}_s": round(first, 3)}
    figures |= {f"scan_{label}_by_names_s": round(min(named), 3), f"scan_{label}_over_names": round(min(walks) / min(named), 2)}
    if runs <= 10_000:
        known = [(str(path), digest_of_fingerprint(fingerprint(path)), "skipped", "") for path, _ in Scanner().find(root, print)]
        statement = "INSERT INTO seen (path, fingerprint, verdict, at) VALUES (?,?,?,?)"
        home.journal.database.write("bench", lambda c: c.executemany(statement, known))
        tracker = Tracker(tracker._settings, home.intake, lambda: None)
        figures[f"start_{label}_known_s"] = round(_seconds(lambda: (tracker.scan(root, 0.0), tracker.look_at_due(0.0))), 3)
        figures[f"rescan_{label}_known_s"] = round(_seconds(lambda: (tracker.scan(root, 0.0), tracker.look_at_due(0.0))), 3)
        paths = [f"{path}/adapter_config.json" for path, *_ in known]
        figures["hint_us"] = round(1e6 * _seconds(lambda: [tracker.hint(path, 1.0) for path in paths]) / len(paths), 1)
        began = time.perf_counter()
        ckptd = _watchers.Ckptd(folder / "again", root, SETTLE)
        while not ckptd.watcher.last_scan:
            time.sleep(0.005)
        figures[f"watch_and_scan_{label}_s"] = round(time.perf_counter() - began, 3)
        ckptd.stop()
    home.journal.close()
    return figures


def _seconds(function: Any) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = _common.parser("How fast, how surely and how cheaply checkpoints are found.")
    parser.add_argument("--only", choices=("latency", "bombs", "sureness", "scans"), help="a part of it")
    parser.add_argument("--plant", nargs=2, metavar=("PATH", "NUMBER"), help="only write one checkpoint that takes long there")
    options = parser.parse_args()
    if options.plant:
        return plant(Path(options.plant[0]), int(options.plant[1]))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    warnings.filterwarnings("ignore", "Callback with id")  # watchdog says so when it registers a new directory twice
    figures = dict[str, Any]()
    with _common.scratch("detection") as folder:
        if options.only in (None, "latency"):
            figures |= latencies(folder / "latency")
        if options.only in (None, "bombs"):
            figures |= beside_bombs(folder / "bombs")
        if options.only in (None, "sureness"):
            figures |= sureness(folder / "sureness", 32)
        if options.only in (None, "scans"):
            for runs in (10_000, 100_000):
                with tempfile.TemporaryDirectory(prefix="ckptd-bench-", dir=RAM if RAM.is_dir() else None) as tree:
                    figures |= scans(Path(tree), runs)
            with tempfile.TemporaryDirectory(prefix="ckptd-bench-", dir=RAM if RAM.is_dir() else None) as tree:
                figures |= foreign(Path(tree), 1_000_000)
            figures["scan_100k_over_10k"] = round(figures["scan_100k_s"] / figures["scan_10k_s"], 1)
    _common.write("detection", figures, options.json, libraries=("watchdog", "watchfiles", "pydantic", "psutil"))


if __name__ == "__main__":
    main()
