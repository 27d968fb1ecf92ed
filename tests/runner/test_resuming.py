"""What is done stays done: across kill -9, a changed configuration, an upgrade and a retry only what must be is repeated."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract.disk.files import files_below
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult
from daemon.contract.jobs.plan import spec_of
from daemon.operating.integrity.fsck import examine
from daemon.publishing import kept
from tests.runner.conftest import ALL, STAGES_OF_ALL, STAGES_OF_ONE, Toy, artifacts, read_json
from tests.runner.desk import Desks, done
from tests.sampling import some
from tests.service import Service

Add = Callable[..., Path]


def sound(service: Service) -> None:
    findings = examine(service.state, service.exports, quiescent=True, deep=True)
    assert findings.findings == (), findings
    assert [path for path in files_below(service.exports) if path.stat().st_nlink != 1] == [], "each is a file of its own"


@pytest.mark.slow
def test_an_undisturbed_export_runs_each_stage_once_and_leaves_everything_sound(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.1
    toy = make_toy(variants=ALL)
    add(toy)
    toy.start()
    (job,) = toy.wait_ended()
    assert toy.stop() == 0
    assert job["state"] == "succeeded", toy.log()[-3000:]
    assert sorted(toy.stages_begun()) == sorted(STAGES_OF_ALL)
    sound(toy)
    told = {stage: read_json(toy.state / "jobs" / job["id"] / f"{stage}.1" / "job.json") for stage in STAGES_OF_ALL}
    for stage, context in told.items():
        assert set(context["inputs"]) == {*spec_of(stage).needs, *spec_of(stage).after} & {*STAGES_OF_ALL}, (
            "what its key doesn't know of is no input"
        )


@pytest.mark.slow
def test_a_changed_setting_repeats_only_the_stages_that_depend_on_it(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.1
    toy = make_toy(variants=ALL)
    add(toy)
    toy.start()
    (job,) = toy.wait_ended()
    toy.stop()
    toy.log_of_attempts.unlink()
    toy.reconfigure("[validate]", "opset = 20\n[validate]")
    assert toy.run_verb("queue", "retry", job["id"]) == 0, toy.said
    toy.start()
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "succeeded"
    assert sorted(toy.stages_begun()) == ["check-onnx", "check-onnx-int8", "onnx", "onnx-int8", "report"]
    sound(toy)


@pytest.mark.slow
def test_an_export_that_waits_follows_the_configuration_of_the_next_start(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.1
    toy = make_toy(variants=("onnx",))
    add(toy)
    toy.start(fault="after.add-job")
    assert toy.wait_dead() == -signal.SIGKILL
    toy.reconfigure('["onnx"]', '["onnx", "pytorch"]')
    toy.start()
    (job,) = toy.wait_ended()
    toy.stop()
    assert sorted(toy.stages_begun()) == ["check-onnx", "merge", "merged", "onnx", "pytorch", "reference", "report"]
    assert list(job["artifacts"]) == ["pytorch", "onnx"]
    sound(toy)


@pytest.mark.slow
def test_a_job_with_a_stage_that_this_version_does_not_know_goes_on_without_it(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.1
    toy = make_toy()
    add(toy)
    toy.start(fault="after.settle-attempt")
    assert toy.wait_dead() == -signal.SIGKILL
    with sqlite3.connect(toy.state / "journal.sqlite3") as connection:
        connection.execute("INSERT INTO stage (job, name, position) SELECT id, 'hologram', 9 FROM job")
        connection.execute("UPDATE job SET work = json_set(work, '$.export.hologram', 1)")
    connection.close()
    toy.start()
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "succeeded"
    assert sorted(toy.stages_begun()) == sorted(STAGES_OF_ONE), "the merge that had ended is not repeated"
    sound(toy)


@pytest.mark.slow
def test_a_finished_output_that_was_damaged_while_the_daemon_was_down_is_made_again(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.1
    toy = make_toy()
    add(toy)
    toy.start(fault="after.settle-attempt")
    assert toy.wait_dead() == -signal.SIGKILL
    (shard,) = (toy.exports / ".staging").rglob("model-1.bin")
    data = bytearray(shard.read_bytes())
    data[7] ^= 1  # same size, another bit
    shard.write_bytes(data)
    toy.start()
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "succeeded"
    assert toy.stages_begun().count("merge") == 2
    assert "no longer whole" in toy.log()
    sound(toy)


def test_an_interrupted_merge_goes_on_at_the_shard_where_it_was(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.1
    toy = make_toy(extra="[limits]\nretry_seconds = 0.1\n")
    add(toy)
    once = toy.folder / "once"
    once.touch()
    toy.environment |= {"CKPTD_FAULT_ONCE": str(once)}
    toy.start(fault="toy.shard-1")
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "succeeded"
    result = next((toy.state / "jobs" / job["id"]).glob("merge.2/result.json")).read_text()
    assert '"resumed_files": 2' in result
    sound(toy)


def test_a_child_killed_from_outside_is_tried_again_and_the_attempt_is_told(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.4
    toy = make_toy(extra="[limits]\nretry_seconds = 0.1\n")
    toy.held.touch()
    add(toy)
    toy.start()
    toy.wait_held()
    os.kill(toy.children()[0].pid, signal.SIGKILL)
    toy.held.unlink()
    (job,) = toy.wait_ended()
    assert toy.stop() == 0
    assert next(stage for stage in job["stages"] if stage["name"] == "merge")["attempts"] == 2
    report = read_json(Path(job["target"]) / "report.json")
    merge = next(stage for stage in report["stages"] if stage["name"] == "merge")
    assert [attempt["outcome"] for attempt in merge["attempts"]] == ["retryable", "succeeded"]
    assert "its process was killed by SIGKILL" in toy.log()
    sound(toy)


@pytest.mark.slow
def test_a_kept_output_that_was_changed_is_not_used_again(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.1
    toy = make_toy()
    add(toy)
    toy.start()
    (job,) = toy.wait_ended()
    toy.stop()
    before = artifacts(Path(job["target"]))
    for shard in (toy.exports / ".kept").rglob("model-0.bin"):
        shard.write_bytes(b"\0" * shard.stat().st_size)
    toy.reconfigure("[validate]", "opset = 20\n[validate]")
    toy.run_verb("queue", "retry", job["id"])
    toy.start()
    (job,) = toy.wait_ended()
    toy.stop()
    assert "merge" in toy.stages_begun()[len(STAGES_OF_ONE) :]
    assert artifacts(Path(job["target"]))["pytorch/model.json"] == before["pytorch/model.json"]
    sound(toy)


def with_base(pico_base: Path, folder: Path) -> tuple[Path, str, Path]:
    """A base of the test's own, the configuration by which it is found, and other weights for it."""
    base, other = Path(shutil.copytree(pico_base, folder / "own-base")), folder / "changed"
    other.write_bytes((base / "model.safetensors").read_bytes()[:-4] + b"\1\2\3\4")
    return base, f"[base.map]\n{json.dumps(str(pico_base))} = {json.dumps(str(base))}\n", other


