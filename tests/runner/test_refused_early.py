"""A job whose run another ckptd publishes ends at its start, and leaves nothing behind, also where the daemon is stopped right then."""

from __future__ import annotations

import socket
from collections.abc import Callable

from daemon.config.places.output_owners import Owner, record_of
from tests.runner.desk import Desk


def test_a_refused_job_is_tidied_in_the_round_in_which_it_is_refused(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    job = desk.add("run", 1)
    row = desk.journal.jobs.get(job)
    assert row is not None and row.pin.is_dir()
    row.target.parent.mkdir(parents=True, exist_ok=True)
    seen = row.checkpoint  # the same training: its root, and this machine
    owner = Owner(
        instance="another", host=socket.gethostname(), state="/state", root=seen.root, run=seen.run, since="2026-01-01T00:00:00Z"
    )  # fmt: skip
    (row.target.parent / record_of("run")).write_text(owner.model_dump_json())
    for _ in range(50):
        desk.tick()
        if desk.state(job) == "failed":
            break
    assert desk.state(job) == "failed" and desk.started == []
    assert not row.pin.exists()
