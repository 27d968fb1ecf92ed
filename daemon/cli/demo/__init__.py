"""`ckptd demo`: a training and a daemon side by side on this machine, from nothing to verified artifacts in a few minutes.

Called by the command line. It makes a small real base, starts `ckptd run` as a user would, fine-tunes the base with
Trainer and PEFT in a third process, shows what happens, and judges the published exports by their reports. All models
are made here from the docstrings of Python's standard library; nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live

from daemon.cli.demo import processes, results
from daemon.cli.demo.setup import configure, prepare
from daemon.cli.demo.view import ENDED, Training, changes, live
from daemon.cli.views.markup import escape, escape_lines
from daemon.contract import units
from daemon.contract.faults.errors import CkptdError, Permanent, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.options import ExportOptions
from daemon.contract.language.catalog import translated, translated_text
from daemon.operating.monitoring.status import snapshot

ASKED = ExportOptions().variants
"""What is exported: the demo's configuration leaves that as it is."""
STEPS_A_CHECKPOINT = 50
BASE_SECONDS = 25.0
PROMPT, PENALTY = "Create a", "1.15"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DRAW_SECONDS = 0.25
PATIENCE_SECONDS = 600.0
"""How long the exports may go on after the training's end: ten times what they take on two busy cores."""


class Ended(Exception):
    """A signal asks the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Demo:
    """One demonstration in `folder`: its processes, what is known about them, and the screen. `asked`: numbers of signals to end it."""

    def __init__(
        self, folder: Path, console: Console, *, checkpoints: int, base_seconds: float, kept: bool, asked: Sequence[int] = ()
    ) -> None:
        self.folder, self.console, self._asked = folder, console, asked
        self.checkpoints, self.base_seconds, self.kept = checkpoints, base_seconds, kept
        self.base, self.run = Training(translated("base model")), Training(translated("fine-tuning"))
        self.snapshot = snapshot(self.folder / "state")
        self.children: list[processes.Child] = []
        self.started = time.monotonic()
        self._live: Live | None = None
        for name in ("runs", "bases", "exports", "logs"):
            (folder / name).mkdir()

    def play(self) -> int:
        """Play all of it; give the exit code. Raises CkptdError where a process fails."""
        base, run = self.folder / "bases" / "pico-english", self.folder / "runs" / "asyncio"
        cores = len(os.sched_getaffinity(0))
        self.say(translated("Everything happens in {folder}").format(folder=self.folder))
        with self.screen():
            maker = self.start("base", ["handlers.demo.make_base", str(base), *_options(seconds=self.base_seconds, threads=min(cores, 4))])
            self.follow(self.base, maker)
            daemon = self.start("daemon", ["daemon", "run", "--config", str(configure(self.folder, min(self.checkpoints, cores + 1)))])
            # One thread: a box that trains on GPUs has cores to spare, and exports take those at the lowest priority.
            steps = self.checkpoints * STEPS_A_CHECKPOINT
            options = _options(steps=steps, save_steps=STEPS_A_CHECKPOINT, threads=1)
            trainer = self.start("finetune", ["handlers.demo.finetune", str(base), str(run), *options])
            self.follow(self.run, trainer, daemon)
            self.await_exports(daemon)
        code = self.show_results()
        return max(code, self.stop_daemon(daemon))

    # Processes

    def start(self, name: str, arguments: list[str]) -> processes.Child:
        """Start a child that `end` will end."""
        child = processes.start(name, arguments, self.folder / "logs")
        self.children.append(child)
        return child

    def follow(self, training: Training, child: processes.Child, daemon: processes.Child | None = None) -> None:
        """Show a training until it ends. Raises Permanent when it, or the daemon meanwhile, fails."""
        while (code := child.process.poll()) is None:
            self._take(training, child)
            self.look(daemon)
        self._take(training, child)
        if code != 0 or training.state != "done":
            raise _broken(child, translated("it ended with exit code {code}").format(code=code))

    def _take(self, training: Training, child: processes.Child) -> None:
        for event in child.events():
            if line := training.take(event):
                self.tell(line)

    def look(self, daemon: processes.Child | None) -> None:
        """Read the daemon's state, draw, and pause. Raises Permanent when the daemon has ended, Ended when a signal was."""
        if self._asked:  # Python drops what a signal raises inside of a destructor or a callback of a lock
            raise Ended(self._asked[0])
        if daemon is not None:
            try:
                now = snapshot(self.folder / "state")
            except sqlite3.OperationalError:
                now = self.snapshot  # the journal is being written right now: the next look shows it
            for line in changes(self.snapshot, now):
                self.tell(line)
            self.snapshot = now
            if (code := daemon.process.poll()) is not None:
                raise _broken(daemon, translated("the daemon ended by itself with exit code {code}").format(code=code))
        if self._live is not None:
            self._live.update(live([self.base, self.run], self.snapshot, time.monotonic() - self.started), refresh=True)
        time.sleep(DRAW_SECONDS)

    def await_exports(self, daemon: processes.Child) -> None:
        """Show the exports until each saved checkpoint's has ended, or patience has."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            self.look(daemon)
            ended = {job.step for job in self.snapshot.jobs if job.state in ENDED}
            if set(self.run.saved) <= ended:
                return
        self.tell(translated("Not every export ended within {time}").format(time=units.duration(PATIENCE_SECONDS)))

    def stop_daemon(self, daemon: processes.Child) -> int:
        """Ask the daemon to end, as systemd would; 1 when it did not do so in order."""
        code = daemon.end(20)
        self.say(translated("The daemon was sent SIGTERM and ended with exit code {code}").format(code=code))
        return 0 if code == 0 else 1

    def end(self) -> None:
        """End what still runs: the trainings first, the daemon last, which ends its own children."""
        for child in sorted(self.children, key=lambda child: child.name == "daemon"):
            child.end(20 if child.name == "daemon" else 5)

    # Screen

    @contextmanager
    def screen(self) -> Iterator[None]:
        """A live picture where there is a terminal; lines elsewhere."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, auto_refresh=False, vertical_overflow="ellipsis") as self._live:
            yield
        self._live = None

    def say(self, line: str) -> None:
        """A line for everybody."""
        self.console.print(escape_lines(line), highlight=False, soft_wrap=True)

    def tell(self, line: str) -> None:
        """A line for those who do not see the live picture."""
        if self._live is None:
            self.say(f"{time.monotonic() - self.started:6.1f} s  {line}")

    # End

    def show_results(self) -> int:
        """The table, where the reports lie that are kept, and what the last int8 artifact writes; give the exit code."""
        rows = results.rows_of(self.snapshot, self.run.saved, ASKED)
        self.console.print(results.table(rows))
        self.say(
            translated(
                "error: largest logit error, in standard deviations; agree: how often its most likely token is the live model's;\n"
                "speed: how many times as fast as PyTorch in fp32, measured in turns on this machine."
            )
        )
        for line in results.complaints(rows):
            self.console.print(escape(line), style="red", soft_wrap=True)
        targets = {job.step: Path(job.target) for job in self.snapshot.jobs}
        for step in self.run.saved:
            if self.kept and step in targets and (report := targets[step] / "report.html").is_file():
                self.say(translated("Report of checkpoint-{step}: {report}").format(step=step, report=report))
        code = results.exit_code(rows)
        last = targets.get(max(self.run.saved, default=-1))
        if last is not None and (last / "onnx-int8").is_dir():
            code = max(code, self.show_text(last / "onnx-int8"))
        return code

    def show_text(self, artifact: Path) -> int:
        """What the base wrote and what the artifact writes after the same prompt; 1 when it can't be run."""
        command = [sys.executable, str(artifact / "example.py"), PROMPT, "--tokens", "40"]
        command += ["--repetition-penalty", PENALTY]  # small models go round in circles without one
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL, timeout=120
        )
        if self.base.sample:
            self.console.rule(translated("the base, after {prompt!r}").format(prompt=self.base.sample[0]), align="left")
            self.say(self.base.sample[1])
        title = translated("the last {name}, fine-tuned on asyncio, after {prompt!r}").format(name=artifact.name, prompt=PROMPT)
        self.console.rule(title, align="left")
        self.say(done.stdout.rstrip() if done.returncode == 0 else done.stderr[-2000:])
        self.console.rule()
        return 0 if done.returncode == 0 and done.stdout.strip() else 1


