"""Several ckptd with one output: states of their own, each as `tests.publish.test_nested_runs` has one."""

from __future__ import annotations

import os
from pathlib import Path

from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.contract.disk.files import seal
from daemon.contract.jobs.messages import ArtifactCheck, CheckpointRef, Outcome, StageResult, Verdict
from daemon.contract.jobs.plan import stage_names
from daemon.contract.values import digest_of
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.running.endings import close_job
from daemon.watching.taking.places import Places, takings_of
from tests.journal.entries import WORK

VARIANTS = ("pytorch", "onnx", "onnx-int8")


class Daemon:
    """One of those that share an output: places by its journal, and the end of jobs as the runner ends them."""

    def __init__(self, home: Path, output: Path, naming: str = "{run}/step-{step}", state: Path | None = None) -> None:
        self.home, self.output = home, output
        state = state or home / "state"
        self.settings = Settings(output={"directory": output, "naming": naming}, state={"directory": state})
        self.paths = prepare(state, output)
        self.journal = Journal(self.paths.journal)

    def take(self, run: str, step: int, *, root: str, content: str = "") -> JobRow:
        """A job of a checkpoint, entered and started. `content`: what tells it from others of the same name."""
        path = f"{root}/{run}/checkpoint-{step}"
        reference = CheckpointRef(
            root=root, run=run, step=step, path=path, layout="trainer-adapter", digest=digest_of([root, run, step, content]), method="LORA"
        )
        target = Places(self.settings, self.journal, self.paths).of(reference, takings_of(self.journal.jobs.places()))
        name = f"{self.home.name}-{reference.identity[:16]}"
        pin = self.paths.pins / name
        self.journal.jobs.add(NewJob(name, reference, WORK, stage_names(WORK, reference.layout), pin, target, "x"))
        assert self.journal.jobs.start(name, None)
        return self.row(name)

    def row(self, job: str) -> JobRow:
        found = self.journal.jobs.get(job)
        assert found is not None
        return found

    def make(self, job: JobRow) -> None:
        """Its stages succeed: a file for each variant, with a content that nobody else's has."""
        for name in self.journal.stages.of(job.id):
            folder = self.paths.staging / job.id / f"{name}.1"
            folder.mkdir(parents=True, exist_ok=True)
            if name in (*VARIANTS, "report"):
                (folder / "file").unlink(missing_ok=True)  # as a publication may have left it, a link to an export
                (folder / "file").write_text(f"{name} of {job.id}")
            variant = {"merged": "pytorch"}.get(name, name.removeprefix("check-"))
            checks = (ArtifactCheck(variant=variant, verdict=Verdict.PASSED),) if name == "merged" or name.startswith("check-") else ()
            result = StageResult(outcome=Outcome.SUCCEEDED, files=seal(folder), checks=checks)
            self.journal.stages.reuse(job.id, name, "key", folder, result)

    def end(self, job: JobRow) -> JobRow:
        """As the runner does when all stages have ended; the job as it is then. Raises OSError where it would be tried again."""
        fault = close_job(self.row(job.id), self.journal.stages.of(job.id), self.journal, self.paths, self.settings)
        if fault is not None:
            raise OSError(fault.sentence())
        return self.row(job.id)

    def publish(self, run: str, step: int, *, root: str, content: str = "") -> JobRow:
        job = self.take(run, step, root=root, content=content)
        self.make(job)
        return self.end(job)


def bytes_below(folder: Path) -> dict[str, str]:
    """What each name below a folder is: its kind, and its content or where it leads."""
    found = {}
    for directory, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(directory, name)
            kind = path.lstat().st_mode
            content = os.readlink(path) if path.is_symlink() else path.read_text("latin-1") if path.is_file() else ""
            found[str(path.relative_to(folder))] = f"{kind:o} {content}"
    return found
