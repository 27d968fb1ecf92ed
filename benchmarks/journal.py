"""What the journal costs: a start with 10 and with 100,000 jobs in it, and commits a second, beside two usual ways to keep a queue.

A start is measured in a process of its own, from opening the file to the first stage claimed. The commits are those that
each attempt of a stage takes (claim, settle), each durable when it returns. Beside them, in turns: SQLite in WAL mode with
synchronous=NORMAL (quick, and the last commits may be gone after a power cut), and a JSON file rewritten with fsync.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common

STAGES = ("merge", "pytorch", "onnx", "onnx-int8", "reference", "merged", "check-onnx", "check-onnx-int8", "speed", "report")
OPEN_JOBS = 10
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
"""When the first job of a journal was entered; one a second."""
START = """
import sys, time
from pathlib import Path
from daemon.operating.integrity.maintenance import open_journal
from daemon.config.places.paths import prepare
from daemon.journal.attempts import Intent
from daemon.journal.rows import AttemptId
began = time.perf_counter()
paths = prepare(Path(sys.argv[1]), Path(sys.argv[2]))
journal = open_journal(paths)
job = journal.jobs.first_of(journal.jobs.lanes()[0])
journal.jobs.start(job.id, None)
stages = journal.stages.of(job.id)
journal.attempts.claim(Intent(AttemptId(job.id, "merge", stages["merge"].attempts + 1), Path("/attempt"), Path("/staging"), 1))
print(1000 * (time.perf_counter() - began))
"""


def fill(state: Path, output: Path, jobs: int) -> None:
    """A journal with `jobs` jobs of six stages, all but the last ten of which have ended; rows as large as real ones."""
    from daemon.config.places.paths import prepare
    from daemon.contract.disk.files import FileEntry
    from daemon.contract.jobs.messages import CheckpointRef, Outcome, StageResult
    from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
    from daemon.journal.journal import Journal

    journal = Journal(prepare(state, output).journal)
    work = Work(export=ExportOptions(), validation=ValidateOptions())
    files = tuple(FileEntry(path=f"model-{number}.safetensors", size=10**9, sha256="a" * 64) for number in range(6))
    result = StageResult(outcome=Outcome.SUCCEEDED, files=files, figures={"text": "x" * 200}).model_dump_json()

    def write(c: sqlite3.Connection) -> None:
        for number in range(jobs):
            seen = CheckpointRef(
                root="/runs", run=f"run-{number % 50}", step=number, path=f"/runs/run-{number % 50}/checkpoint-{number}", layout="trainer",
                digest=f"{number:064}", method="LORA", metadata={"loss": 1.0, "history": [[step, 1.25] for step in range(20)]},
            )  # fmt: skip
            entered = (FIRST + timedelta(seconds=number)).isoformat(timespec="milliseconds")
            ended, job = number < jobs - OPEN_JOBS, f"run-{number % 50}-{number:012}"
            c.execute(
                "INSERT INTO job (id, identity, work_digest, root, run, step, checkpoint, work, pin, target, state, created, started)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (job, seen.identity, work.digest, "/runs", seen.run, number, seen.model_dump_json(), work.model_dump_json(),
                 f"/pins/{job}", f"/out/{job}", "succeeded" if ended else "pending", entered,
                 "2026" if ended else None),
            )  # fmt: skip
            c.executemany(
                "INSERT INTO stage (job, name, position, state, attempts, folder, result) VALUES (?,?,?,?,?,?,?)",
                [(job, name, place, "succeeded" if ended else "waiting", int(ended), f"/staging/{job}" if ended else None,
                  result if ended else None) for place, name in enumerate(STAGES)],
            )  # fmt: skip
            if ended:
                c.executemany(
                    "INSERT INTO attempt (job, stage, number, strategy, outcome, folder, staging, started)"
                    " VALUES (?,?,1,'default','succeeded',?,?,'2026')",
                    [(job, name, f"/state/jobs/{job}/{name}.1", f"/staging/{job}") for name in STAGES],
                )
            c.execute("INSERT INTO seen VALUES (?,?,'taken',?,'2026')", (seen.path, "f" * 64, job))

    journal.database.write("fill", write)
    journal.close()


def restart_ms(folder: Path, jobs: int, rounds: int) -> tuple[float, float]:
    """Median of the time from opening to the first claim, in ms, and the file's size in MB."""
    fill(folder / "state", folder / "exports", jobs)
    environment = {**os.environ, "PYTHONPATH": str(_common.ROOT)}
    taken = [
        float(subprocess.run([*_common.python("-c", START), str(folder / "state"), str(folder / "exports")], env=environment, check=True,
                             capture_output=True, text=True).stdout)
        for _ in range(rounds)
    ]  # fmt: skip
    return statistics.median(taken), (folder / "state" / "journal.sqlite3").stat().st_size / 1e6


