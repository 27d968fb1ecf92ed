"""Each invariant: a state that breaks it, and the checker tells exactly that."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.jobs.messages import Outcome
from daemon.operating.integrity.fsck import examine
from daemon.operating.integrity.journal_rules import RULES
from daemon.system.lock import locked
from tests.fsck.world import World, child_of


def finished(world: World) -> None:
    world.finished(4)


def running(world: World) -> None:
    """Merge has succeeded, pytorch has an open attempt."""
    job = world.enter(4)
    world.work(job, "merge")
    world.claim(job, "pytorch")


def interrupted(world: World) -> None:
    """Merge has succeeded, nothing is running."""
    world.work(world.enter(4), "merge")


def two(world: World) -> None:
    """Two checkpoints wait."""
    world.enter(4)
    world.enter(8)


def given_up(world: World) -> None:
    """Superseded while pytorch had an open attempt; not cleared away yet, and nothing lies around."""
    running(world)
    world.journal.jobs.supersede("job-4", "overwritten")
    world.tidy("job-4")
    shutil.rmtree(world.paths.jobs / "job-4")


Prepare = Callable[[World], None]
BROKEN: dict[str, tuple[Prepare, str]] = {
    "job-without-stages": (lambda world: world.enter(4) and None, "DELETE FROM stage"),
    "ended-job-open-stage": (finished, "UPDATE stage SET state = 'waiting' WHERE name = 'merge'"),
    "given-up-job-running": (given_up, "UPDATE job SET untidy = 0"),
    "pending-job-running": (running, "UPDATE job SET state = 'pending'"),
    "untidy-open-job": (interrupted, "UPDATE job SET untidy = 1"),
    "job-end-time": (finished, "UPDATE job SET ended = NULL"),
    "attempt-without-stage": (running, "UPDATE stage SET state = 'waiting' WHERE name = 'pytorch'"),
    "stage-without-attempt": (interrupted, "UPDATE stage SET state = 'running' WHERE name = 'pytorch'"),
    "attempts-miscounted": (finished, "UPDATE stage SET attempts = 2 WHERE name = 'merge'"),
    "attempt-half-ended": (finished, "UPDATE attempt SET ended = NULL WHERE stage = 'merge'"),
    "stage-without-result": (interrupted, "UPDATE stage SET result = NULL WHERE name = 'merge'"),
    "failure-without-reason": (interrupted, "UPDATE stage SET state = 'failed' WHERE name = 'merge'"),
    "shared-target": (two, "UPDATE job SET target = (SELECT min(target) FROM job)"),
    "taken-without-job": (finished, "INSERT INTO seen VALUES ('/x', 'f', 'taken', 'job-9', 'now')"),
    "message-twice": (finished, "INSERT INTO outbox (job, kind, title, body, created) SELECT job, kind, title, body, created FROM outbox"),
    "delivery-without-end": (
        finished,
        "INSERT INTO shipment (job, target, state, entered) SELECT id, 'far', 'delivered', ended FROM job",
    ),
    "message-state": (finished, "UPDATE outbox SET state = 'delivered'"),
    "job-state-wrong": (finished, "UPDATE stage SET result = replace(result, 'passed', 'failed') WHERE name = 'merged'"),
    "plan-incomplete": (interrupted, "DELETE FROM stage WHERE name = 'merged'"),
    "plan-order": (interrupted, "UPDATE stage SET position = 9 WHERE name = 'merge'"),
    "stage-unknown": (interrupted, "UPDATE stage SET name = 'smelt' WHERE name = 'report'"),
}


@pytest.mark.parametrize("code", BROKEN)
def test_a_journal_that_breaks_an_invariant_is_told_by_its_code(world: World, code: str) -> None:
    make, statement = BROKEN[code]
    make(world)
    assert world.codes() == []
    world.execute(statement)
    assert world.codes() == [code]


def test_two_open_attempts_of_one_stage_are_told(world: World) -> None:
    running(world)
    world.execute(
        "INSERT INTO attempt (job, stage, number, strategy, folder, staging, started)"
        " SELECT job, stage, 2, strategy, folder || '2', staging, started FROM attempt WHERE stage = 'pytorch'"
    )
    world.execute("UPDATE stage SET attempts = 2 WHERE name = 'pytorch'")
    assert world.codes() == ["attempts-open"]


def test_every_rule_of_the_table_has_a_state_that_breaks_it() -> None:
    assert {rule.code for rule in RULES} - BROKEN.keys() == {"attempts-open"}


def test_a_damaged_journal_is_told_and_nothing_is_concluded_from_it(world: World) -> None:
    world.finished(4)
    size = world.paths.journal.stat().st_size
    with open(world.paths.journal, "r+b") as stream:
        for page in range(2, size // 4096):
            stream.seek(page * 4096)
            stream.write(b"\xff" * 2048)
    assert world.codes() == ["journal-damaged"]
    with open(world.paths.journal, "r+b") as stream:
        stream.write(b"no database" * 10)
    assert world.codes() == ["journal-damaged"]


@pytest.mark.parametrize("statement", [
    "INSERT INTO stage (job, name, position) VALUES ('nobody', 'merge', 0)", "UPDATE job SET state = 'lost'", "DROP TABLE seen",
    "DROP TRIGGER job_transition",
])  # fmt: skip
def test_rows_that_make_no_sense_and_a_schema_that_lacks_something_are_told(world: World, statement: str) -> None:
    world.finished(4)
    with sqlite3.connect(world.paths.journal) as connection:
        if statement.startswith("UPDATE"):
            world.execute(statement)
        else:
            connection.execute(statement)
    connection.close()
    assert world.codes() == ["journal-damaged"]


# Exports


def target(world: World) -> Path:
    return world.paths.output / "run" / "step-4"


def left(path: Path, *, folder: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if folder:
        path.mkdir()
        (path / "file").touch()
    else:
        path.touch()


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def status(world: World) -> None:
    manifest = target(world) / MANIFEST
    manifest.write_text(manifest.read_text().replace('"succeeded"', '"partial"'))


def rewrite(path: Path) -> None:
    path.write_text(path.read_text()[:-1] + "x")


SPOILED: list[tuple[str, Prepare, Callable[[World], object]]] = [
    ("export-half", finished, lambda world: (target(world) / MANIFEST).unlink() or target(world).with_name("latest").unlink()),
    ("export-half", finished, lambda world: left(target(world).with_name("step-4.failed"), folder=True)),
    ("export-missing", finished, lambda world: (target(world) / "report.bin").unlink()),
    ("export-extra", finished, lambda world: left(target(world) / "extra")),
    ("export-size", finished, lambda world: (target(world) / "report.bin").write_text("cut")),
    ("export-content", finished, lambda world: rewrite(target(world) / "report.bin")),
    ("export-status", finished, status),
    ("link-broken", finished, lambda world: target(world).with_name("best").symlink_to("step-99")),
    ("link-astray", finished, lambda world: target(world).with_name("best").symlink_to("../../state")),
    ("temporary-left", finished, lambda world: left(target(world).with_name(f".latest.{dead_pid()}.tmp"))),
    ("temporary-left", finished, lambda world: left(world.paths.state / f".live.json.{dead_pid()}.tmp")),
    ("temporary-left", finished, lambda world: left(world.paths.attempt("job-4", "merge", 1) / "tmp", folder=True)),
    ("export-leftover", finished, lambda world: left(target(world).with_name(".step-4.ckptd-old"), folder=True)),
    ("export-leftover", finished, lambda world: left(target(world).with_name(".step-4.ckptd-new"), folder=True)),
    ("export-leftover", finished, lambda world: left(target(world).with_name(".step-4.ckptd-gone"), folder=True)),
    ("staging-orphan", finished, lambda world: left(world.paths.staging / "job-4", folder=True)),
    ("pin-orphan", finished, lambda world: left(world.paths.pins / "job-4", folder=True)),
    ("pin-missing", interrupted, lambda world: shutil.rmtree(world.paths.pins / "job-4")),
    ("pin-changed", interrupted, lambda world: rewrite(world.paths.pins / "job-4" / "adapter_config.json")),
    ("stage-output-damaged", interrupted, lambda world: shutil.rmtree(world.paths.staging / "job-4" / "merge.1")),
    ("stage-output-damaged", interrupted, lambda world: rewrite(world.paths.staging / "job-4" / "merge.1" / "merge.bin")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "make", "spoil"), SPOILED, ids=[f"{code}-{i}" for i, (code, _, _) in enumerate(SPOILED)])
def test_a_disk_that_breaks_an_invariant_is_told_by_its_code(
    world: World, code: str, make: Prepare, spoil: Callable[[World], object]
) -> None:
    make(world)
    assert world.codes(deep=True) == []
    spoil(world)
    assert world.codes(deep=True) == [code]


def test_a_temporary_name_of_a_process_that_lives_is_no_finding(world: World) -> None:
    world.finished(4)
    left(target(world).with_name(f".latest.{os.getpid()}.tmp"))
    assert world.codes() == []


def test_what_belongs_to_a_person_is_no_finding(world: World) -> None:
    world.finished(4)
    left(target(world).with_name("notes"), folder=True)
    left(target(world).with_name("step-5"), folder=True)
    target(world).with_name("mine").symlink_to("/nowhere")
    left(world.paths.output / ".hidden" / "file")
    assert world.codes(deep=True) == []


# Processes


def test_a_child_that_nobody_waits_for_is_told_and_one_that_is_gone(world: World) -> None:
    running(world)
    child = child_of(world, "job-4", "pytorch", 1)
    try:
        assert world.codes() == ["stray-child"]
        with locked(world.paths.lock):
            assert world.codes(quiescent=False) == []
            world.settle("job-4", "pytorch", Outcome.INTERRUPTED)
            assert world.codes(quiescent=False) == ["stray-child"]
            world.claim("job-4", "pytorch")
            assert world.codes(quiescent=False) == ["attempt-without-child", "stray-child"]
    finally:
        child.kill()
        child.wait()


def test_what_only_one_look_at_a_working_daemon_sees_is_no_finding(world: World) -> None:
    """Between any two looks one temporary name goes and another one comes."""
    world.finished(4)
    names = iter([target(world).with_name(f".{name}.{dead_pid()}.tmp") for name in ("latest", "best", "report")])
    current = [next(names)]
    left(current[0])

    def work() -> Iterator[float]:
        for name in names:
            current[0].unlink()
            current[0] = name
            left(name)
            yield 0.0

    with locked(world.paths.lock):
        assert examine(world.paths.state, world.paths.output, quiescent=False, pauses=work()).findings == ()
    assert world.codes() == ["temporary-left"]