@pytest.mark.parametrize("stage", ["reference", *(pytest.param(name, marks=pytest.mark.slow) for name in ("merge", "onnx", "check-onnx"))])
def test_what_was_made_of_a_base_that_was_changed_meanwhile_is_made_again(
    make_toy: Callable[..., Toy], add: Add, pico_base: Path, tmp_path: Path, stage: str
) -> None:  # R6.1
    _, mapped, changed = with_base(pico_base, tmp_path)
    toy, fresh = (make_toy(variants=("pytorch", "onnx"), extra=mapped) for _ in range(2))
    toy.environment |= {"TOY_SWAP": f"{stage}:{changed}"}
    add(toy)
    toy.start()
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "succeeded" and not changed.exists()
    assert toy.stages_begun().count("merge") == 2
    assert "base was changed while it was exported (model.safetensors)" in toy.log()
    sound(toy)
    add(fresh)
    fresh.start()
    (wanted,) = fresh.wait_ended()
    fresh.stop()
    assert artifacts(Path(job["target"])) == artifacts(Path(wanted["target"]))
    toy.log_of_attempts.unlink()
    for service, ended in ((toy, job), (fresh, wanted)):
        service.reconfigure("[validate]", "opset = 20\n[validate]")
        assert service.run_verb("queue", "retry", ended["id"]) == 0, service.said
        service.start()
        service.wait_ended()
        service.stop()
    assert sorted(toy.stages_begun()) == ["check-onnx", "onnx", "report"]
    assert artifacts(Path(job["target"])) == artifacts(Path(wanted["target"])), "what is kept was made of what its key says"


