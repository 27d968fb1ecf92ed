"""What torch.distributed.checkpoint writes as safetensors, consolidated or not, is one model: whole, and never a half of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from daemon.checkpoints.inspection import inspect
from daemon.checkpoints.names import Candidate, candidate
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from tests.consolidate.helpers import consolidate, pinned


@pytest.fixture(scope="module")
def written(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Below it `whole/step-4` and `pieces/step-4`, by torch's own writer, in one process. Read only."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    out = tmp_path_factory.mktemp("hf")
    weights = load_file(pico_base / "model.safetensors")
    for name, consolidated in (("whole", True), ("pieces", False)):
        writer = HuggingFaceStorageWriter(str(out / name / "step-4"), save_distributed=True, enable_consolidation=consolidated)
        dcp.save(weights, storage_writer=writer, no_dist=True)
    return out


def halved(pieces: Path, target: Path) -> Path:
    """The same as two ranks write it, each half of the rows of what has an even number of them."""
    from safetensors.torch import load_file, save_file

    (file,) = pieces.glob("*.safetensors")
    whole, target = load_file(file), target / "step-4"
    target.mkdir(parents=True)
    for rank in range(2):
        held: dict[str, Any] = {}
        for name, value in whole.items():
            half = value.shape[0] // 2
            held[name] = value[half * rank : half * (rank + 1)].contiguous()
        places = {name: {"saved_offsets": [len(value) * rank, *[0] * (value.dim() - 1)]} for name, value in held.items()}
        save_file(held, target / f"shard-0000{rank + 1}-model-00001-of-00001.safetensors",
                  {"DCP_SHARDING_INFO": json.dumps(places), "DCP_VERSION": "1.0", "format": "pt"})  # fmt: skip
    return target


def test_what_torch_writes_in_one_process_is_the_models_file(written: Path, pico_base: Path, tmp_path: Path) -> None:
    checkpoint = written / "pieces" / "step-4"
    assert candidate("any", {path.name: False for path in checkpoint.iterdir()}) is Candidate.CHECKPOINT
    found = inspect(checkpoint)
    assert (found.layout, found.missing, found.refusal, found.method, found.step) == ("dcp-safetensors", (), None, "full", 4)
    assert found.patience_seconds > 0, "nothing is written last"
    folder, _ = consolidate(pinned(checkpoint, tmp_path / "pin"), pico_base, tmp_path / "work")
    assert (folder / "model.safetensors").read_bytes() == (pico_base / "model.safetensors").read_bytes()
    assert not list(folder.glob("shard-*"))


def test_pieces_of_two_ranks_are_one_model_and_one_ranks_alone_are_refused(written: Path, pico_base: Path, tmp_path: Path) -> None:
    checkpoint = halved(written / "pieces" / "step-4", tmp_path / "run")
    folder, output = consolidate(pinned(checkpoint, tmp_path / "pin"), pico_base, tmp_path / "work")
    assert (folder / "model.safetensors").read_bytes() == (pico_base / "model.safetensors").read_bytes()
    assert output.figures["pieces"] == 2 * output.figures["tensors"]
    first, second = sorted(checkpoint.glob("shard-*"))
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(Permanent) as error:
        consolidate(pinned(checkpoint, tmp_path / "pin2"), pico_base, tmp_path / "work2")
    assert error.value.fault.code == FaultCode.CONFIG_MISMATCH
    second.write_bytes(kept)
    first.unlink()
    assert "gap" in " ".join(inspect(checkpoint).missing)
    first.write_bytes(kept[:-10])
    assert not inspect(checkpoint).complete


def test_pieces_that_don_t_say_where_they_lie_are_not_complete(written: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    checkpoint = tmp_path / "step-4"
    shutil.copytree(written / "pieces" / "step-4", checkpoint)
    (file,) = checkpoint.iterdir()
    weights = load_file(file)
    negative = json.dumps({name: {"saved_offsets": [-1] * value.dim()} for name, value in weights.items()})
    for said in ("", "[", "[]", '{"x": {}}', negative):
        save_file(weights, file, {"DCP_SHARDING_INFO": said})
        assert "does not say where" in " ".join(inspect(checkpoint).missing)


def test_a_consolidated_one_is_the_model_that_torch_put_together(written: Path, pico_base: Path, tmp_path: Path) -> None:
    shutil.copytree(written / "whole" / "step-4", tmp_path / "step-4")
    assert "config.json" in " ".join(inspect(tmp_path / "step-4").missing)
    shutil.copy(pico_base / "config.json", tmp_path / "step-4")
    found = inspect(tmp_path / "step-4")
    assert (found.layout, found.missing) == ("full", ())
    pieces = [path.name for path in (tmp_path / "step-4" / "sharded").iterdir()]
    assert pieces
    assert candidate("sharded", dict.fromkeys(pieces, False)) is Candidate.NONE, "the same model is not exported twice"
