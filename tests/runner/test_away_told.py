"""What is said of what is away, for how long it is waited for, and what happens as it comes back."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.contract.disk import away as absence
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext, StageResult
from daemon.running import resumption
from daemon.running.sources import outside
from daemon.system import episodes
from daemon.system.processes import looks
from daemon.toolchains.install import remove
from daemon.toolchains.registry import Toolchains
from handlers.__main__ import _failed
from handlers.child.outside import Outside as OfAttempt
from tests.runner.absences import come_back, leave
from tests.runner.desk import Desks, done
from tests.runner.outside_world import World, begin, install, tick_until

# What is told, and for how long it is waited for


def test_a_base_that_is_missing_is_told_at_once_behind_another_export_and_found_without_a_turn(world: World) -> None:
    told: list[tuple[str, bool]] = []
    desk, base = world.desk, world.paths["base"]
    desk.runner.away.tell = lambda fault, over: told.append((fault.code, over))
    desk.script = lambda context: None
    desk.add("long", 1)
    desk.tick(2)
    assert desk.started == ["long-1 merge"]
    leave(base, "away")
    with capture_logs() as log:
        for step in (1, 2, 3):
            world.job = desk.add("run", step, base="org/base")
        desk.tick(3)
        assert desk.state("run-3") == "pending" and f"base.map gives {base}" in world.told(), "it says more than that others run"
        come_back(base, "away")
        desk.tick(3)
    assert not world.told() and desk.started == ["long-1 merge"], "it waits for its turn alone"
    assert [one["event_id"] for one in log if one["event_id"] in ("export.waiting", "source.back")] == ["export.waiting", "source.back"]
    assert told == [(FaultCode.BASE_NOT_FOUND, False), (FaultCode.BASE_NOT_FOUND, True)], "once, however many exports wait"


def test_after_away_hours_the_stages_fail_with_the_reason_and_the_report_is_made(world: World) -> None:
    shift = [0.0]
    world.desk.runner.away._clock = lambda: time.time() + shift[0]
    begin(world)
    world.desk.script = lambda context: None
    tick_until(world, lambda: world.desk.started, "begun")
    leave(world.paths["base"], "away")
    world.desk.script = done
    world.desk.tick(10)
    assert world.desk.state(world.job) == "running" and world.told()
    shift[0] = 24 * 3600.0 + 1
    tick_until(world, lambda: world.desk.state(world.job) == "failed", "failed")
    stages = world.desk.journal.stages.of(world.job)
    (why,) = {stage.fault.sentence() for stage in stages.values() if stage.state == "failed" and stage.fault}
    assert str(world.paths["base"]) in why and "has waited for 24 h (limits.away_hours)" in why and "`ckptd queue retry`" in why
    assert stages["report"].state == "succeeded" and not world.desk.runner.away.episodes


def test_texts_that_stay_away_fail_the_stages_that_read_them_and_no_other(world: World) -> None:
    shift = [0.0]
    world.desk.runner.away._clock = lambda: time.time() + shift[0]
    prompts = world.paths["prompts"]

    def script(context: StageContext) -> StageResult:
        if context.stage != "reference":
            return done(context)
        missing = Permanent(FaultCode.PROMPTS_NOT_FOUND, "read the prompts", "there is no such file", "set it", path=prompts)
        return _failed(missing, context.stage, context.staging, OfAttempt(context))

    world.desk.script = script
    leave(prompts, "away")
    begin(world)
    tick_until(world, world.fault, "waiting")
    assert world.desk.started == []
    shift[0] = 24 * 3600.0 + 1
    tick_until(world, lambda: world.desk.state(world.job) in ("failed", "partial"), "ended")
    stages = world.desk.journal.stages.of(world.job)
    assert stages["merge"].state == stages["pytorch"].state == "succeeded" and stages["reference"].state == "failed"
    why = stages["reference"].fault
    assert why is not None and str(prompts) in why.sentence() and "limits.away_hours" in why.sentence()
    assert world.desk.started.count("run-1 reference") == 1


@pytest.mark.parametrize("waits", [False, True])
def test_with_no_hours_it_fails_at_once_as_does_what_a_person_waits_for(make_desk: Desks, tmp_path: Path, *, waits: bool) -> None:
    desk = make_desk(base={"map": {"org/base": tmp_path / "none"}}, limits={"away_hours": 0 if not waits else 24})
    desk.runner.at_once = waits
    desk.runner._configure()
    job = desk.add("run", 1, base="org/base")
    desk.tick(40)
    assert desk.state(job) == "failed"
    fault = desk.journal.stages.of(job)["merge"].fault
    assert fault is not None and fault.code == FaultCode.BASE_NOT_FOUND and "limits.away_hours" not in fault.sentence()


def test_over_a_restart_it_is_told_once_and_the_time_goes_on(tmp_path: Path) -> None:
    told, moment = [], [1000.0]
    fault = absence.fault_of("/models/base", FileNotFoundError(), "read the base model")
    for _ in range(3):
        waited = episodes.Away(tmp_path / "away.json", 100.0, lambda: moment[0])
        waited.tell = lambda fault, over: told.append(over)
        assert waited.waits("run-1", "/models/base", fault) == episodes.FIRST_LOOKS
        moment[0] += 10
    assert told == [False]
    moment[0] = 1100.0
    assert waited.waits("run-1", "/models/base", fault) is None and waited.waits("run-2", "/models/base", fault) is not None
    assert episodes.Away(tmp_path / "away.json", 3 * 3600.0, lambda: 1000.0 + 2 * 3600).waits("run-1", "/models/base", fault) == 60.0


def test_a_wall_clock_that_is_set_between_two_starts_ends_no_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, fault = tmp_path / "away.json", absence.fault_of("/models/base", FileNotFoundError(), "read the base model")
    uptime = [5000.0]
    monkeypatch.setattr(episodes, "_uptime", lambda: uptime[0])

    def pause() -> float | None:
        return episodes.Away(file, 3600.0).waits("run-1", "/models/base", fault)

    assert pause() == episodes.FIRST_LOOKS
    for wall in (9e9, 0.0):
        monkeypatch.setattr(time, "time", lambda wall=wall: wall)
        assert pause() == episodes.FIRST_LOOKS
    uptime[0] += 1800.0
    assert pause() == 60.0, "the time since then counts"
    monkeypatch.setattr(episodes, "boot_id", lambda: "another start of the machine")
    uptime[0] = 20.0
    assert pause() is not None
    uptime[0] += 3600.0
    waited = episodes.Away(file, 3600.0)
    assert waited.waits("run-1", "/models/base", fault) is not None, "what was written down before the reboot is all that is known"


def test_what_is_away_is_told_once_though_its_export_waits_for_something_else_first_and_comes_further(tmp_path: Path) -> None:
    told: list[tuple[str | None, bool]] = []
    waited = episodes.Away(tmp_path / "away.json", 100.0, lambda: 1000.0)
    waited.tell = lambda fault, over: told.append((fault.path, over))
    base, texts = (absence.fault_of(path, FileNotFoundError(), "read it") for path in ("/base", "/texts"))
    for fault in (base, texts, base):
        assert waited.waits("run-1", str(fault.path), fault) is not None
    waited.further("run-1")
    assert waited.waits("run-1", "/base", base) is not None
    assert told == [("/base", False), ("/texts", False)]
    waited.there("run-1")
    assert sorted(told[2:]) == [("/base", True), ("/texts", True)]


def test_what_was_waited_for_long_enough_is_not_called_back_by_a_look_that_no_longer_asks_for_it(tmp_path: Path) -> None:
    told, moment = [], [1000.0]
    waited = episodes.Away(tmp_path / "away.json", 100.0, lambda: moment[0])
    waited.tell = lambda fault, over: told.append(over)
    texts = absence.fault_of("/texts", FileNotFoundError(), "read it")
    waited.waits("run-1", "/texts", texts)
    moment[0] = 1200.0
    waited.there("run-1")
    assert told == [False]


def test_an_attempt_that_says_so_again_and_again_is_tried_ever_more_seldom_and_given_up_in_the_end(world: World) -> None:
    base, shift = world.paths["base"], [0.0]
    world.desk.runner.away._clock = lambda: time.time() + shift[0]

    def failing(context: StageContext) -> StageResult:
        error = PermissionError(13, "Permission denied", str(base / "config.json"))
        return _failed(error, context.stage, context.staging, OfAttempt(context))

    world.desk.script = lambda context: failing(context) if context.stage == "merge" else done(context)
    begin(world)
    tick_until(world, lambda: world.desk.started.count("run-1 merge") == 4, "tried again more often than limits.attempts")
    shift[0] = 3600.0
    tick_until(world, lambda: (world.desk.journal.stages.of(world.job)["merge"].retry_delay or 0) >= 60, "waiting for a minute")
    assert world.desk.journal.stages.of(world.job)["merge"].failures == 0
    shift[0] = 25 * 3600.0
    world.desk.journal.stages.end_waits(world.job)
    tick_until(world, lambda: world.desk.state(world.job) == "failed", "given up")


def test_a_file_system_that_does_not_answer_holds_up_no_other_export_and_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, original = threading.Event(), outside.check_base

    def hanging(folder: Path, *, whole: bool) -> None:
        answers.wait(60)
        original(folder, whole=whole)

    monkeypatch.setattr(outside, "check_base", hanging)
    monkeypatch.setattr(looks, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(looks, "SILENT_SECONDS", 0.05)
    begin(world)
    other = world.desk.add("other", 1)
    tick_until(world, lambda: world.desk.state(other) == "succeeded", "finished beside it")
    tick_until(world, world.told, "told")
    assert "its file system does not answer" in world.told() and world.desk.state(world.job) == "pending"
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("look ")]) == 1, "it is asked once"
    answers.set()
    tick_until(world, lambda: world.desk.state(world.job) == "succeeded", "gone on")


# What comes back


def test_a_base_that_is_another_one_when_it_comes_back_has_its_stages_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumption, "SETTLED_SECONDS", 0.0)
    base = world.paths["base"]
    begin(world)
    world.desk.script = lambda context: done(context) if context.stage == "merge" else None
    tick_until(world, lambda: "run-1 pytorch" in world.desk.started, "past the merge")
    leave(base, "away")
    world.desk.script = done
    tick_until(world, world.fault, "waiting")
    come_back(base, "away")
    (base / "config.json").write_text('{"another": 1}')
    tick_until(world, lambda: world.desk.state(world.job) == "succeeded", "succeeded")
    assert world.desk.started.count("run-1 merge") == 2


def test_the_file_that_an_index_names_and_that_is_not_there_yet_is_waited_for(world: World) -> None:
    base = world.paths["base"]
    (base / outside.INDEX).write_text(json.dumps({"weight_map": {"w": "model.safetensors", "v": "model-2.safetensors"}}))
    begin(world)
    tick_until(world, world.fault, "waiting")
    assert str(base / "model-2.safetensors") in world.told() and world.desk.started == []
    (base / "model-2.safetensors").write_bytes((base / "model.safetensors").read_bytes())
    tick_until(world, lambda: world.desk.state(world.job) == "succeeded", "gone on")


def test_a_tokenizer_that_is_gone_from_the_base_is_waited_for_where_nothing_else_of_it_is_new(world: World) -> None:
    tokenizer = world.paths["base"] / "tokenizer.json"
    tokenizer.write_text("{}")
    begin(world)
    world.desk.script = lambda context: done(context) if context.stage == "merge" else None
    tick_until(world, lambda: "run-1 pytorch" in world.desk.started, "past the merge")
    tokenizer.rename(world.home / "aside")
    world.desk.script = done
    tick_until(world, world.fault, "waiting")
    assert str(tokenizer) in world.told()
    (world.home / "aside").rename(tokenizer)
    tick_until(world, lambda: world.desk.state(world.job) == "succeeded", "gone on")
    assert world.desk.started.count("run-1 merge") == 1


def test_a_place_whose_mount_is_gone_is_away_though_its_folder_is_there(tmp_path: Path) -> None:
    outside.Place(tmp_path, "output.directory", "/").check()
    outside.Place(tmp_path / "deleted", "output.directory", "/").check()
    with pytest.raises(outside.Absent) as absent:
        outside.Place(tmp_path, "output.directory", str(tmp_path)).check()
    assert absent.value.key == str(tmp_path) and "output.directory" in absent.value.fault.sentence()


def test_a_toolchain_that_was_removed_or_never_installed_is_not_waited_for(world: World) -> None:
    install(world)
    remove(Toolchains(world.desk.home), "gguf")
    begin(world)
    tick_until(world, lambda: world.desk.state(world.job) in ("failed", "partial"), "ended")
    fault = world.desk.journal.stages.of(world.job)["gguf-f16"].fault
    assert fault is not None and fault.code == FaultCode.TOOLCHAIN_MISSING
