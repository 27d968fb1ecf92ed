"""Several ckptd with one output: what one publishes no other replaces, who is refused ends with the reason, different runs all work."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.config.places.output_owners import RECORD, owner_of, record_of
from daemon.contract.disk.export_layout import manifest_of
from daemon.contract.faults.errors import Retryable
from daemon.operating.monitoring.status import snapshot
from daemon.publishing import publication
from daemon.publishing.exchange import owners
from daemon.publishing.exchange.beneath import held_below
from daemon.publishing.exchange.owners import owned
from daemon.publishing.verification import verify
from daemon.running.endings import refuse_early, tidy_job
from tests.publish.two import Daemon

ROOT = "/runs"


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    made: list[Daemon] = []

    def daemon(name: str, **settings: object) -> Daemon:
        made.append(Daemon(tmp_path / name, tmp_path / "out", **settings))  # type: ignore[arg-type]
        return made[-1]

    yield daemon
    for one in made:
        one.journal.close()


def at(job_target: Path) -> object:
    return manifest_of(job_target).get("export_id")


def test_of_two_daemons_with_the_same_training_one_publishes_and_the_other_ones_jobs_end_with_the_reason(
    daemons: Callable[..., Daemon],
) -> None:
    first, second = daemons("first"), daemons("second")
    jobs = [(one, one.take("run", step, root=ROOT)) for step in (2, 4, 6) for one in (first, second)]
    for one, job in jobs:
        one.make(job)
    ended = [one.end(job) for one, job in jobs]
    assert [job.state for job in ended] == ["succeeded", "failed"] * 3
    for mine, theirs in zip(ended[::2], ended[1::2], strict=True):
        assert at(mine.target) == mine.id and verify(mine.target).sound
        assert theirs.reason is not None
        for words in ("another ckptd publishes the run run there", str(first.paths.state), socket.gethostname(), "rm ", record_of("run")):
            assert words in theirs.reason
        assert "ckptd queue retry" in theirs.reason


def test_the_list_of_the_one_who_was_refused_says_failed_and_why_and_no_artifact_is_called_passed(daemons: Callable[..., Daemon]) -> None:
    first, second = daemons("first"), daemons("second")
    first.publish("run", 2, root=ROOT)
    job = second.publish("run", 2, root=ROOT)
    (row,) = snapshot(second.paths.state).jobs
    assert (row.state, row.error) == ("failed", job.reason)
    assert set(row.artifacts.values()) == {"unpublished"}


def test_a_job_of_a_run_that_another_ckptd_publishes_ends_before_hours_of_work(daemons: Callable[..., Daemon]) -> None:
    first, second = daemons("first"), daemons("second")
    first.publish("run", 2, root=ROOT)
    job = second.take("run", 4, root=ROOT)
    assert refuse_early(job, second.journal, second.paths, second.settings)
    assert second.row(job.id).state == "failed" and "another ckptd" in str(second.row(job.id).reason)
    assert {stage.state for stage in second.journal.stages.of(job.id).values()} == {"skipped"}
    mine = first.take("run", 4, root=ROOT)
    assert not refuse_early(mine, first.journal, first.paths, first.settings)
    assert first.row(mine.id).state == "running"


def test_other_trainings_have_folders_of_their_own_also_where_they_have_the_same_name(daemons: Callable[..., Daemon]) -> None:
    first, second = daemons("first"), daemons("second")
    exports = [first.publish("run", 2, root=ROOT), second.publish("run", 2, root="/other"), second.publish("second", 2, root="/other")]
    exports += [first.publish("run", 4, root=ROOT), second.publish("run", 4, root="/other")]
    assert {job.state for job in exports} == {"succeeded"}
    assert len({job.target for job in exports}) == 5
    assert exports[0].target.parent != exports[1].target.parent == exports[4].target.parent
    assert all(at(job.target) == job.id for job in exports)


@pytest.mark.parametrize("early", [True, False])
def test_other_trainings_of_the_same_name_that_were_taken_before_one_was_published_have_folders_of_their_own_too(
    daemons: Callable[..., Daemon], early: bool
) -> None:
    first, second = daemons("first"), daemons("second")
    mine, theirs = first.take("run", 2, root=ROOT), second.take("run", 2, root="/other")
    assert mine.target == theirs.target, "neither could know of the other one"
    for one, job in ((first, mine), (second, theirs)):
        one.make(job)
    assert first.end(mine).state == "succeeded"
    if early:
        assert not refuse_early(theirs, second.journal, second.paths, second.settings)
        assert second.row(theirs.id).target != theirs.target
    ended = second.end(theirs)
    assert ended.state == "succeeded" and at(ended.target) == theirs.id and verify(ended.target).sound
    assert at(mine.target) == mine.id and verify(mine.target).sound
    assert second.publish("run", 4, root="/other").target.parent == ended.target.parent != mine.target.parent


@pytest.mark.parametrize("naming", ["{run}-{step}", "{run}/step-{step}"])
def test_whoever_comes_between_look_and_exchange_is_never_replaced(
    daemons: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch, naming: str
) -> None:
    """The claim is taken out of the way: what is left is the exchange that compares."""
    first, second = daemons("first", naming=naming), daemons("second", naming=naming)
    monkeypatch.setattr(publication, "record_of", lambda run: f"{RECORD}{os.urandom(4).hex()}")
    mine, theirs = first.take("run", 2, root=ROOT), second.take("run", 2, root="/other")
    for one, job in ((first, mine), (second, theirs)):
        one.make(job)
    done = []

    def attack(name: str) -> None:
        if name == "publish.before-rename" and not done:
            done.append(second.end(theirs) if not done.append(None) else None)  # type: ignore[func-returns-value]

    monkeypatch.setattr("daemon.contract.disk.failpoints.point", attack)
    with pytest.raises(OSError, match="something else was put into its place"):
        first.end(mine)
    assert at(theirs.target) == theirs.id and verify(theirs.target).sound
    assert first.end(mine).state == "failed"
    assert "another checkpoint" in str(first.row(mine.id).reason)
    assert at(theirs.target) == theirs.id and verify(theirs.target).sound


def test_an_export_that_is_replaced_by_another_one_at_the_last_moment_gets_its_place_again(
    daemons: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = daemons("first")
    job = first.publish("run", 2, root=ROOT)
    again = first.take("run", 2, root=ROOT, content="written again")
    assert again.target == job.target
    first.make(again)
    theirs = tmp_path / "theirs"
    shutil.copytree(job.target, theirs)
    (theirs / "pytorch" / "file").write_text("of somebody")
    done = []

    def attack(name: str) -> None:
        if name == "publish.swap-recorded" and not done:
            done.append(name)
            job.target.rename(tmp_path / "away")
            theirs.rename(job.target)

    monkeypatch.setattr("daemon.contract.disk.failpoints.point", attack)
    with pytest.raises(OSError, match="something else"):
        first.end(again)
    assert (job.target / "pytorch" / "file").read_text() == "of somebody"
    assert first.end(again).state == "succeeded"
    (aside,) = job.target.parent.glob("step-2.before-ckptd-*")
    assert (aside / "pytorch" / "file").read_text() == "of somebody"


RACE = """
import sys, time
from pathlib import Path
from tests.publish.two import Daemon

