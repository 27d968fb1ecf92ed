"""The kernel's limits and mounts, met by a real daemon in namespaces of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.detection.helpers import copy_of
from tests.detection.kernel import instances, watched_below
from tests.service import Service

Daemons = Callable[..., "Confined"]


class Confined(Service):
    """A daemon that starts behind a shell command, and rescans only once an hour."""

    def __init__(self, folder: Path, before: str, namespaces: tuple[str, ...]) -> None:
        super().__init__(folder)
        self.before, self.namespaces = before, namespaces
        self.config.write_text(self.config.read_text().replace("rescan_seconds = 2", "rescan_seconds = 3600"))

    def start(self, fault: str | None = None) -> None:
        """Start the daemon in its namespaces, and wait until it watches."""
        script = f'{self.before}\nexec "$0" -m daemon run --config "$1"'
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.namespaces, "sh", "-ec", script, sys.executable, str(self.config)], stdout=log, stderr=log
            )
        self.wait_log("ckptd is watching")

    def wait_log(self, text: str, seconds: float = 60) -> None:
        """Wait until the daemon has said something."""
        self.wait_for(lambda _: text in self.log(), seconds)

    def wait_taken(self, *steps: int, seconds: float = 15) -> float:
        """Wait until the steps have become jobs; gives the seconds that it took."""
        start = time.monotonic()
        self.wait_for(lambda value: sorted(job["step"] for job in value["jobs"]) == list(steps), seconds)
        return time.monotonic() - start

    def backend(self) -> str:
        """How the root is watched, as `ckptd status` says."""
        return str(self.wait_for(lambda value: bool(value["roots"]))["roots"][0]["backend"])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemons]:
    """Makes daemons, and ends those that are left. `namespaces`: the command that makes them."""
    made: list[Confined] = []

    def make(before: str = "", namespaces: tuple[str, ...] = ()) -> Confined:
        if namespaces and subprocess.run([*namespaces, "sh", "-ec", before], capture_output=True).returncode != 0:
            pytest.skip(f"{' '.join(namespaces)} is not permitted here")
        made.append(Confined(tmp_path, before, namespaces))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.process.send_signal(signal.SIGCONT)
            one.stop()


def test_at_the_limit_of_watches_it_says_which_one_and_goes_on_by_scanning(daemon: Daemons, pico_checkpoint: Path) -> None:  # R1.1
    here = daemon("echo 3 > /proc/sys/user/max_inotify_watches", ("unshare", "-Ur"))
    for number in range(4):
        (here.root / f"run-{number}").mkdir()
    here.start()
    assert here.backend() == "poll"
    copy_of(pico_checkpoint, here.root / "run-3" / "checkpoint-4")
    here.wait_taken(4)
    said = [line for line in here.log().splitlines() if "inotify watches" in line]
    assert len(said) == 1
    assert f"Cannot watch {here.root} by events: this user's limit of 3 inotify watches is used up" in said[0]
    assert "sysctl -w user.max_inotify_watches=524288" in said[0]
    assert watched_below(here.root, here.process.pid) == []  # type: ignore[union-attr]  # what it can't use in full, others may


def test_the_limit_may_also_be_met_later_by_a_directory_that_comes(daemon: Daemons, pico_checkpoint: Path) -> None:  # R1.1
    here = daemon("echo 3 > /proc/sys/user/max_inotify_watches", ("unshare", "-Ur"))
    (here.root / "run").mkdir()
    here.start()
    assert here.backend() == "inotify"
    for number in range(4):
        (here.root / "run" / f"part-{number}").mkdir()
    copy_of(pico_checkpoint, here.root / "run" / "part-3" / "checkpoint-4")
    here.wait_log("limit of 3 inotify watches")
    here.wait_taken(4)
    here.wait_for(lambda value: value["roots"][0]["backend"] == "poll", 10)


def test_at_the_limit_of_instances_it_says_so_and_goes_on_by_scanning(daemon: Daemons, pico_checkpoint: Path) -> None:  # R1.1
    here = daemon("echo 0 > /proc/sys/user/max_inotify_instances", ("unshare", "-Ur"))
    here.start()
    assert here.backend() == "poll"
    assert "limit of 0 inotify instances is used up" in here.log()
    assert "sysctl -w user.max_inotify_instances=512" in here.log()
    copy_of(pico_checkpoint, here.root / "run" / "checkpoint-4")
    here.wait_taken(4)
    assert instances(here.process.pid) == []  # type: ignore[union-attr]


def test_events_that_the_kernel_had_to_drop_are_made_good_at_once(daemon: Daemons, pico_checkpoint: Path) -> None:  # R1.1
    here = daemon()
    storm = [here.root / "run" / f"checkpoint-{number}" for number in (101, 102)]
    for folder in storm:
        folder.mkdir(parents=True)
    here.start()
    assert here.backend() == "inotify"
    assert here.process is not None
    here.process.send_signal(signal.SIGSTOP)
    for number in range(6000):
        for folder in storm:
            (folder / f"{number}.json").touch()
    copy_of(pico_checkpoint, here.root / "other" / "checkpoint-4")
    here.process.send_signal(signal.SIGCONT)
    assert here.wait_taken(4) < 15
    assert "queue overflowed" in here.log()
    copy_of(pico_checkpoint, here.root / "other" / "checkpoint-6", step=6, weights=1.0)
    here.wait_taken(4, 6)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("nsenter") is None, reason="mounting needs root and nsenter")
def test_a_mount_that_comes_and_goes_below_a_root_is_noticed_without_a_rescan(daemon: Daemons, pico_checkpoint: Path) -> None:  # R1.1
    here = daemon("true", ("unshare", "-m"))
    place = here.root / "team"
    (place / "run").mkdir(parents=True)
    here.start()
    assert here.process is not None
    inside = ["nsenter", "-t", str(here.process.pid), "-m"]
    subprocess.run([*inside, "mount", "-t", "tmpfs", "none", str(place)], check=True)
    mounted = Path(f"/proc/{here.process.pid}/root{place}")
    copy_of(pico_checkpoint, mounted / "run" / "checkpoint-4")
    here.wait_taken(4)
    here.wait_for(lambda _: "run/checkpoint-4" in watched_below(mounted, here.process.pid), 10)  # type: ignore[union-attr]
    subprocess.run([*inside, "umount", str(place)], check=True)
    copy_of(pico_checkpoint, place / "run" / "checkpoint-6", step=6, weights=1.0)
    here.wait_taken(4, 6)
    assert "a mount below a root came or went" in here.log() or "a file system was unmounted" in here.log()