def _options(**values: float) -> list[str]:
    return [part for name, value in values.items() for part in ("--" + name.replace("_", "-"), str(value))]


def _broken(child: processes.Child, cause: str) -> Permanent:
    words = child.last_words()
    last = translated("{cause}; its last output was: {line}")
    cause = last.format(cause=cause, line=words.splitlines()[-1].strip()) if words else cause
    operation = translated("run the demo's process {name!r}").format(name=child.name)
    remedy = translated("read {log}, kept with --keep DIR").format(log=child.log)
    return Permanent(FaultCode.DEMO_PROCESS, operation, cause, remedy, details=words)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Turn SIGINT, SIGTERM and SIGHUP into `Ended` once, and note them; while all is then put in order, they are ignored."""
    asked = list[int]()

    def ended(number: int, _: FrameType | None) -> None:
        _ignore_signals()
        asked.append(number)
        raise Ended(number)

    before = {number: signal.signal(number, ended) for number in SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(keep: Path | None, checkpoints: int = 3, base_seconds: float = BASE_SECONDS) -> int:
    """Play the demo; give the exit code: 0 when each artifact of each checkpoint is there and passed, else 1; 2 for wrong usage.

    `keep`: a new or empty folder in which everything stays; None: a temporary folder that is removed. 128 + signal
    when one ended it.
    """
    console, errors = Console(), Console(stderr=True)
    try:
        folder = prepare(keep)
    except UsageError as error:
        errors.print(escape_lines(translated_text(str(error))), soft_wrap=True)
        return 2
    with ExitStack() as order:
        asked = order.enter_context(_signals())
        if keep is None:
            order.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            demo = Demo(folder, console, checkpoints=checkpoints, base_seconds=base_seconds, kept=keep is not None, asked=asked)
            order.callback(demo.end)
            order.callback(_ignore_signals)
            code = demo.play()
        except Ended as error:
            console.print(translated("Ended by {name}; ending the demo's processes").format(name=signal.Signals(error.number).name))
            return 128 + error.number
        except CkptdError as error:
            errors.print(escape_lines(translated_text(str(error))), style="red", soft_wrap=True)
            return 1
        deleted = translated("The demo took {time}; its files, reports included, are deleted now (--keep DIR keeps them)")
        kept = translated("The demo took {time}; all files are kept in {folder}")
        demo.say((kept if keep else deleted).format(time=units.running(time.monotonic() - demo.started), folder=folder))
        return code
