"""A full fine-tune in pieces that says nothing of its model: that is known before its turn has come, and waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.checkpoints.models.base_models import Bases
from daemon.contract.faults.fault_codes import FaultCode
from tests.runner.outside_world import World

NAMES = ("model.embed_tokens.weight", "model.norm.weight")
OF_TORCHTITAN = ("tok_embeddings.weight", "layers.0.attention.wq.weight")
Pieces = Callable[..., Path]


@pytest.fixture
def pieces() -> Pieces:
    """Saves tensors of these names into a folder, by torch."""
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")

    def save(folder: Path, names: tuple[str, ...] = NAMES) -> Path:
        dcp.save({name: torch.zeros(2, 2) for name in names}, checkpoint_id=folder, no_dist=True)
        return folder

    return save


def test_that_its_base_is_missing_is_told_behind_another_export(world: World, pieces: Pieces) -> None:
    desk = world.desk
    desk.script = lambda context: None
    desk.add("long", 1)
    desk.tick(2)
    world.job = desk.add("run", 4, layout="dcp-sharded")
    pieces(desk.runner.paths.pins / world.job)
    desk.tick(3)
    assert desk.started == ["long-1 merge"] and desk.state(world.job) == "pending"
    assert (fault := world.fault()) is not None and fault.code == FaultCode.BASE_NOT_FOUND
    assert 'set base.map."" = ' in world.told() and "the config.json and tokenizer of the training" in world.told()
    desk.runner.parts.bases._mapped = {"": world.paths["base"]}  # type: ignore[misc]
    desk.runner.waits.of[world.job].until = 0  # type: ignore[misc]
    desk.tick(3)
    assert not world.told()


@pytest.mark.parametrize(
    ("names", "config", "mapped", "missing"),
    [(NAMES, False, False, True), (NAMES, True, False, False), (NAMES, False, True, False), (OF_TORCHTITAN, False, False, False)],
)
def test_it_is_missing_where_nothing_else_says_what_model_it_is(
    names: tuple[str, ...], config: bool, mapped: bool, missing: bool, world: World, pieces: Pieces, tmp_path: Path
) -> None:
    """Of torchtitan's own names the first stage says what to do: a base does not help."""
    pin = pieces(tmp_path / "pin", names)
    if config:
        (pin / "config.json").write_text("{}")
    job = world.desk.journal.jobs.get(world.desk.add("run", 4, layout="dcp-sharded"))
    assert job is not None
    base, fault = Bases((), {"": world.paths["base"]} if mapped else {}).find(job.checkpoint, pin)
    assert (fault is not None) is missing and base == (world.paths["base"] if mapped else None)
