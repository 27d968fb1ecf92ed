"""Sound states: the checker finds nothing in them, and changes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import typer
from typer.testing import CliRunner

from daemon.cli import maintenance
from daemon.contract.disk.files import sha256_file
from daemon.contract.jobs.messages import Outcome
from daemon.operating.integrity.fsck import examine
from daemon.system.lock import locked
from tests.fsck.world import STAGES, World, child_of


def test_nothing_is_found_where_nothing_was_ever_done(tmp_path: Path, world: World) -> None:
    assert examine(tmp_path / "nowhere", tmp_path / "no-exports", quiescent=True).findings == ()
    assert not (tmp_path / "nowhere").exists()
    assert world.examine(deep=True).findings == ()


def test_nothing_is_found_at_any_step_of_an_export_that_is_interrupted_in_order(world: World) -> None:
    job = world.enter(4)
    assert world.codes(deep=True) == []
    world.journal.jobs.start(job, None)
    for stage in STAGES:
        world.claim(job, stage)
        assert world.codes() == []  # a daemon that died here leaves an open attempt, which the next start settles
        world.settle(job, stage, Outcome.INTERRUPTED)
        assert world.codes(deep=True) == []
        world.claim(job, stage)
        world.settle(job, stage)
        assert world.codes(deep=True) == []
    world.publish(job)
    assert world.codes(deep=True) == []
    world.finish(job)
    found = world.examine(deep=True)
    assert (found.findings, found.notes, found.jobs, found.exports) == ((), (), 1, 1)


def test_an_export_that_was_replaced_or_removed_is_a_note_and_no_finding(world: World) -> None:
    first, second = world.finished(4), world.finished(8)
    world.execute("UPDATE job SET target = (SELECT target FROM job WHERE id = 'job-8') WHERE id = 'job-4'")
    assert [(note.code, note.job) for note in world.examine().notes] == [("export-replaced", "job-4")]
    shutil.rmtree(first)
    second.with_name("latest").unlink()
    shutil.rmtree(second)
    found = world.examine()
    assert found.findings == ()
    assert [note.code for note in found.notes] == ["export-absent", "export-absent"]


def test_a_failed_job_beside_a_good_export_of_another_configuration_is_sound(world: World) -> None:
    job = world.enter(4)
    world.journal.jobs.start(job, None)
    world.claim(job, "merge")
    world.settle(job, "merge", Outcome.PERMANENT)
    for stage in ("pytorch", "reference", "merged"):
        world.journal.stages.end(job, stage, "skipped", None)
    world.claim(job, "report")
    world.settle(job, "report")
    assert world.journal.jobs.finish(job, "failed", None)
    world.tidy(job)
    found = world.examine()
    assert found.findings == ()
    assert [(note.code, Path(note.path or "").name) for note in found.notes] == [("export-absent", "step-4.failed")]
    later, first = world.finished(8), Path(found.notes[0].path or "").with_suffix("")
    world.execute("UPDATE job SET target = (SELECT target FROM job WHERE id = 'job-4') WHERE id = 'job-8'")
    later.with_name("latest").unlink()
    later.rename(first)
    assert [(note.code, note.job) for note in world.examine().notes] == [("export-replaced", "job-4")], "its own success came after it"


def test_a_job_that_was_retried_is_sound_and_so_is_one_that_was_given_up(world: World) -> None:
    world.finished(4)
    world.execute("UPDATE job SET state = 'partial' WHERE id = 'job-4'")
    (world.paths.pins / "job-4").mkdir()
    (world.paths.pins / "job-4" / "adapter_config.json").write_text("pinned again")
    assert world.journal.jobs.retry("job-4")
    assert world.codes() == []
    world.journal.jobs.supersede(world.enter(8), "overwritten")
    assert world.codes() == []


def test_a_working_daemon_with_its_child_is_sound(world: World) -> None:
    job = world.enter(4)
    world.work(job, "merge")
    number = world.claim(job, "pytorch")
    (world.paths.output / "run").mkdir()
    (world.paths.staging / "a-job-that-just-came").mkdir()
    child = child_of(world, job, "pytorch", number)
    try:
        with locked(world.paths.lock):
            assert world.codes(quiescent=False) == []
    finally:
        child.kill()
        child.wait()


def test_what_is_checked_stays_as_it_is(world: World) -> None:
    world.finished(4)
    folders = (world.paths.state, world.paths.output)
    before = [{path: sha256_file(path) for path in folder.rglob("*") if path.is_file()} for folder in folders]
    world.examine(deep=True)
    assert before == [{path: sha256_file(path) for path in folder.rglob("*") if path.is_file()} for folder in folders]


def test_the_command_says_sound_or_what_is_wrong_by_its_exit_code(world: World, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[output]\ndirectory = "{world.paths.output}"\n[state]\ndirectory = "{world.paths.state}"\n')
    app = typer.Typer()
    maintenance.register(app)
    target = world.finished(4)
    answer = CliRunner().invoke(app, ["verify", "--journal", "--config", str(config), "--deep"])
    assert (answer.exit_code, "no problems found" in answer.output) == (0, True), answer.output
    assert "1 job, 1 export, " in answer.output
    (target / "pytorch" / "pytorch.bin").write_text("pytorch of job-5")
    assert CliRunner().invoke(app, ["verify", "--journal", "--config", str(config)]).exit_code == 0  # the size is right
    answer = CliRunner().invoke(app, ["verify", "--journal", "--config", str(config), "--deep", "--json"])
    assert answer.exit_code == 1
    told = json.loads(answer.output)
    assert (told["sound"], [one["code"] for one in told["states"][0]["findings"]]) == (False, ["export-content"])
    answer = CliRunner().invoke(app, ["verify", "--journal", "--config", str(config), "--deep"])
    assert "job-4: export-content: pytorch/pytorch.bin: has other content" in answer.output
