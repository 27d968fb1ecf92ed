"""What is away may come back: each path that an export reads from outside, each way of going away, at each moment."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from daemon.checkpoints.pinning.additions import Settling
from daemon.config.settings import AddedAdapter
from daemon.contract.disk import away as absence
from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext, StageResult
from daemon.running.rules.reads import END, TABLE, Moment, Outside, put_into
from daemon.system.episodes import Away
from handlers.__main__ import _failed
from handlers.child.outside import Outside as OfAttempt
from tests.runner.absences import WAYS, come_back, leave, without_override
from tests.runner.desk import done
from tests.runner.outside_world import World, begin, install, tick_until
from tests.sampling import some

ROOT = Path(__file__).parents[2]
CELLS = [(row, way, moment) for row in TABLE for moment in row.waits for way in WAYS if row.deleted or way != "away"]


@pytest.mark.parametrize(("row", "way", "moment"), some(CELLS, of=2), ids=[f"{row.name}-{way}-{moment.name}" for row, way, moment in CELLS])
def test_what_is_away_is_waited_for_and_the_export_goes_on_by_itself(world: World, row: Outside, way: str, moment: Moment) -> None:
    if row.name == "adapter to add":
        _an_addition_is_waited_for(world.home, way)
        return
    path = install(world) if row.name == "toolchain" else world.paths[row.name]
    with without_override():
        if moment is Moment.INTAKE:
            leave(path, way)
            begin(world)
        elif moment is Moment.BEFORE:
            begin(world)
            world.desk.runner.queue.start(world.desk.journal.jobs.first_of(world.desk.journal.jobs.lanes(set())[0], set()))  # type: ignore[arg-type]
            leave(path, way)
        else:
            _break_during(world, path, way)
        tick_until(world, world.fault, "waiting")
        begun = list(world.desk.started)
        fault = world.fault()
        assert fault is not None and fault.code in (FaultCode.SOURCE_AWAY, FaultCode.BASE_NOT_FOUND)
        assert "limits.away_hours" in world.told() and (fault.path is None or str(fault.path) in world.told())
        assert str(path) in world.told() or row.name == "a file of the base"
        world.desk.tick(5)
        assert world.desk.started == begun, "nothing is begun while it is away"
        come_back(path, way)
        world.desk.script = done
        tick_until(world, lambda: world.desk.state(world.job) == "succeeded", "succeeded")
    stages = world.desk.journal.stages.of(world.job)
    assert {stage.failures for stage in stages.values()} == {0}, "no attempt was counted"
    assert not world.told() and not any(one.jobs for one in world.desk.runner.away.episodes.values())


def _break_during(world: World, path: Path, way: str) -> None:
    """Let the path go away while the first stage that reads it runs, and end its attempt as the child's entry does."""
    watched: dict[str, OfAttempt] = {}
    stage = next((name for name in ("check-gguf-f16", "gguf-f16") if world.variants != ("pytorch",)), "merge")
    gone = threading.Event()

    def script(context: StageContext) -> StageResult | None:
        if context.stage not in (stage, "gguf-f16") or (stage != "merge" and context.stage == "merge"):
            return done(context)
        if context.attempt_id not in watched:
            watched[context.attempt_id] = OfAttempt(context)
            return None
        if not gone.is_set():
            return None
        try:
            absence.look(path / "x" if path.is_dir() and way != "unreadable" else path)
            if path == world.desk.home / "out":
                Path(context.staging, "y").write_text("")
        except OSError as error:
            return _failed(error, context.stage, context.staging, watched[context.attempt_id])
        return done(context)

    world.desk.script = script
    begin(world)
    tick_until(world, lambda: watched, "begun")
    leave(path, way)
    gone.set()


def _an_addition_is_waited_for(home: Path, way: str) -> None:
    adapter = home / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    settling, wanted = Settling(Away(home / "away.json", 3600)), [AddedAdapter(path=adapter)]
    with without_override():
        leave(adapter, way)
        for _ in range(2):
            with pytest.raises(Retryable) as refused:
                settling.check(wanted)
            assert refused.value.fault.code == FaultCode.SOURCE_AWAY and refused.value.fault.path == str(adapter)
        come_back(adapter, way)
        with pytest.raises(Retryable) as refused:
            settling.check(wanted)
        assert refused.value.fault.code == FaultCode.STILL_WRITTEN, "it is there, and may still be written"


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "recovery.md").read_text()
    assert END in page and put_into(page) == page, "run python -m daemon.running.rules.reads docs/recovery.md"


def test_a_base_that_is_being_copied_is_waited_for_and_is_no_damaged_one(world: World) -> None:
    whole = world.paths["a file of the base"].read_bytes()
    world.paths["a file of the base"].write_bytes(whole[:-2])
    begin(world)
    world.desk.script = done
    tick_until(world, world.fault, "waiting")
    fault = world.fault()
    assert fault is not None and fault.code == FaultCode.SOURCE_AWAY and "may still be written" in fault.cause
    assert world.desk.started == []
    world.paths["a file of the base"].write_bytes(whole)
    tick_until(world, lambda: world.desk.state(world.job) == "succeeded", "succeeded")


def test_a_damaged_base_to_which_nobody_writes_is_one(world: World) -> None:
    file = world.paths["a file of the base"]
    file.write_bytes(file.read_bytes()[:-2])
    os.utime(file, (0, time.time() - 3600))
    begin(world)
    tick_until(world, lambda: world.desk.state(world.job) == "failed", "failed")
    faults = [stage.fault for stage in world.desk.journal.stages.of(world.job).values() if stage.fault]
    assert FaultCode.BASE_DAMAGED in {fault.code for fault in faults}


def test_a_base_of_which_pieces_are_missing_is_waited_for(world: World) -> None:
    file = world.paths["a file of the base"]
    first = file.rename(file.with_name("model-00001-of-00002.safetensors"))
    begin(world)
    world.desk.script = done
    tick_until(world, world.fault, "waiting")
    fault = world.fault()
    assert fault is not None and fault.code == FaultCode.SOURCE_AWAY and "model-00002-of-00002.safetensors" in str(fault.path)
    shutil.copy(first, file.with_name("model-00002-of-00002.safetensors"))
    tick_until(world, lambda: world.desk.state(world.job) == "succeeded", "succeeded")
