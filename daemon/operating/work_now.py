"""What the configuration of today makes of a job. Asked by the runner, and by `ckptd queue retry`, which needs nothing of the engine."""

from __future__ import annotations

from pathlib import Path

from daemon.checkpoints.names import run_of
from daemon.config.run_overrides import effective
from daemon.config.settings import Settings
from daemon.contract.disk.answers import ask
from daemon.contract.jobs.options import Work
from daemon.journal.rows import JobRow


def work_now(settings: Settings, job: JobRow) -> Work | None:
    """A job's configuration as it is now, the run's own file included; None where that can't be known any more."""
    path = Path(job.checkpoint.path)

    def work() -> Work | None:
        run = run_of(path)
        return effective(settings, run).settings.work if run.is_dir() else None

    try:
        return ask(f"run {path.parent}", work)
    except TimeoutError:
        return None