home, name, start = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
one = Daemon(home / name, home / "out")
jobs = [one.take("run", step, root="/runs") for step in range(6)]
for job in jobs:
    one.make(job)
time.sleep(max(0.0, start - time.time()))
print([one.end(job).state for job in jobs])
one.journal.close()
"""


def test_of_processes_that_publish_a_run_for_the_first_time_at_the_same_moment_one_has_it(tmp_path: Path) -> None:
    start = str(time.time() + 4)
    words = [[sys.executable, "-c", RACE, str(tmp_path), name, start] for name in ("a", "b", "c")]
    running = [subprocess.Popen(one, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) for one in words]
    said = [one.communicate(timeout=120)[0].splitlines()[-1] for one in running]
    assert sorted(said) == [str(["failed"] * 6), str(["failed"] * 6), str(["succeeded"] * 6)]
    ids = {str(at(tmp_path / "out" / "run" / f"step-{step}"))[:2] for step in range(6)}
    assert len(ids) == 1 and ids <= {"a-", "b-", "c-"}


def test_who_was_refused_goes_on_after_the_record_was_removed(daemons: Callable[..., Daemon]) -> None:
    first, second = daemons("first"), daemons("second")
    first.publish("run", 2, root=ROOT)
    job = second.publish("run", 2, root=ROOT)
    command = str(job.reason).split("`")[1]
    assert os.system(command) == 0
    assert second.journal.jobs.retry(job.id)
    assert second.journal.jobs.start(job.id, None)
    second.make(job)
    assert second.end(job).state == "succeeded"
    assert at(job.target) == job.id
    assert first.publish("run", 4, root=ROOT).state == "failed", "now it is the other one's"


def test_the_run_of_a_state_that_was_made_anew_in_the_same_place_is_taken_over(daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    old = daemons("first")
    job = old.publish("run", 2, root=ROOT)
    shutil.rmtree(tmp_path / "first")
    new = daemons("first")
    assert new.paths.instance != old.paths.instance
    again = new.publish("run", 2, root=ROOT)
    assert again.state == "succeeded" and again.target == job.target and at(job.target) == again.id
    owner = owner_of(job.target.parent, "run")
    assert owner is not None and owner.instance == new.paths.owner


@pytest.mark.parametrize("known", ["another boot", "another machine", "a record without places", "the other one was there before"])
def test_a_copy_of_a_machine_with_the_same_names_and_paths_takes_no_run_over(
    daemons: Callable[..., Daemon], tmp_path: Path, known: str
) -> None:
    """What tells the places apart is in the record: two containers see different folders by one path, with one host name."""
    job = daemons("first").publish("run", 2, root=ROOT)
    record = job.target.parent / record_of("run")
    content = json.loads(record.read_bytes())
    assert content["boot"] and content["place"]
    if known == "another boot":
        content |= {"boot": "of another kernel", "machine": "of another machine"}
    elif known == "another machine":
        content |= {"place": "1:1"}
    elif known == "a record without places":
        content = {key: value for key, value in content.items() if key not in ("machine", "boot", "place")}
    else:
        content |= {"since": "2999-01-01T00:00:00Z"}
    record.write_text(json.dumps(content))
    shutil.rmtree(tmp_path / "first")
    copy = daemons("first").publish("run", 2, root=ROOT)
    assert copy.state == "failed" and "another ckptd publishes the run run there" in str(copy.reason)
    assert at(job.target) == job.id and verify(job.target).sound


def test_a_state_that_is_away_keeps_its_runs(daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    first, second = daemons("first"), daemons("second")
    first.publish("run", 2, root=ROOT)
    (tmp_path / "first").rename(tmp_path / "unmounted")
    assert second.publish("run", 2, root=ROOT).state == "failed"


def test_what_a_job_leaves_in_an_output_that_is_away_is_removed_when_that_is_back(daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    first = daemons("first")
    job = first.publish("run", 2, root=ROOT)
    left = first.paths.staging / job.id
    assert left.is_dir()
    first.output.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        tidy_job(job, first.journal, first.paths)
    (tmp_path / "away").rename(first.output)
    assert tidy_job(job, first.journal, first.paths) and not left.exists()
    assert tidy_job(job, first.journal, first.paths), "again, where nothing is left"


def test_an_export_in_the_foreground_publishes_in_the_name_of_its_daemon(daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    first = daemons("first")
    first.publish("run", 2, root=ROOT)
    front = Daemon(tmp_path / "front", tmp_path / "out", state=first.paths.state / "foreground" / "x")
    job = front.publish("run", 2, root=ROOT)
    front.journal.close()
    assert job.state == "succeeded" and at(job.target) == job.id
    assert first.publish("run", 4, root=ROOT).state == "succeeded"


def test_two_publications_of_one_state_wait_for_each_other(
    daemons: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(owners, "PATIENCE_SECONDS", 0.0)
    first = daemons("first")
    job = first.take("run", 2, root=ROOT)
    folder = job.target.parent
    name = record_of(job.checkpoint.run)
    with (
        held_below(first.paths.output, folder, make=True) as around,
        owned(around.spot(name), job.checkpoint, first.paths, tmp_path / "scratch"),
        pytest.raises(Retryable, match="another process is publishing"),
        owned(around.spot(name), job.checkpoint, first.paths, tmp_path / "x"),
    ):
        pass
    with (
        held_below(first.paths.output, folder) as around,
        owned(around.spot(name), job.checkpoint, first.paths, tmp_path / "scratch"),
    ):
        assert os.listdir(folder) == [record_of("run")]


@pytest.mark.parametrize("lacking", ["locks", "hard links"])
def test_a_file_system_without_locks_or_hard_links_has_owners_too(
    daemons: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    first, second = daemons("first"), daemons("second")
    jobs = [(one, one.take("run", 2, root=ROOT)) for one in (first, second)]
    for one, job in jobs:
        one.make(job)
    if lacking == "locks":
        monkeypatch.setattr(owners.fcntl, "fcntl", refuse)
    else:
        monkeypatch.setattr(owners.os, "link", refuse)
    assert [one.end(job).state for one, job in jobs] == ["succeeded", "failed"]


@pytest.mark.parametrize("planted", ["garbage", "empty", "link", "folder", "pipe", "huge", "another version"])
def test_a_record_that_can_not_be_read_is_named_and_nothing_is_published(daemons: Callable[..., Daemon], planted: str) -> None:
    first = daemons("first")
    folder = first.output / "run"
    folder.mkdir()
    record = folder / record_of("run")
    if planted == "link":
        record.symlink_to(first.home)
    elif planted == "folder":
        record.mkdir()
    elif planted == "pipe":
        os.mkfifo(record)
    else:
        text = {"garbage": "\0\1{", "empty": "", "huge": " " * (1 << 17), "another version": json.dumps({"owner_version": 2})}[planted]
        record.write_text(text)
    job = first.publish("run", 2, root=ROOT)
    assert job.state == "failed" and str(record) in str(job.reason)
    assert os.listdir(folder) == [record.name]
