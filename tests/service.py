"""A real daemon in a child process, as a user would start it, for tests that look at it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import psutil

from daemon.operating.monitoring.status import snapshot
from tests.verbs import run_verb, start_program

QUICK = "samples = 2\nmost_samples = 2\nnew_tokens = 6\nspeed_tokens = 0\n"
ENDED = ("succeeded", "partial", "failed", "superseded", "cancelled")


class Service:
    """`ckptd run` on a configuration of its own below `folder`; roots, exports and state lie there too."""

    command: tuple[str, ...] = (sys.executable, "-m", "daemon", "run", "--config")

    def __init__(self, folder: Path, *, variants: tuple[str, ...] = ("pytorch",), extra: str = "", root: Path | None = None) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        self.said = ""
        self.root = root or folder / "runs"
        self.exports = folder / "exports"
        self.state = folder / "state"
        self.root.mkdir(parents=True, exist_ok=True)
        self.config = folder / "config.toml"
        self.config.write_text(
            f'[watch]\nroots = ["{self.root}"]\nsettle_seconds = 0.3\nrescan_seconds = 2\n'
            f'[output]\ndirectory = "{self.exports}"\n[state]\ndirectory = "{self.state}"\n'
            f"[export]\nvariants = {json.dumps(list(variants))}\n[validate]\n{QUICK}{extra}"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, fault: str | None = None) -> None:
        """Start the daemon; `fault`: the named point at which it kills itself."""
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", **self.environment}
        environment.pop("CKPTD_FAULT", None)
        if fault:
            environment["CKPTD_FAULT"] = fault
        self.process = start_program([*self.command, str(self.config)], environment, self.folder / "daemon.log")

    def stop(self) -> int:
        """End it as systemd would, once it serves; gives the exit code."""
        process = self.process
        assert process is not None
        self.wait_for(lambda v: v["daemon"]["running"] and v["daemon"]["pid"] == process.pid, 20)
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def wait_dead(self, seconds: float = 90) -> int:
        """Wait until the daemon has died by itself; gives the exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def status(self) -> dict[str, Any]:
        """What `ckptd status --json` tells."""
        value: dict[str, Any] = json.loads(json.dumps(asdict(snapshot(self.state))))
        return value

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 120) -> dict[str, Any]:
        """Wait until the status fulfils a condition; fails with the log's end when it does not in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.status()
            if condition(value):
                return value
            if self.process is not None and self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise AssertionError(f"not in time; jobs: {json.dumps(self.status()['jobs'], indent=1)[-3000:]}\n{self.log()[-4000:]}")

    def wait_ended(self, count: int = 1, seconds: float = 120) -> list[dict[str, Any]]:
        """Wait until `count` jobs have ended and no more is open."""
        value = self.wait_for(lambda v: len(v["jobs"]) >= count and all(job["state"] in ENDED for job in v["jobs"]), seconds)
        return list(value["jobs"])

    def run_verb(self, *words: str) -> int:
        """`ckptd VERB …` on this service's configuration; gives the exit code, what it said is in `said`."""
        answer = run_verb([*words, "--config", str(self.config)], Path.cwd(), {**os.environ, "NO_COLOR": "1"}, timeout=60)
        self.said = answer.stdout + answer.stderr
        return answer.returncode

    def log(self) -> str:
        """What the daemon wrote to stderr."""
        return (self.folder / "daemon.log").read_text()

    def children(self) -> list[psutil.Process]:
        """Live processes that the daemon started, with theirs."""
        assert self.process is not None
        try:
            return [child for child in psutil.Process(self.process.pid).children(recursive=True) if child.status() != "zombie"]
        except psutil.NoSuchProcess:
            return []

    def attempts(self) -> list[psutil.Process]:
        """Those of them that work on an attempt, and are not there to be forked."""
        found = []
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                found += [child] if child.cwd() != "/" else []
        return found

    def add(self, checkpoint: Path, run: str = "run", name: str | None = None) -> Path:
        """Copy a checkpoint below the root, as a trainer's directory."""
        target = self.root / run / (name or checkpoint.name)
        shutil.copytree(checkpoint, target)
        return target


Made = TypeVar("Made", bound=Service)


def making(kind: type[Made], below: Path) -> Iterator[Callable[..., Made]]:
    """For a fixture: gives a function that makes services in folders below `below`, and ends whatever is left of them."""
    made: list[Made] = []

    def make(**options: Any) -> Made:
        folder = below / f"service-{len(made)}"
        folder.mkdir()
        made.append(kind(folder, **options))
        return made[-1]

    yield make
    for service in made:
        if service.process is not None and service.process.poll() is None:
            service.kill()


def listing(folder: Path) -> list[str]:
    """All names below a folder, links with their targets."""
    rows = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        rows.append(f"{name} -> {path.readlink()}" if path.is_symlink() else name)
    return rows


def stray_handlers(folder: Path) -> list[int]:
    """Processes of ours whose command line names `folder` and which are no zombies: nobody may be left."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if "handlers" in line and str(folder) in line and process.info["status"] != "zombie":
            found.append(process.info["pid"])
    return found
