"""Daemons for the fault tests: under the layer, or with file systems of their own; and what must be true of all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from daemon.contract.disk.files import sha256_file
from tests.faults.layer import Faults, settle
from tests.runner.conftest import Toy

QUICK_RETRIES = "[limits]\nretry_seconds = 0.3\nattempts = 50\ndisk_reserve = 0\n"


class FaultyService(Toy):
    """A daemon whose files may fail it. Its stages are toys of a few seconds; everything else is real."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, variants=("pytorch",), extra=QUICK_RETRIES)
        self.environment |= {"TOY_SECONDS": "1.0"}

    _hidden = False
    """Whether its state lies on a file system that only it sees."""

    def start_under(self, faults: Faults) -> None:
        """Start it under the layer."""
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = faults.start(self._command(), stdout=log, stderr=log, env={**os.environ, **self.environment})

    def start_with_disk(self, mounted: Path, size: str) -> None:
        """Start it in a mount namespace of its own in which `mounted` is a small file system."""
        mounted.mkdir(parents=True, exist_ok=True)
        self._hidden = mounted == self.state
        unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
        script = f'mount -t tmpfs -o size={size} tmpfs "{mounted}" && exec "$@"'
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*unshare, "bash", "-c", script, "daemon", *self._command()], stdout=log, stderr=log,
                env={**os.environ, **self.environment},
            )  # fmt: skip

    def remount(self, mounted: Path, how: str) -> None:
        """`ro` or `rw`, as soon as no file is open for writing there."""
        assert self.process is not None
        command = [*self._enter(), "mount", "-o", f"remount,{how}", str(mounted)]
        assert settle(20, lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0), "could not remount"

    def inside(self, path: Path) -> Path:
        """A path as the daemon sees it."""
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}/root{path}")

    def status(self) -> dict[str, Any]:
        """As `Service.status`, from inside where the state can't be seen from here: SQLite resolves links by itself."""
        if not self._hidden:
            return super().status()
        command = [*self._enter(), sys.executable, "-m", "daemon", "status", "--json", "--config", str(self.config)]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        return json.loads(told.stdout) if told.returncode == 0 else {"daemon": {"running": False, "pid": None}, "jobs": []}

    def _enter(self) -> list[str]:
        assert self.process is not None
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self.process.pid), "--mount", *user]

    def _command(self) -> list[str]:
        return [*self.command, str(self.config)]

    def wait_stage(self, name: str, state: str = "running") -> None:
        """Wait until the first job's stage is in that state."""
        self.wait_for(lambda v: any(stage["name"] == name and stage["state"] == state for job in v["jobs"] for stage in job["stages"]), 90)

    def rows(self) -> list[dict[str, Any]]:
        """The log's lines."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]


def assert_went_on(service: FaultyService, exports: Path | None = None, jobs: int = 1) -> None:
    """The daemon lives, every job succeeded, what is published is whole, and what was wrong was said in sentences."""
    ended = service.wait_ended(jobs, 180)
    assert service.process is not None
    assert service.process.poll() is None
    assert [job["state"] for job in ended] == ["succeeded"] * jobs, service.log()[-6000:]
    for job in ended:
        target = Path(job["target"])
        folder = exports / target.relative_to(service.exports) if exports else target
        manifest = json.loads((folder / "MANIFEST.json").read_bytes())
        assert [sha256_file(folder / entry["path"]) for entry in manifest["files"]] == [entry["sha256"] for entry in manifest["files"]]
    assert "Traceback" not in service.log(), service.log()[-6000:]


def assert_said(service: FaultyService, *parts: str, at_most: int = 8) -> None:
    """A sentence with these words stands in the log, and not once a second."""
    said = [row["message"] for row in service.rows() if row.get("level") in ("warning", "error")]
    found = [event for event in said if all(part in event for part in parts)]
    assert 1 <= len(found) <= at_most, said
