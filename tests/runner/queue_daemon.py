"""`python -m tests.runner.queue_daemon CONFIG`: the real daemon, whose attempts run by a queue's server (`TOY_QUEUE=FOLDER`)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from daemon.config.loading import load
from daemon.config.places.paths import prepare
from daemon.operating.log import logs
from daemon.operating.service import serve
from tests.runner.queue_executor import QueueExecutor

if __name__ == "__main__":
    config = Path(sys.argv[1])
    settings = load(config, need_roots=True)
    logs.set_up(settings.log, prepare(settings.state_directory, settings.output.directory).log)
    serve(settings, reload=lambda: load(config, need_roots=True), executor=QueueExecutor(Path(os.environ["TOY_QUEUE"])))