def test_no_other_stage_that_is_ready_starts_on_what_is_given_up_for_a_changed_base(
    make_desk: Desks, pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R6.1
    monkeypatch.setattr("daemon.running.resumption.SETTLED_SECONDS", 0.0)
    base, _, changed = with_base(pico_base, tmp_path)
    desk = make_desk(limits={"threads": 4, "stages": 3})

    def script(context: StageContext) -> StageResult:
        if context.stage == "merge" and changed.exists():
            changed.rename(base / "model.safetensors")
        return done(context)

    desk.script = script
    job = desk.add("run", 1, variants=("pytorch", "onnx"), base=str(base))
    desk.tick(40)
    assert desk.state(job) == "succeeded" and not changed.exists()
    again = desk.started.index("run-1 merge", 1)
    assert not {"run-1 pytorch", "run-1 onnx", "run-1 merged"} & {*desk.started[:again]}, desk.started
    assert desk.order("onnx") == desk.order("pytorch") == ["run-1"]


@pytest.mark.parametrize("changes", some([True, False], of=2))
def test_nothing_is_kept_of_a_job_whose_base_was_changed_in_the_end(
    make_toy: Callable[..., Toy], add: Add, pico_base: Path, tmp_path: Path, changes: bool
) -> None:  # R6.1
    _, mapped, changed = with_base(pico_base, tmp_path)
    toy = make_toy(extra=mapped)
    toy.environment |= {"TOY_SWAP": f"{'report' if changes else 'none'}:{changed}"}
    add(toy)
    toy.start()
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "succeeded" and changed.exists() is not changes
    assert sorted(toy.stages_begun()) == sorted(STAGES_OF_ONE)
    assert any(path.is_file() for path in (toy.exports / ".kept").rglob("*")) is not changes


def test_files_beside_a_base_that_belong_to_no_model_change_nothing(
    make_toy: Callable[..., Toy], add: Add, pico_base: Path, tmp_path: Path
) -> None:
    base, mapped, _ = with_base(pico_base, tmp_path)
    toy = make_toy(extra=mapped)
    toy.held.touch()
    add(toy)
    toy.start()
    toy.wait_held()
    for name in ("train.log", "events.out.tfevents.1.box", ".lock"):
        (base / name).write_text("written beside it")
    toy.held.unlink()
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "succeeded" and sorted(toy.stages_begun()) == sorted(STAGES_OF_ONE)


@pytest.mark.slow
def test_kept_outputs_beyond_the_budget_are_removed_and_shared_ones_cost_nothing(make_toy: Callable[..., Toy], add: Add) -> None:
    toy = make_toy()
    toy.reconfigure("[state]", "kept_size = 0\n[state]")
    add(toy)
    toy.start()
    toy.wait_ended()
    toy.stop()
    kept = list((toy.exports / ".kept").rglob("model*"))
    assert kept == [] or all(path.is_symlink() for path in kept)


@pytest.mark.slow
def test_a_daemon_that_dies_again_and_again_in_the_same_stage_sets_it_aside(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.4
    toy = make_toy(extra="[limits]\ncrashes = 2\n")
    add(toy)
    for _ in range(2):
        toy.start(fault="runner.spawned")
        assert toy.wait_dead() == -signal.SIGKILL
    toy.start()
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "failed"
    assert "the daemon died 2 times while it ran" in job["error"]
    assert (Path(job["target"]) / "report.json").is_file(), "even then there is a report"
    shutil.rmtree(job["target"])


def test_no_more_than_so_many_outputs_are_kept_and_the_longest_unused_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST", 3)
    cache = kept.OutputCache(tmp_path / "kept")
    for number in range(6):
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "model").write_bytes(b"x")
        os.link(tmp_path / "made" / "model", tmp_path / f"published-{number}")
        cache.keep(f"key-{number}", tmp_path / "made", StageResult(outcome=Outcome.SUCCEEDED))
        os.utime(tmp_path / "kept" / f"key-{number}", (number, number))
    cache.find("key-0")  # of use just now
    assert cache.trim(1 << 30, in_use=()) == ["key-1", "key-2", "key-3"]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["key-0", "key-4", "key-5"]
