"""A state of real exports, one of which has a run with figures and names that would be markup, and its pages."""

from __future__ import annotations

import http.client
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lxml.html
import pytest

from daemon.contract.disk.files import sha256_file
from daemon.contract.jobs.messages import CheckpointRef
from daemon.journal.rows import now
from daemon.operating.monitoring.live import LiveFile, RootState, StageProgress, write_live
from daemon.running.attempts.executor import Whereabouts
from daemon.system.filesystems.disks import Place
from daemon.system.lock import locked
from tests.page.screens.serving import served
from tests.publish.test_run_figures import report
from tests.upgrades.frozen import STATES, thaw

HOSTILE = "<script>alert('run')</script>\"onmouseover=x' {{7*7}} ..%2f \u202eabc"
BAD_LOG = "plain\x1b[31m red\x1b[0m\r\nold\rnew <b>bold</b>\x00 \u202edone\n"
STEPS = (8, 12, 16)


@dataclass
class Page:
    """An answer, and what is in it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def tree(self) -> Any:
        """The elements of the page."""
        return lxml.html.document_fromstring(self.body.decode())

    @property
    def text(self) -> str:
        """What is read."""
        main = self.tree.find(".//main")
        return " ".join((self.tree if main is None else main).text_content().split())

    @property
    def json(self) -> Any:
        """Its value."""
        return json.loads(self.body)


@dataclass
class Pages:
    """The pages of a state."""

    address: str
    home: Path

    def get(self, path: str, language: str = "en", **headers: str) -> Page:
        return self.ask("GET", path, language, **headers)

    def ask(self, method: str, path: str, language: str = "en", body: str | None = None, **headers: str) -> Page:
        """One request; no redirect is followed."""
        connection = http.client.HTTPConnection(self.address.removeprefix("http://"), timeout=60)
        try:
            given = {
                "Accept-Language": language,
                "Accept": "text/html",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            }
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return Page(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()


def fill(home: Path) -> None:
    """Add exports of the run `done` at later steps, with reports that have figures, and one of a run with a hostile name."""
    with closing(sqlite3.connect(home / "state" / "journal.sqlite3")) as connection:
        connection.row_factory = sqlite3.Row
        done = dict(connection.execute("SELECT * FROM job WHERE run = 'done'").fetchone())
        failed = dict(connection.execute("SELECT * FROM job WHERE run = 'failed'").fetchone())
        root = json.loads(Path(done["target"], "report.json").read_bytes())["checkpoint"]["root"]  # where it was frozen
        for step in STEPS:
            _copy(connection, done, f"done-{step}-aa", "done", step)
            _publish(home, Path(done["target"]).with_name(f"step-{step}"), f"done-{step}-aa", step, root)
        _copy(connection, failed, "hostile-4-bb", HOSTILE, 4)
        attempt = connection.execute("SELECT folder FROM attempt WHERE job = 'hostile-4-bb' AND stage = 'merge'").fetchone()
        Path(attempt["folder"], "log.txt").write_text("".join(f"line {number}\n" for number in range(9000)) + BAD_LOG, newline="")
        connection.commit()


def _copy(connection: sqlite3.Connection, job: dict[str, Any], id: str, run: str, step: int) -> None:
    seen = CheckpointRef.model_validate_json(job["checkpoint"])
    metadata = {"loss": 9.0 / step, "epoch": 1.0, "loss_history": [[at, 9.0 / at] for at in range(1, step + 1)], "best_global_step": 12,
                "evaluation": {"eval_loss": 8.0 / step}}  # fmt: skip
    seen = seen.model_copy(update={"run": run, "step": step, "digest": f"{step:064x}", "metadata": metadata})
    target = str(Path(job["target"]).with_name(f"step-{step}")) if run == "done" else f"{job['target']}-of-{id}"
    new = {"id": id, "run": run, "step": step, "checkpoint": seen.model_dump_json(), "identity": seen.identity, "target": target}
    if run == HOSTILE:
        new["reason"] = f"it broke at {HOSTILE}"
    for table, key in (("job", "id"), ("stage", "job"), ("attempt", "job")):
        for row in connection.execute(f"SELECT * FROM {table} WHERE {key} = ?", (job["id"],)).fetchall():
            values = {**dict(row), **(new if table == "job" else {"job": id})}
            if table == "stage" and values["fault"] and run == HOSTILE:
                values["fault"] = json.dumps({**json.loads(values["fault"]), "cause": f"no {HOSTILE}"})
            if table == "attempt":
                values["folder"] = f"{values['folder']}-of-{id}"
                os.makedirs(values["folder"], exist_ok=True)
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def _publish(home: Path, folder: Path, id: str, step: int, root: str) -> None:
    """A published export with a report that has figures, and one that links to its neighbours."""
    folder.mkdir()
    value = report(step, perplexity=8.0 + 4.0 / step)
    value["export_id"] = id
    value["checkpoint"] |= {"root": root, "run": "done"}
    value["artifacts"][0]["figures"] |= {"kl_interval": [0.01, 0.03], "agreement_interval": [0.95, 0.99], "speed_over_pytorch": 2.5,
                                         "speed_over_pytorch_range": [2.0, 3.0]}  # fmt: skip
    (folder / "report.json").write_text(json.dumps(value))
    links = "<a href='../step-4/report.html'>before</a> <a href='../latest/report.html'>latest</a> <a href='../'>all</a>"
    (folder / "report.html").write_text(f"<!doctype html><title>{step}</title><p>{links}<script>alert(1)</script>")
    (folder / "secret.txt").write_text("no part of the export")
    files = [
        {"path": name, "size": (folder / name).stat().st_size, "sha256": sha256_file(folder / name)}
        for name in ("report.html", "report.json")
    ]
    (folder / "MANIFEST.json").write_text(json.dumps({"manifest_version": 1, "export_id": id, "files": files}))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `state` and `exports`."""
    home = tmp_path_factory.mktemp("pages") / "home"
    thaw(STATES / "1.0.0.tar.gz", home)
    fill(home)
    return home


