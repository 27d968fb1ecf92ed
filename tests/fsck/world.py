"""A state directory and an output as a daemon leaves them, made through the journal's and the publication's own doors."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from daemon.checkpoints.pinning.pins import identify
from daemon.config.places.paths import prepare
from daemon.contract.disk.files import remove_tree, seal
from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import ArtifactCheck, CheckpointRef, Outcome, StageResult, Verdict
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from daemon.journal.attempts import Intent
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId, Notice
from daemon.operating.integrity.fsck import Findings, examine
from daemon.publishing.exchange.swap import start_afresh
from daemon.publishing.publication import ExportPart, assemble
from tests.publish.parts import link, swap_in

WORK = Work(export=ExportOptions(variants=("pytorch",)), validation=ValidateOptions(speed_tokens=0))
STAGES = ("merge", "pytorch", "reference", "merged", "report")
FAULT = Fault(code="c", operation="o", cause="it broke", remedy="mend it")


class World:
    """Jobs that are entered, worked on and ended step by step, without any child process."""

    def __init__(self, home: Path) -> None:
        self.paths = prepare(home / "state", home / "exports")
        self.journal = Journal(self.paths.journal)
        self.numbers: dict[tuple[str, str], int] = {}

    def close(self) -> None:
        self.journal.close()

    def repin(self, step: int) -> Path:
        """The pin of a job."""
        pin = self.paths.pins / f"job-{step}"
        pin.mkdir()
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            (pin / name).write_text(f"{name} of {step}")
        return pin

    def enter(self, step: int) -> str:
        """A job with its pin."""
        job, pin = f"job-{step}", self.repin(step)
        path = f"/runs/run/checkpoint-{step}"
        reference = CheckpointRef(root="/runs", run="run", step=step, path=path, layout="l", digest=identify(pin), method="LORA")
        target = self.paths.output / "run" / f"step-{step}"
        assert self.journal.jobs.add(NewJob(job, reference, WORK, STAGES, pin, target, "f"))
        return job

    def claim(self, job: str, stage: str) -> int:
        """An open attempt, with the folders that a child would be given."""
        number = self.numbers[job, stage] = self.numbers.get((job, stage), 0) + 1
        folder, staging = self.paths.attempt(job, stage, number), self.paths.staging / job / f"{stage}.{number}"
        for path in (folder / "tmp", staging):
            path.mkdir(parents=True)
        self.journal.attempts.claim(Intent(AttemptId(job, stage, number), folder, staging, 1))
        return number

    def settle(self, job: str, stage: str, outcome: Outcome = Outcome.SUCCEEDED) -> None:
        """The end of the open attempt."""
        number = self.numbers[job, stage]
        folder, staging = self.paths.attempt(job, stage, number), self.paths.staging / job / f"{stage}.{number}"
        good = outcome == Outcome.SUCCEEDED
        if good:
            (staging / f"{stage}.bin").write_text(f"{stage} of {job}")
        checks = (ArtifactCheck(variant="pytorch", verdict=Verdict.PASSED),) if stage == "merged" and good else ()
        fault = FAULT if outcome == Outcome.PERMANENT else None
        result = StageResult(outcome=outcome, files=seal(staging) if good else (), checks=checks, fault=fault)
        remove_tree(folder / "tmp")
        state = {Outcome.SUCCEEDED: "succeeded", Outcome.PERMANENT: "failed"}.get(outcome, "waiting")
        if state != "succeeded":
            remove_tree(staging)
        self.journal.attempts.settle(AttemptId(job, stage, number), result, state=state)

    def work(self, job: str, *stages: str) -> None:
        """Start a job and let some of its stages succeed."""
        self.journal.jobs.start(job, None)
        for stage in stages:
            self.claim(job, stage)
            self.settle(job, stage)

    def publish(self, job: str) -> Path:
        """Put the export of a finished job in its place, without recording it."""
        row, stages = self.journal.jobs.get(job), self.journal.stages.of(job)
        assert row is not None
        parts = [ExportPart("" if name == "report" else name, stage.folder, stage.result.files)
                 for name, stage in stages.items() if name in ("pytorch", "report") and stage.folder and stage.result]  # fmt: skip
        folder = self.paths.staging / job / "publish"
        step = row.checkpoint.step
        start_afresh(folder)
        assemble(parts, folder, {"export_id": job, "status": "succeeded", "run": "run", "step": step})
        swap_in(folder, row.target)
        link(row.target.with_name("latest"), row.target)
        return row.target

    def finish(self, job: str) -> Path:
        """A job from wherever it is to its end."""
        target = self.publish(job)
        assert self.journal.jobs.finish(job, "succeeded", Notice("succeeded", "title", "body"))
        self.tidy(job)
        return target

    def tidy(self, job: str) -> None:
        remove_tree(self.paths.staging / job)
        remove_tree(self.paths.pins / job)

    def finished(self, step: int = 4) -> Path:
        """A whole export."""
        job = self.enter(step)
        self.work(job, *STAGES)
        return self.finish(job)

    def execute(self, statement: str, *values: object) -> None:
        """Change the journal past all its doors, even as the schema refuses."""

        def run(connection: sqlite3.Connection) -> None:
            triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for name, _ in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            connection.execute(statement, values)
            for _, text in triggers:
                connection.execute(text)

        self.journal.database.write("test", run)

    def examine(self, *, quiescent: bool = True, deep: bool = False) -> Findings:
        return examine(self.paths.state, self.paths.output, quiescent=quiescent, deep=deep, pauses=(0.05, 0.05))

    def codes(self, **options: bool) -> list[str]:
        return sorted({finding.code for finding in self.examine(**options).findings})


def child_of(world: World, job: str, stage: str, number: int) -> subprocess.Popen[bytes]:
    """A process with the command line of a child that works on an attempt."""
    file = world.paths.attempt(job, stage, number) / "job.json"
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)", "-m", "handlers", str(file)])
    deadline = time.monotonic() + 20
    while str(file).encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)
    return process
