"""`python -m tests.cluster.toy_daemon CONFIG`: the real daemon with the executor that its configuration names, and toy stages.

With TOY_SCHEDULER=fake they run by the scheduler of the tests' own, which is in the daemon's process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from daemon.config.loading import load
from daemon.running.cluster.by_stage import with_cluster
from daemon.running.cluster.executor import ClusterExecutor
from daemon.running.workers.executor import LocalExecutor
from tests.cluster.fake import FakeScheduler
from tests.runner.toy_daemon import main

if __name__ == "__main__":
    config = Path(sys.argv[1])
    cluster = load(config, need_roots=True).cluster
    fake = os.environ.get("TOY_SCHEDULER") == "fake"
    main(
        config,
        lambda command: (
            ClusterExecutor(FakeScheduler(), late=3.0, command=command) if fake else with_cluster(cluster, LocalExecutor(command), command)
        ),
    )
