"""Checkpoints in pieces that are written file by file, in halves, with long pauses: nothing is taken or refused before its time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from daemon.checkpoints.inspection import NO_ADAPTER_YET, inspect
from tests.consolidate import zero
from tests.detection.bench import Bench

LIGHTNING = "logs/version_0/checkpoints/epoch=1-step=12.ckpt"


def _tensors() -> dict[str, Any]:
    import torch

    return {"model.layers.0.weight": torch.arange(12.0).reshape(3, 4), "model.norm.weight": torch.ones(4)}


def _dcp(folder: Path) -> list[str]:
    """torch's own form of two ranks, whose parts are two files; gives what comes last."""
    import torch.distributed.checkpoint as dcp

    with pytest.warns(UserWarning, match=r"torch.distributed is"):
        dcp.save(_tensors(), storage_writer=dcp.FileSystemWriter(folder, thread_count=2), no_dist=True)
    return [".metadata"]


def _fsdp(folder: Path) -> list[str]:
    """The model's parts, then the optimizer's, then what Trainer writes; until then none of its own files is there."""
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        _dcp(folder / name)
    optimizer = [f"optimizer_0/{path.name}" for path in (folder / "optimizer_0").glob("*.distcp")]
    (folder / "scheduler.pt").write_bytes(b"x" * 100)
    (folder / "trainer_state.json").write_text('{"global_step": 12}')
    return ["pytorch_model_fsdp_0/.metadata", *optimizer, "optimizer_0/.metadata", "scheduler.pt", "trainer_state.json"]


def _deepspeed(folder: Path) -> list[str]:
    """ZeRO of two ranks. `latest` comes after the files of rank 0, those of the other one may come later."""
    zero.save(folder, 2, 2, [_tensors()], tag="checkpoint" if folder.suffix == ".ckpt" else "global_step12")
    return ["latest"]


FORMS = {
    "DCP": ("outputs/step-12", _dcp), "FSDP of Trainer": ("run/checkpoint-12", _fsdp), "DeepSpeed": ("run/global_step12", _deepspeed),
    "DCP of Lightning": (LIGHTNING, _dcp), "DeepSpeed of Lightning": (LIGHTNING, _deepspeed),
}  # fmt: skip


def written(source: Path, target: Path, last: list[str], rng: Random) -> Iterator[str]:
    """Copy a checkpoint file by file, each in two halves; gives the name after each write. With DeepSpeed another rank is slower yet."""
    names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    others = [name for name in names if name not in last]
    rng.shuffle(others)
    late = [name for name in others if "rank_1_" in name]
    for name in [*(name for name in others if name not in late), *last, *late]:
        data = (source / name).read_bytes()
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        for part in (data[: len(data) // 2], data):
            (target / name).write_bytes(part)
            yield name


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_slowly_is_incomplete_until_its_last_piece(form: str, seed: int, bench: Bench, tmp_path: Path) -> None:  # R1.1 R1.5
    place, save = FORMS[form]
    source, target = tmp_path / "saved" / Path(place).name, bench.root / place
    last = save(source)
    missing: set[str] = set()
    with capture_logs() as said:
        for name in written(source, target, last, Random(seed)):
            assert bench.jobs() == []
            told = name not in ("pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata")
            bench.pass_time(40.0 if told else 20.0)  # whether Trainer goes on there only time can tell
            assert bench.tracker.listing.passed_over == {}
            for path, entry in bench.tracker.listing.incomplete.items():
                assert path == target
                missing |= set(entry.missing)
    (job,) = bench.jobs()
    assert (job.checkpoint.path, job.checkpoint.step, job.target.name) == (str(target), 12, "step-12")
    assert bench.tracker.listing.incomplete == {}
    assert [record for record in said if record["log_level"] in ("warning", "error")] == []
    assert missing and not any("no known sharded form" in one or one == NO_ADAPTER_YET for one in missing), missing


@pytest.mark.parametrize("name", ["epoch=1-step=12.ckpt", "model-epoch=01-val=0.30-step=12.ckpt", "step=12-v1.ckpt"])
def test_a_directory_of_lightning_has_the_step_of_its_name(name: str, tmp_path: Path) -> None:
    _dcp(tmp_path / name)
    shutil.copytree(tmp_path / name, tmp_path / "last.ckpt")
    found, last = inspect(tmp_path / name), inspect(tmp_path / "last.ckpt")
    assert (found.step, found.ending, last.step, last.ending) == (12, False, 12, True)
