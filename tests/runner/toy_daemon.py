"""`python -m tests.runner.toy_daemon CONFIG`: the real daemon, whose children run toy stages.

`TOY_LONGEST_PAUSE=SECONDS`: how long at most a disk that was full again and again must take writes before it counts as having room.
`TOY_JOURNAL_CARE=SECONDS`: how often the journal is checked and backed up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from daemon.cli.exit_codes import EXIT_TEMPORARY
from daemon.cli.main import exit_code_of
from daemon.cli.views.markup import say_error
from daemon.config.loading import load
from daemon.config.places.paths import prepare
from daemon.contract.faults.errors import CkptdError, from_oserror
from daemon.operating import service
from daemon.operating.disks import watch
from daemon.operating.log import logs
from daemon.running.attempts.executor import Executor
from daemon.running.workers.executor import LocalExecutor

TOY = (sys.executable, "-m", "tests.runner.toy_handlers")


def main(config: Path, executor: Callable[[Sequence[str]], Executor] = LocalExecutor) -> None:
    """Serve by this configuration until told to stop. `executor`: makes what runs the attempts, of their command."""
    if longest := os.environ.get("TOY_LONGEST_PAUSE"):
        watch.FIRST_PAUSE = watch.LONGEST_PAUSE = float(longest)
    if every := os.environ.get("TOY_JOURNAL_CARE"):
        service.INTEGRITY_SECONDS = service.BACKUP_SECONDS = float(every)
    try:
        settings = load(config, need_roots=True)
        logs.set_up(settings.log, prepare(settings.state_directory, settings.output.directory).log)
        service.serve(settings, reload=lambda: load(config, need_roots=True), executor=executor(TOY))
    except CkptdError as error:
        say_error(f"ckptd: {error}")
        sys.exit(exit_code_of(error))
    except OSError as error:  # as the command does
        say_error(f"ckptd: {from_oserror(error, 'go on')}")
        sys.exit(EXIT_TEMPORARY)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