@pytest.fixture(scope="module")
def pages(home: Path) -> Iterator[Pages]:
    """Pages without buttons."""
    with served(home / "state", home / "exports") as address:
        yield Pages(address, home)


@pytest.fixture
def steered(tmp_path: Path) -> Iterator[Pages]:
    """Pages with buttons, of a state that a test may change."""
    home = tmp_path / "home"
    thaw(STATES / "1.0.0.tar.gz", home)
    with served(home / "state", home / "exports", control=True) as address:
        yield Pages(address, home)


@pytest.fixture
def working(tmp_path: Path) -> Iterator[Pages]:
    """Pages of a daemon that works, as far as its lock and its live file say so."""
    home = tmp_path / "home"
    thaw(STATES / "1.0.0.tar.gz", home)
    live = LiveFile(
        pid=os.getpid(), started="2026-01-01T00:00:00+00:00", time=now(), healthy=True, verdict="healthy", jobs=1,
        roots=(RootState(str(home / "runs"), "inotify", True),), places=(Place("output.directory", str(home / "exports"), 1 << 20),),
        progress={"half-4-f9e7312b5339": {"merge": StageProgress(
            1, 0.25, "reads the base", 65.0, "1", 3 << 30, cores=1.5, wanted=2.0, place=Whereabouts("slurm", "77", "running", host="node3"),
        )}},
        waiting={"waits-4-86f000835339": "It waits for memory: 9.00 GiB are needed"}, waiting_codes={"waits-4-86f000835339": "memory-now"},
    )  # fmt: skip
    with served(home / "state", home / "exports", control=True) as address, locked(home / "state" / "lock"):
        write_live(home / "state" / "live.json", live)
        yield Pages(address, home)
