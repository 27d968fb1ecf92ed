"""`ckptd status`: what the running daemon wrote about itself, whichever version of it runs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from daemon.cli.views.status import print_status
from daemon.config.places.paths import StatePaths
from daemon.contract.faults.errors import Fault
from daemon.journal.overview import JournalCare, Overview
from daemon.operating.monitoring import live, status
from daemon.operating.monitoring.live import (
    ConfigLoad,
    IncompleteState,
    LiveFile,
    LiveWriter,
    RootState,
    StageProgress,
    read_live,
    write_live,
)
from daemon.operating.monitoring.status import snapshot
from daemon.system.lock import locked
from daemon.watching.resting import Incomplete
from tests.cli.test_bad_input import ckptd
from tests.page.filled import fill
from tests.runner.conftest import Toy

FULL = LiveFile(
    pid=4711,
    started="then",
    time="now",
    healthy=False,
    configuration=ConfigLoad("then", "limits.jobs: must be at least 1"),
    journal=JournalCare(checked="then", backed_up=None, problem="Could not back the journal up.", rebuilt={"from": "disk", "at": "then"}),
    roots=(RootState("/runs", "inotify", False),),
    incomplete=(IncompleteState("/runs/a/checkpoint-4", ("trainer_state.json is not there yet",), 12),),
    progress={"job": {"merge": StageProgress(1, 0.25, "tensors", 3.5, "local:1:2", 1 << 30)}},
    waiting={"job": "It waits."},
)


def test_what_the_daemon_wrote_is_read_again_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_live(tmp_path / "live.json", FULL)
    assert read_live(tmp_path / "live.json") == FULL
    assert json.loads((tmp_path / "live.json").read_bytes()) == json.loads(json.dumps(asdict(FULL)))
    with locked(tmp_path / "lock"):
        value = snapshot(tmp_path)
    assert (value.daemon.running, value.daemon.pid, value.daemon.journal, value.roots) == (True, 4711, FULL.journal, FULL.roots)
    print_status(value)
    shown = capsys.readouterr().out
    for part in ("pid 4711", "the last reload was refused", "Could not back the journal up", "does not exist yet", "checkpoint-4 for 12 s"):
        assert part in shown.replace("\n", " ")


def test_nothing_of_a_daemon_that_has_ended_is_shown(tmp_path: Path) -> None:
    write_live(tmp_path / "live.json", FULL)
    value = snapshot(tmp_path)
    assert (value.daemon.running, value.daemon.pid, value.roots, value.incomplete) == (False, None, (), ())


def test_the_live_file_of_another_version_is_read_as_far_as_its_names_are_known(tmp_path: Path) -> None:
    (tmp_path / "live.json").write_text(
        '{"pid": 7, "later": {"name": 1}, "roots": [{"path": "/r", "backend": "poll", "exists": true, "more": 2}]}'
    )
    assert read_live(tmp_path / "live.json") == LiveFile(pid=7, roots=(RootState("/r", "poll", True),))


def test_a_live_file_that_can_not_be_read_is_as_good_as_none(tmp_path: Path) -> None:
    for text in ("", "{", "[]", '{"pid": "seven"}'):
        (tmp_path / "live.json").write_text(text)
        assert read_live(tmp_path / "live.json") == LiveFile()
    assert read_live(tmp_path / "gone.json") == LiveFile()


def test_of_thousands_of_directories_the_first_few_and_a_count_are_shown_and_all_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = tuple(IncompleteState(f"/r/{number}", ("no weights yet",), 5) for number in range(5000))
    passed = {f"/models/{number}": "no training" for number in range(5000)}
    write_live(tmp_path / "live.json", LiveFile(pid=1, incomplete=many, passed_over=passed))
    with locked(tmp_path / "lock"):
        value = snapshot(tmp_path)
    print_status(value)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 20
    assert "and 4995 more that are incomplete; `ckptd status --all` lists them" in lines
    print_status(value, everything=True)
    shown = capsys.readouterr().out
    assert all(f"incomplete /r/{number} for" in shown and f"/models/{number}:" in shown for number in (0, 2500, 4999))
    assert "more that are" not in shown
    assert len(asdict(value)["incomplete"]) == 5000


@dataclass
class Watch:
    """As much of a watcher as the live file needs."""

    incomplete: dict[Path, Incomplete]
    passed_over: dict[Path, str]
    delayed: dict[Path, Fault] = field(default_factory=dict)

    @property
    def tracker(self) -> Watch:
        return self


def test_the_live_file_is_not_written_again_where_nothing_but_the_time_has_changed(tmp_path: Path) -> None:
    file, watch = tmp_path / "live.json", Watch({Path("/r/checkpoint-1"): Incomplete(("no weights",), time.monotonic() - 7)}, {})
    writer, inodes = LiveWriter(file), list[int]()
    for value in (LiveFile(pid=1, time="a"), LiveFile(pid=1, time="b", clock=2.0), LiveFile(pid=1, time="c", healthy=True)):
        writer.write(value, watch)  # type: ignore[arg-type]
        inodes.append(file.stat().st_mtime_ns)
    assert inodes[0] == inodes[1] < inodes[2]
    assert read_live(file) == LiveFile(pid=1, time="c", healthy=True, incomplete=(IncompleteState("/r/checkpoint-1", ("no weights",), 7),))


def test_the_live_file_tells_of_a_directory_that_comes_or_goes_at_once_and_how_long_one_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LIST_SHARE", 0)
    file, watch, value = tmp_path / "live.json", Watch({}, {}), LiveFile(pid=1)
    writer = LiveWriter(file)
    writer.write(value, watch)  # type: ignore[arg-type]
    since = time.monotonic()
    watch.incomplete[Path("/r/checkpoint-1")] = Incomplete(("no weights",), since)
    watch.passed_over = {Path("/m"): "no training"}
    writer.write(value, watch)  # type: ignore[arg-type]
    assert [one.path for one in read_live(file).incomplete] == ["/r/checkpoint-1"] and read_live(file).passed_over == {"/m": "no training"}
    monkeypatch.setattr(time, "monotonic", lambda: since + 60)
    writer.write(value, watch)  # type: ignore[arg-type]
    with locked(tmp_path / "lock"):
        assert [one.seconds for one in snapshot(tmp_path).incomplete] == [60]


def stopped_daemon(state: Path, age: float, **more: object) -> LiveFile:
    """What a daemon with the pid of this process wrote `age` seconds ago; it has locked the state directory an hour ago."""
    (state / "lock").write_text(str(os.getpid()))
    an_hour_ago = time.time() - 3600
    os.utime(state / "lock", (an_hour_ago, an_hour_ago))
    known = {"pid": os.getpid(), "healthy": True, "verdict": "healthy", "clock": time.monotonic() - age}
    return LiveFile(**{**known, **more})  # type: ignore[arg-type]


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """The lock held as by a daemon that wrote its pid into it before."""
    with open(lock) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def test_a_daemon_that_stands_still_is_not_called_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[watch]\nroots = ["{tmp_path}/runs"]\n[output]\ndirectory = "{tmp_path}/out"\n[state]\ndirectory = "{tmp_path}"\n')
    asked = (tmp_path, "status", "--exit-code", "--config", config)
    write_live(tmp_path / "live.json", stopped_daemon(tmp_path, 90.0))
    with held(tmp_path / "lock"):
        assert ckptd(*asked).returncode == 0
    write_live(tmp_path / "live.json", stopped_daemon(tmp_path, 270.0))
    with held(tmp_path / "lock"):
        value, answer = snapshot(tmp_path), ckptd(*asked)
    assert (value.daemon.verdict, value.daemon.healthy) == ("unwell", False)
    print_status(value)
    shown = capsys.readouterr().out
    for part in ("running, unwell", "stands still: since ", "270 s ago", f"kill -CONT {os.getpid()}", "restart the daemon"):
        assert part in shown
    assert answer.returncode == 1


@pytest.mark.parametrize("why", ["no clock", "after a restart of the machine", "of the daemon before", "just started", "shutting down"])
def test_a_live_file_whose_age_says_nothing_of_the_daemon_makes_it_no_unwell_one(tmp_path: Path, why: str) -> None:
    more: dict[str, object] = {
        "no clock": {"clock": None},
        "after a restart of the machine": {"clock": time.monotonic() + 1000},
        "of the daemon before": {"pid": os.getpid() + 1},
        "shutting down": {"stopping": "2026-01-01T00:00:00+00:00"},
    }.get(why, {})
    write_live(tmp_path / "live.json", stopped_daemon(tmp_path, 270.0, **more))
    if why == "just started":
        os.utime(tmp_path / "lock")
    with held(tmp_path / "lock"):
        assert snapshot(tmp_path).daemon.verdict == "healthy"


def test_a_wall_clock_that_was_set_neither_hides_a_daemon_that_stands_still_nor_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = time.time
    for age, verdict in ((5.0, "healthy"), (270.0, "unwell")):
        write_live(tmp_path / "live.json", stopped_daemon(tmp_path, age))
        for jump in (-86_400.0, 86_400.0):
            monkeypatch.setattr(time, "time", lambda jump=jump: wall() + jump)
            with held(tmp_path / "lock"):
                assert snapshot(tmp_path).daemon.verdict == verdict, (age, jump)


def test_the_ages_in_a_status_are_counted_until_now(tmp_path: Path) -> None:
    parts = {
        "incomplete": (IncompleteState("/r/checkpoint-1", ("no weights",), 7),), "listed": 3.0,
        "roots": (RootState("/r", "poll", True, 5.0), RootState("/s", "poll", True)),
    }  # fmt: skip
    write_live(tmp_path / "live.json", stopped_daemon(tmp_path, 40.0, **parts))
    with held(tmp_path / "lock"):
        value = snapshot(tmp_path)
    assert [one.seconds for one in value.incomplete] == [50]
    assert [root.silent_seconds for root in value.roots] == [pytest.approx(45, abs=2), None]


def test_a_variant_that_failed_before_its_check_is_listed_with_its_stage_and_cause(
    make_toy: Callable[..., Toy], pico_checkpoint: Path
) -> None:
    toy = make_toy(variants=("pytorch", "onnx-fp16", "onnx-int8", "onnx-int8-weight"))
    toy.environment["TOY_BROKEN"] = "onnx"
    checkpoint = toy.add(pico_checkpoint)
    toy.start()
    (job,) = toy.wait_ended()
    assert toy.stop() == 0
    lost = ("onnx-fp16", "onnx-int8", "onnx-int8-weight")
    assert job["state"] == "partial"
    assert job["artifacts"] == {"pytorch": "passed", **dict.fromkeys(sorted(lost, key=list(job["artifacts"]).index), "failed")}
    assert sorted((one["variant"], one["stage"], one["cause"]) for one in job["lost"]) == [
        (name, "onnx", "this toy can't be made") for name in sorted(lost)
    ]
    said = f"{', '.join(one['variant'] for one in job['lost'])}: the stage onnx failed: this toy can't be made"
    explained = ckptd(toy.folder, "explain", checkpoint, "--config", toy.config).stdout
    for text in (ckptd(toy.folder, "status", "--config", toy.config).stdout, explained):
        assert said in " ".join(text.split()) and text.count("this toy can't be made") <= 2
    assert "pytorch:passed" in explained and "onnx-int8:failed" in explained


@pytest.mark.slow
def test_what_the_error_of_an_export_says_already_is_not_said_again(make_toy: Callable[..., Toy], pico_checkpoint: Path) -> None:
    toy = make_toy(variants=("pytorch", "onnx"))
    toy.environment["TOY_BROKEN"] = "onnx"
    toy.add(pico_checkpoint)
    toy.start()
    (job,) = toy.wait_ended()
    assert toy.stop() == 0
    assert [(one["variant"], one["stage"]) for one in job["lost"]] == [("onnx", "onnx")]
    text = ckptd(toy.folder, "status", "--config", toy.config).stdout
    assert "pytorch:passed onnx:failed" in text and text.count("this toy can't be made") == 1


def test_an_export_that_ends_while_the_list_is_read_is_open_when_it_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, tmp_path / "out", 1, waiting=1)
    original, (job,) = status.overview, snapshot(tmp_path).jobs

    def set_state(state: str, ended: str | None) -> None:
        with contextlib.closing(sqlite3.connect(StatePaths(tmp_path).journal)) as connection, connection:
            connection.execute("UPDATE job SET state = ?, ended = ? WHERE id = ?", (state, ended, job.id))

    def overview(connection: sqlite3.Connection, limit: int) -> Overview:
        seen = original(connection, limit)
        set_state("cancelled", "2026-01-01T00:00:00+00:00")
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(status, "overview", overview)
        assert [row.state for row in snapshot(tmp_path).jobs] == ["cancelled"]
    set_state("pending", None)
    assert [row.state for row in snapshot(tmp_path).jobs] == ["pending"]