def our_commits(folder: Path) -> Callable[[int], None]:
    """Claim and settle a stage, again and again: two commits a turn."""
    from daemon.contract.jobs.messages import Outcome, StageResult
    from daemon.journal.attempts import Intent
    from daemon.journal.journal import Journal
    from daemon.journal.rows import AttemptId

    fill(folder / "state", folder / "exports", OPEN_JOBS)
    journal = Journal(folder / "state" / "journal.sqlite3")
    job = min(journal.jobs.open_ids())
    journal.jobs.start(job, None)
    result, attempt = StageResult(outcome=Outcome.INTERRUPTED), 0

    def work(count: int) -> None:
        nonlocal attempt
        for _ in range(count // 2):
            attempt += 1
            journal.attempts.claim(Intent(AttemptId(job, "merge", attempt), Path("/attempt"), Path("/staging"), 1))
            journal.attempts.settle(AttemptId(job, "merge", attempt), result, state="waiting")

    return work


def wal_commits(folder: Path) -> Callable[[int], None]:
    """The same two rows by autocommit in WAL mode with synchronous=NORMAL."""
    connection = sqlite3.connect(folder / "wal.sqlite3", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE attempt (number INTEGER PRIMARY KEY, outcome TEXT, folder TEXT)")
    number = 0

    def work(count: int) -> None:
        nonlocal number
        for _ in range(count // 2):
            number += 1
            connection.execute("INSERT INTO attempt VALUES (?, NULL, ?)", (number, "/attempt"))
            connection.execute("UPDATE attempt SET outcome = 'interrupted' WHERE number = ?", (number,))

    return work


def file_commits(folder: Path) -> Callable[[int], None]:
    """A JSON file of ten jobs, rewritten, synced and renamed for each change."""
    from daemon.contract.disk.files import write_atomic

    jobs = [{"id": str(job), "stages": {name: {"state": "waiting", "attempts": 0} for name in STAGES}} for job in range(OPEN_JOBS)]

    def work(count: int) -> None:
        for number in range(count):
            jobs[0]["attempts"] = number
            write_atomic(folder / "queue.json", json.dumps(jobs))

    return work


def commits(folder: Path, seconds: float, rounds: int) -> dict[str, float]:
    """Way → median of commits a second, measured in turns."""
    ways: dict[str, Callable[[int], None]] = {}
    for name, make in (("ours", our_commits), ("wal", wal_commits), ("file", file_commits)):
        (folder / name).mkdir()
        ways[name] = make(folder / name)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            count, began = 0, time.perf_counter()
            while time.perf_counter() - began < seconds:
                work(20)
                count += 20
            found[name].append(count / (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in found.items()}


def check_seconds(file: Path) -> tuple[float, float]:
    """Seconds of the scheduled full check, and of one backup."""
    from daemon.journal.file.database import Database

    database = Database(file)
    began = time.perf_counter()
    if database.check(full=True):
        raise RuntimeError("the journal is not sound")
    checked = time.perf_counter()
    database.backup(file.with_name("copy.sqlite3"))
    taken = time.perf_counter() - checked
    database.close()
    with closing(sqlite3.connect(file)):
        return checked - began, taken


def memory_of_many(jobs: int) -> tuple[float, float]:
    """MB of 10⁶ bytes that the daemon's parts hold after a tenth of `jobs` jobs, and after all of them. In memory, to spare the disk."""
    with _common.scratch("many") as disk:
        shared = Path("/dev/shm")
        folder = shared / disk.name if shared.is_dir() else disk
        try:
            command = _common.python(str(Path(__file__).with_name("_many_jobs.py")), str(folder), str(jobs))
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    sizes = [int(line.split()[1]) / 1e6 for line in said if line]
    return sizes[0], sizes[-1]


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = _common.parser("What the journal costs at a start and at each commit.")
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs in the large journal")
    parser.add_argument("--many", type=int, default=10_000, help="jobs that are worked through to see whether memory grows")
    options = parser.parse_args()
    with _common.scratch("journal") as folder:
        small, _ = restart_ms(folder / "small", OPEN_JOBS, 5)
        large, size = restart_ms(folder / "large", options.jobs, 5)
        checked, copied = check_seconds(folder / "large" / "state" / "journal.sqlite3")
        rates = commits(folder, 1.0, 3)
    early, late = memory_of_many(options.many)
    figures: dict[str, Any] = {
        "restart_ms": round(small, 1), "restart_100k_ms": round(large, 1), "large_jobs": options.jobs, "large_mb": round(size, 1),
        "full_check_100k_s": round(checked, 2), "backup_100k_s": round(copied, 2),
        "commits_per_s": round(rates["ours"]), "wal_normal_commits_per_s": round(rates["wal"]),
        "json_file_commits_per_s": round(rates["file"]), "commits_over_json_file": round(rates["ours"] / rates["file"], 2),
        "rss_mb_after_a_tenth": round(early, 1), "rss_mb_after_all": round(late, 1), "many_jobs": options.many,
    }  # fmt: skip
    _common.write("journal", figures, options.json, libraries=("pydantic",))


if __name__ == "__main__":
    main()
