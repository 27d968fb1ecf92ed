"""The trackers' libraries in an environment of their own, a real MLflow server, and exports to tell them of."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from daemon.journal.journal import Journal
from daemon.journal.outbox import enter_message
from daemon.journal.rows import Notice
from tests.environments import of_trackers
from tests.notify.conftest import Notify as Notify
from tests.notify.conftest import notifier_of as notifier_of
from tests.notify.conftest import sending as sending
from tests.ports import free_port

READING = Path(__file__).with_name("reading.py")
FIGURES = {
    "kl": 0.02,
    "agreement": 0.998,
    "perplexity": 12.5,
    "perplexity_ratio": 1.01,
    "scores": {"accuracy": 0.9},
    "speed_over_pytorch": None,
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the libraries."""
    return of_trackers(tmp_path_factory).python("trackers")


def read(python: Path, *words: object) -> Any:
    """What a tracker has, by its own reader."""
    done = subprocess.run([python, "-W", "ignore", READING, *map(str, words)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@dataclass
class MlflowServer:
    """`mlflow server` on a port that stays its own, whether it runs or not."""

    python: Path
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"

    def start(self) -> None:
        """Start it, and wait until it serves; one that runs goes on."""
        if self.process is not None:
            return
        words = ["--backend-store-uri", f"sqlite:///{self.folder}/store.db", "--artifacts-destination", str(self.folder / "artifacts")]
        port = self.url.rpartition(":")[2]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "mlflow", "server", *words, "--host", "127.0.0.1", "--port", port, "--workers", "1"],
                stdout=log, stderr=log, env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + 300
        while not self._serves():
            assert self.process.poll() is None and time.monotonic() < end, (self.folder / "server.log").read_text()[-3000:]
            time.sleep(0.2)

    def stop(self) -> None:
        """End it, with its workers."""
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def has(self, name: str) -> Any:
        """What it has of a model, and of the run of the same name."""
        seen = read(self.python, "mlflow", self.url, name)
        return {**seen, "runs": [run for run in seen["runs"] if run["name"] == name]}


@pytest.fixture(scope="session")
def server(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """One for all tests, of which each has a model and a run of its own. It runs once a test starts it."""
    server = MlflowServer(library, tmp_path_factory.mktemp("mlflow"))
    yield server
    server.stop()


@dataclass
class Exports:
    """Published exports, as far as a tracker reads them, and the messages about them."""

    folder: Path
    journal: Journal

    def ends(
        self, step: int, state: str = "succeeded", *, run: str = "llama", rejected: tuple[str, ...] = (), report: bool = True,
        root: str = "/runs", job: str = "",
    ) -> str:  # fmt: skip
        """An export is published, and its message entered; gives the job."""
        target, job = self.folder / (run if root == "/runs" else f"{run}~2") / f"step-{step}", job or f"{run}-{step}-0123"
        target.mkdir(parents=True, exist_ok=True)
        if report:
            self.write_report(target, job, run, step, state, rejected, root)
        about: dict[str, Any] = {
            "events": [state], "run": run, "step": step, "verdict": f"{state}: as it was", "rejected": [*rejected], "target": str(target),
        }  # fmt: skip
        notice = Notice(state, f"{run} step {step}: {state}", "body", about)
        self.journal.database.write("end", lambda c: enter_message(c, job, notice))
        return job

    @staticmethod
    def write_report(target: Path, job: str, run: str, step: int, state: str, rejected: tuple[str, ...] = (), root: str = "/runs") -> None:
        """The files that lie beside the artifacts."""
        rows = [
            {"variant": variant, "verdict": "failed" if variant in rejected else "passed", "published": variant not in rejected,
             "size_bytes": 1 << 20, "size_ratio": 0.5, "figures": FIGURES}
            for variant in ("onnx", "onnx-int8")
        ]  # fmt: skip
        report = {
            "export_id": job, "status": state, "finished": f"2026-03-01T12:{step % 60:02d}:00+00:00", "artifacts": rows,
            "checkpoint": {"step": step, "run": run, "root": root, "path": f"{root}/{run}/checkpoint-{step}"},
        }  # fmt: skip
        (target / "report.json").write_text(json.dumps(report))
        (target / "report.html").write_text("<p>report</p>")

    def waiting(self) -> list[tuple[str, int, str | None]]:
        """State, attempts and error of each delivery."""
        rows = self.journal.database.read(
            "SELECT d.state, d.attempts, t.last_error FROM delivery d JOIN target t ON t.digest = d.target ORDER BY d.message"
        )
        return [(row[0], row[1], row[2]) for row in rows]


@pytest.fixture
def exports(tmp_path: Path, journal: Journal) -> Exports:
    return Exports(tmp_path / "exports", journal)


@pytest.fixture
def again(journal: Journal) -> Callable[[], None]:
    """Lets all that was delivered be delivered once more, as after a kill before it was recorded."""

    def undo(c: sqlite3.Connection) -> None:
        c.execute("UPDATE delivery SET state = 'pending', ended = NULL")
        c.execute("UPDATE outbox SET state = 'pending', delivered = NULL")

    return lambda: journal.database.write("again", undo)
