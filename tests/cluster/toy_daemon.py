"""`python -m tests.cluster.toy_daemon CONFIG`: the real daemon with the executor that its configuration names, and toy stages."""

from __future__ import annotations

import sys
from pathlib import Path

from daemon.config.loading import load
from daemon.running.cluster.by_stage import with_cluster
from daemon.running.workers.executor import LocalExecutor
from tests.runner.toy_daemon import main

if __name__ == "__main__":
    config = Path(sys.argv[1])
    cluster = load(config, need_roots=True).cluster
    main(config, lambda command: with_cluster(cluster, LocalExecutor(command), command))
