"""What the checks do with a site: deliver in the real process, kill it, and read meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daemon.contract.delivering.orders import End, Order, Receipt
from tests.clock import shift
from tests.deliver import exports
from tests.deliver.contract.site import Site
from tests.deliver.exports import Export
from tests.deliver.proxy import Proxy
from tests.verbs import start_module

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 120.0
PAUSE = "0.05"
"""Seconds before a second try, in place of some that nobody waits for in a test."""


class Delivery:
    """A running `python -m handlers.deliver`."""

    def __init__(self, order: Order, site: Site, stop_at: int = 0, log: Path | None = None, clock: Path | None = None) -> None:
        environment = {**os.environ, **site.variables, "PAUSE": PAUSE}
        if clock:
            environment |= {"CLOCK_SHIFT": str(clock), "PYTHONPATH": os.pathsep.join([str(shift.SITE), str(ROOT)])}
        if stop_at or log:
            environment |= {"STOP_AT": str(stop_at), "STOP_BELOW": str(site.folder), "STOP_LOG": str(log or "")}
        self.secret = site.secret
        self.notes: dict[str, Any] = dict(order.resume)
        self.lines: list[dict[str, Any]] = []
        self.errors = b""
        self._ended = False
        imports = ("handlers.deliver.__main__", order.entry.partition(":")[0])
        self.process = (
            _with_interpreter(site, environment)
            if clock or site.own_interpreter
            else start_module("tests.deliver.contract.stopping", site.folder, environment, imports)
        )
        assert self.process.stdin is not None
        self.process.stdin.write(order.model_dump_json().encode())
        self.process.stdin.close()
        self._threads = [threading.Thread(target=self._read, daemon=True), threading.Thread(target=self._read_errors, daemon=True)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                self.lines.append(said)
                if said["say"] == "note":
                    if said["value"] is None:
                        self.notes.pop(said["name"], None)
                    else:
                        self.notes[said["name"]] = said["value"]

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.wait()

    def wait(self) -> Delivery:
        """Wait until it ended, by itself or killed."""
        self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        if self.secret:
            assert self.secret not in json.dumps(self.lines) + self.errors.decode(errors="replace"), "the secret was said"
        return self

    @property
    def killed(self) -> bool:
        return self.process.returncode == -9

    @property
    def end(self) -> End:
        """How it ended; it did."""
        self.wait()
        assert self.process.returncode == 0, self.errors.decode(errors="replace")
        assert self.lines and self.lines[-1]["say"] == "end", self.errors.decode(errors="replace")
        return End.model_validate(self.lines[-1])

    @property
    def receipt(self) -> Receipt:
        """Of a delivery that must succeed."""
        end = self.end
        assert end.fault is None and end.receipt is not None, (
            f"{end.fault and end.fault.sentence()}\n{self.errors.decode(errors='replace')}"
        )
        return end.receipt

    @property
    def warnings(self) -> list[str]:
        return [line["text"] for line in self.lines if line["say"] == "warning"]


def _with_interpreter(site: Site, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """What a daemon starts."""
    pipe, path = subprocess.PIPE, {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "handlers.deliver"]
    return subprocess.Popen(command, cwd=site.folder, env={**path, **environment}, stdin=pipe, stdout=pipe, stderr=pipe)


@contextlib.contextmanager
def started(site: type[Site], folder: Path, **given: Any) -> Iterator[Bench]:
    """A bench over a started far end of its own; `given`: attributes that it needs to start."""
    (far_end := folder / "far end").mkdir()
    made = site(far_end)
    for name, value in given.items():
        setattr(made, name, value)
    with made:
        yield Bench(made, folder)


class Bench:
    """A started site, and exports beside it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self._folder = site, folder
        self._exports = 0

    @property
    def proxy(self) -> Proxy:
        """Of a site that has one."""
        assert self.site.proxy is not None
        return self.site.proxy

    def export(self, step: int = 100, **how: Any) -> Export:
        """A published export in a folder of its own."""
        self._exports += 1
        made = exports.make(self._folder / f"export-{self._exports}", step=step, **{"files": self.site.files, **how})
        self.site.dress(made)
        return made

    def start(self, export: Export | None, stop_at: int = 0, log: Path | None = None, clock: Path | None = None, **order: Any) -> Delivery:
        """Start a delivery; `clock`: the file of a `tests.clock.shift.Shift`."""
        scratch = self._folder / "scratch"
        scratch.mkdir(exist_ok=True)
        wanted = Order(
            kind=self.site.kind, entry=self.site.entry, name="tried", options=self.site.options(), secret=self.site.secret,
            export=str(export.folder) if export else "", scratch=str(scratch), **order,
        )  # fmt: skip
        return Delivery(wanted, self.site, stop_at, log, clock)

    def deliver(self, export: Export | None, **order: Any) -> Delivery:
        """A delivery, ended."""
        return self.start(export, **order).wait()

    def listed(self, run: str = "") -> list[Any]:
        """What the target lists."""
        return list(self.deliver(None, action="list", run=run).end.listed or ())

    def remove(self, *versions: str) -> End:
        """Take them away."""
        return self.deliver(None, action="remove", remove=versions).end

    def assert_whole(self, *exports: Export) -> None:
        """No reader gets anything but whole versions of those."""
        wholes = [dict(self.site.expected(export)) for export in exports]
        for run in {export.run for export in exports}:
            for version, contents in self.site.visible(run).items():
                assert dict(contents) in wholes, f"{version} is not whole: {sorted(contents)}"

    @contextlib.contextmanager
    def reader(self, *exports: Export) -> Iterator[list[str | None]]:
        """Somebody who reads all the time, and what the followed name stood for; all that is seen must be whole."""
        ended, seen, problems = threading.Event(), [], []

        def read() -> None:
            while not ended.is_set():
                try:
                    self.assert_whole(*exports)
                    current = self.site.current(exports[0].run)
                    if current is not None and current not in self.site.visible(exports[0].run):
                        problems.append(f"the followed name stands for {current}, which is not there")
                    if not seen or seen[-1] != current:
                        seen.append(current)
                except Exception as problem:
                    problems.append(problem)
                    return

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            ended.set()
            thread.join(PATIENCE)
        assert not problems, problems[0]
