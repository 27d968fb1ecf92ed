"""Daemon and deliveries are killed at moments that nobody chose, while somebody reads a folder that two targets lead into."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.deliver import exports
from tests.deliver.queue.yard import FILES, Aim, Yard, save, start
from tests.deliver.sites.store import SITE

STEPS = (0, 100, 200, 300)
TARGETS = ("far", "also")


def wrong_with(site: SITE, wanted: list[dict[str, str]]) -> str:
    """What a reader finds that is none of the versions; ""."""
    for version, contents in site.visible("run-a").items():
        if dict(contents) not in wanted:
            return f"{version}: {sorted(contents)}"
    return ""


def children(daemon: subprocess.Popen[bytes]) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()]
    return []


def storm(tmp_path: Path, kills: int, seed: int) -> None:
    chance, problems, over = random.Random(seed), list[str](), threading.Event()
    (far := tmp_path / "far").mkdir()
    (folder := tmp_path / "yard").mkdir()
    with SITE(far) as site:
        with Yard(folder) as yard:
            jobs = [yard.end(step, TARGETS) for step in STEPS]
        save(folder, *(Aim(name, "store", SITE.entry, site.options(), bandwidth=150_000) for name in TARGETS))
        wanted = [dict(exports.make(tmp_path / f"same-{step}", step=step, files=FILES).digests) for step in STEPS]

        def read() -> None:
            while not over.is_set():
                with contextlib.suppress(FileNotFoundError):
                    if wrong := wrong_with(site, wanted):
                        problems.append(wrong)
                    if (current := site.current("run-a")) and current not in site.visible("run-a"):
                        problems.append(f"{current} is followed and not there")
                time.sleep(0.01)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            daemon = start(folder)
            for _ in range(kills):
                time.sleep(chance.random() * 1.5)
                victims = children(daemon) if chance.random() < 0.5 else [daemon.pid]
                for pid in chance.sample(victims, min(1, len(victims))):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if daemon.poll() is not None or victims == [daemon.pid]:
                    daemon.wait()
                    with Yard(folder) as yard:
                        if chance.random() < 0.5:  # all over again, over what lies there
                            yard.journal.database.write("again", lambda c: c.execute("UPDATE shipment SET state = 'waiting'"))
                    daemon = start(folder)
            assert daemon.wait(300) == 0
        finally:
            over.set()
            reader.join()
            daemon.kill()
            daemon.wait()
        assert not problems, problems[:3]
        with Yard(folder) as yard:
            rows = [yard.row(job, target) for job in jobs for target in TARGETS]
        assert {row.state for row in rows} == {"delivered"}, [row.fault for row in rows]
        assert {row.receipt.version for row in rows if row.receipt} == set(site.visible("run-a")) and len(site.visible("run-a")) == len(
            STEPS
        )
        assert (site.current("run-a") or "").startswith("run-a/run-a-300-")
        assert not site.leftovers()


def test_killed_a_few_times_all_arrives_whole(tmp_path: Path) -> None:
    storm(tmp_path, 6, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_a_hundred_times_all_arrives_whole(tmp_path: Path) -> None:
    storm(tmp_path, 100, seed=2)
