"""`python -m tests.runner.toy_daemon CONFIG`: the real daemon, whose children run toy stages."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from daemon import logs
from daemon.app import serve
from daemon.config import load
from daemon.paths import prepare
from daemon.worker import Worker

TOY = (sys.executable, "-m", "tests.runner.toy_handlers")
toy_worker = functools.partial(Worker, command=TOY)

if __name__ == "__main__":
    config = Path(sys.argv[1])
    settings = load(config, need_roots=True)
    logs.set_up(settings.log, prepare(settings.state_directory, settings.output.directory).log)
    serve(settings, reload=lambda: load(config, need_roots=True), spawn=toy_worker)
