"""A full disk is a state of its own: told at once and once, survived, never counted, and left within seconds when there is room."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from daemon.config.places.paths import Paths, prepare
from daemon.config.settings import Settings
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.journal import Journal
from daemon.operating.diagnosis.doctor import examine
from daemon.operating.disks import watch
from daemon.operating.disks.watch import DiskWatch
from daemon.operating.integrity.maintenance import JournalMaintenance
from daemon.operating.monitoring.live import LiveFile, LiveWriter, read_live, write_live
from daemon.operating.monitoring.status import snapshot
from daemon.system.filesystems import disks
from daemon.system.filesystems.disks import Place, Refusals, Shortage, probe, short_of_room, write_padded
from daemon.system.lock import locked
from tests.faults.services import FaultyService, assert_went_on
from tests.notify.test_delivery import Service as Post
from tests.runner.conftest import copied
from tests.service import stray_handlers

if TYPE_CHECKING:
    from daemon.watching.groups import Watchers

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts small file systems: `mounted("state", size="24m", nr_inodes=300)`."""
    made: list[Path] = []

    def mount(name: str, **options: object) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        told = ",".join(f"{key}={value}" for key, value in options.items())
        subprocess.run(["mount", "-t", "tmpfs", "-o", told, "tmpfs", str(folder)], check=True)
        made.append(folder)
        return folder

    yield mount
    for folder in made:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, what: str) -> Callable[[], None]:
    """Take all bytes, or all inodes, of a file system; gives what gives them back."""
    filler, taken = folder / "filler", []
    with pytest.raises(OSError, match="No space left"):
        if what == "bytes":
            taken.append(filler)
            with filler.open("wb", buffering=0) as stream:
                while True:
                    stream.write(bytes(1 << 16)[: 1 << 12])
        filler.mkdir()
        for number in range(100_000):
            (filler / str(number)).touch()
            taken.append(filler / str(number))
    return lambda: [path.unlink() for path in taken] and None


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("what", ["bytes", "inodes"])
@pytest.mark.parametrize("where", ["state", "exports", "pins"])
def test_a_disk_without_room_is_told_at_once_survived_and_left_within_seconds(
    tmp_path: Path,
    mounted: Callable[..., Path],
    pico_checkpoint: Path,
    where: str,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    service_manager: tuple[socket.socket, str],
) -> None:  # R6.2
    folder, post = mounted(where, size="600m", nr_inodes=600), Post()
    service = FaultyService(tmp_path)
    with service.config.open("a") as stream:
        stream.write(
            f'[pin]\ndirectory = "{tmp_path / "pins"}"\n[notify]\nurls = ["{post.url}"]\n[metrics]\ntextfile = "{tmp_path}/m.prom"\n'
        )
    (tmp_path / "pins").mkdir(exist_ok=True)
    listening, address = service_manager
    listening.setblocking(False)
    service.environment |= {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1500000"}
    try:
        service.start()
        service.wait_for(lambda v: v["daemon"]["verdict"] == "healthy", 60)
        empty = fill(folder, what)
        began = time.monotonic()
        (told,) = service.wait_for(lambda v: v["daemon"]["verdict"] == "full" and v["disks"], 20)["disks"]
        assert time.monotonic() - began < 8
        assert told["folder"] == str(folder) and (told["inodes"] is not None) == (what == "inodes")
        assert service.run_verb("check") == 2 and str(folder) in service.said and "Not enough disk space" in service.said, service.said
        assert service.run_verb("status") == 0 and "full" in service.said and "Fix: delete" in service.said, service.said
        copied(pico_checkpoint, service)
        assert wait(lambda: len(post.taken) == 1 and "not enough disk space" in post.taken[0]["title"])
        drain(listening)
        pinged = 0
        for _ in range(8):  # longer than the watchdog of this unit waits
            time.sleep(0.5)
            pinged += drain(listening)
        assert pinged >= 2, "the watchdog starves while the disk is full"
        empty()
        began = time.monotonic()
        assert_went_on(service, jobs=1)
        print("seconds from room to the end of the export:", time.monotonic() - began)
        service.wait_for(lambda v: v["daemon"]["verdict"] == "healthy" and not v["disks"], 20)
        assert wait(lambda: len(post.taken) >= 2) and "enough disk space again" in post.taken[1]["title"]
        assert [stage["attempts"] for stage in service.status()["jobs"][0]["stages"]].count(1) >= 4
        said = [row["event"] for row in service.rows() if row.get("code") == "disk-low"]
        assert len(said) == 1, said
        metrics = tmp_path / "m.prom"
        assert wait(lambda: metrics.exists() and "ckptd_disk_low 0" in metrics.read_text())
        assert service.stop() == 0 and stray_handlers(tmp_path) == []
    finally:
        post.close()
        if service.process is not None and service.process.poll() is None:
            service.kill()


def drain(listening: socket.socket) -> int:
    """Read what the service manager was told; how often the watchdog was fed."""
    count = 0
    while True:
        try:
            count += listening.recv(4096) == b"WATCHDOG=1"
        except BlockingIOError:
            return count


def wait(condition: Callable[[], object], seconds: float = 40) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


# The watch over the disks, without a daemon


class Watch:
    """A watch over the disks of a folder, and what it told."""

    def __init__(self, folder: Path, **limits: object) -> None:
        self.settings = Settings.model_validate({
            "limits": {"disk_reserve": 0, **limits}, "state": {"directory": folder / "state"}, "output": {"directory": folder / "out"},
        })  # fmt: skip
        self.paths: Paths = prepare(folder / "state", folder / "out")
        self.told: list[tuple[str, bool]] = []
        self.again = 0
        self.refusals = Refusals()
        self.watch = self.begin()

    def begin(self) -> DiskWatch:
        return DiskWatch(self.settings, self.paths, self.refusals, lambda one, over: self.told.append((one.folder, over)), self.go_on)

    def go_on(self) -> None:
        self.again += 1

    def refuse(self, path: Path) -> None:
        self.refusals.note(Fault(code=FaultCode.DISK_FULL, operation="write", cause="No space left", remedy="r", path=str(path)))


def test_below_the_reserve_is_an_episode_that_is_told_once_even_over_a_restart(tmp_path: Path) -> None:
    one = Watch(tmp_path, disk_reserve=1 << 60)
    with capture_logs() as logs:
        one.watch.look()
        one.watch.look()
        again = one.begin()
        again.look()
        assert one.told == [(str(tmp_path / "state"), False)], "one file system, told once"
        (short,) = again.shortages()
        assert short.keys == ("state.directory", "output.directory") and short.needed == 1 << 60
        again.settings = Watch(tmp_path / "other").settings.model_copy(update={
            "state": one.settings.state, "output": one.settings.output,
        })  # fmt: skip
        again.look()
        assert one.told[1:] == [(str(tmp_path / "state"), True)] and again.shortages() == () and one.again == 1
    assert len([row for row in logs if row["log_level"] == "warning"]) == 1


def test_a_folder_that_can_only_be_read_is_said_at_the_first_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, may = Watch(tmp_path), os.access
    one.watch.look()
    assert one.watch.unwritable == ()
    monkeypatch.setattr(os, "access", lambda path, *rest, **more: Path(path) != tmp_path / "out" and may(path, *rest, **more))
    one.watch.look()
    (said,) = one.watch.unwritable
    assert said.startswith(f"Nothing can be written to {tmp_path / 'out'} (output.directory): ") and one.told == []


def test_what_waits_for_more_than_the_reserve_makes_its_disk_short(tmp_path: Path) -> None:
    one = Watch(tmp_path)
    one.watch.look([Place("", str(tmp_path / "out" / "deeper"), 1 << 60)])
    assert [(short.needed, short.keys) for short in one.watch.shortages()] == [(1 << 60, ("state.directory", "output.directory"))]
    one.watch.look()
    assert one.watch.shortages() == () and one.again == 1


def test_a_single_refusal_is_no_episode_and_what_met_it_goes_on_at_once(tmp_path: Path) -> None:
    one = Watch(tmp_path)
    one.refuse(tmp_path / "state" / "jobs")
    one.watch.look()
    assert (one.told, one.again, one.watch.shortages()) == ([], 1, ())


def test_a_disk_that_refuses_again_is_short_until_it_has_taken_writes_for_longer_and_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a stage that needs more than there is would be started twice a second."""
    one, moment = Watch(tmp_path), [1000.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: moment[0])
    pauses = []
    for _ in range(8):
        one.refuse(tmp_path / "out" / "file")
        one.watch.look()
        began = moment[0]
        while one.watch.shortages():
            moment[0] += 0.5
            one.watch.look()
        pauses.append(moment[0] - began)
    assert pauses == [0, 2, 4, 8, 16, 32, 60, 60]
    assert one.told == [(str(tmp_path / "state"), over) for _ in range(7) for over in (False, True)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_quota_is_found_by_writing_and_its_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    one, full = Watch(tmp_path), [True]
    monkeypatch.setattr(watch, "probe", lambda folder: OSError(number, os.strerror(number)) if full else None)
    one.refusals.note(Fault(code=FaultCode.JOURNAL_UNAVAILABLE, operation="w", cause="SQLITE_IOERR_WRITE", remedy="r"))
    one.watch.look()
    (short,) = one.watch.shortages()
    assert short.refused == os.strerror(number) and "a quota is used up" in short.sentence()
    one.watch.look()
    assert one.told == [(str(tmp_path / "state"), False)]
    full.clear()
    one.watch.look()
    assert one.watch.shortages() == () and one.told[-1][1] and one.again == 1


def test_other_errors_of_the_journal_are_no_full_disk(tmp_path: Path) -> None:
    one = Watch(tmp_path)
    one.refusals.note(Fault(code=FaultCode.JOURNAL_UNAVAILABLE, operation="w", cause="another process has locked it", remedy="r"))
    one.refusals.note(Fault(code=FaultCode.OUT_OF_MEMORY, operation="w", cause="memory", remedy="r"))
    one.watch.look()
    assert (one.told, one.again, one.watch.shortages()) == ([], 0, ())


@needs_root
def test_a_full_file_system_is_short_of_bytes_or_of_inodes_and_a_probe_leaves_nothing(tmp_path: Path, mounted: Callable[..., Path]) -> None:
    for name, what in (("a", "bytes"), ("b", "inodes")):
        folder = mounted(name, size="3m", nr_inodes=100)
        assert short_of_room([Place("k", str(folder / "not" / "there"), 1 << 20)]) == () and probe(folder) is None
        empty = fill(folder, what)
        (short,) = short_of_room([Place("k", str(folder), 1 << 20)])
        assert (short.inodes is None) == (what == "bytes")
        refused = probe(folder)
        assert refused is not None and refused.errno == errno.ENOSPC
        empty()
        assert short_of_room([Place("k", str(folder), 1 << 20)]) == () and probe(folder) is None
        assert [path for path in folder.iterdir() if path.name != "filler"] == []


@needs_root
def test_on_a_full_disk_the_live_file_and_the_lock_are_written_over_what_is_there(mounted: Callable[..., Path]) -> None:
    folder = mounted("state", size="1m")
    short = Shortage("/x", ("state.directory",), 0, 5)
    write_live(folder / "live.json", LiveFile(pid=1))
    with locked(folder / "lock"):
        pass
    empty = fill(folder, "bytes")
    write_live(folder / "live.json", LiveFile(pid=2, verdict="full", disks=(short,)))
    assert read_live(folder / "live.json") == LiveFile(pid=2, verdict="full", disks=(short,))
    write_live(folder / "live.json", LiveFile(pid=3))
    assert read_live(folder / "live.json") == LiveFile(pid=3)
    with locked(folder / "lock"):
        assert (folder / "lock").read_text() == str(os.getpid())
        assert snapshot(folder).daemon.verdict == "full", "even where the daemon has not said so yet"
    with pytest.raises(OSError, match="No space left"):
        write_padded(folder / "live.json", "x" * (disks.ROOM_BYTES + 1))
    empty()


@needs_root
def test_what_a_full_disk_keeps_from_being_written_beside_the_exports_is_noted_too(
    mounted: Callable[..., Path],
) -> None:
    """Where a quota is used up nothing else may be written for hours, and only a refusal tells."""
    folder = mounted("state", size="4m", nr_inodes=100)
    paths, noted = prepare(folder, folder / "out"), list[Fault]()
    journal = Journal(paths.journal)
    live, seen = LiveWriter(paths.live, noted.append), SimpleNamespace(incomplete={}, passed_over={}, delayed={})
    live.write(LiveFile(pid=1), cast("Watchers", seen))
    care = JournalMaintenance(journal.database, paths, refused=noted.append)
    assert noted == []
    empty = fill(folder, "inodes")
    live.write(LiveFile(pid=2), cast("Watchers", seen))
    care.back_up()
    empty()
    assert [fault.code for fault in noted] == [FaultCode.DISK_FULL] * 2
    journal.close()


@needs_root
def test_a_start_on_a_full_disk_makes_what_it_can_and_needs_nothing_new(mounted: Callable[..., Path], tmp_path: Path) -> None:
    folder = mounted("state", size="1m", nr_inodes=40)
    before = prepare(folder, tmp_path / "out")
    empty = fill(folder, "inodes")
    assert replace(prepare(folder, tmp_path / "out"), closed=()) == replace(before, closed=())
    empty()


def test_check_and_status_say_that_there_is_less_than_the_reserve(tmp_path: Path) -> None:
    settings = Watch(tmp_path, disk_reserve=1 << 60).settings
    problems = [problem for problem in examine(settings).problems if "Not enough disk space" in problem]
    assert len(problems) == 1 and "state.directory, output.directory" in problems[0] and "Fix: delete files there" in problems[0]
    assert [problem for problem in examine(Watch(tmp_path / "b").settings).problems if "room" in problem] == []


@needs_root
def test_a_refusal_is_put_down_to_the_disk_that_is_full_whatever_path_its_error_guesses(
    tmp_path: Path, mounted: Callable[..., Path]
) -> None:
    mounted("state", size="3m")
    one = Watch(tmp_path)
    empty = fill(tmp_path / "state", "bytes")
    one.refuse(tmp_path / "out" / "file")
    one.watch.look()
    assert one.told == [(str(tmp_path / "state"), False)]
    empty()
    one.watch.look()
    assert one.told[1:] == [(str(tmp_path / "state"), True)]
