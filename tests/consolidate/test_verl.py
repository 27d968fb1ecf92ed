"""verl's pieces of FSDP: each tensor from the parts of all ranks, and what is not put together is refused by name."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from daemon.checkpoints.inspection import inspect
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.sharded import verl
from daemon.contract.sharded.pickles import Unreadable, Unsafe
from daemon.contract.sharded.pieces import Unsupported
from handlers.consolidate.assemble import write_file
from tests.saves.saves import CONFIG, LORA, MODEL, TOKENIZER, arrays, ranks


def save(folder: Path, mesh_shape: tuple[int, ...], placements: Any, values: dict[str, Any], part: Any) -> Path:
    """The file of each rank of a mesh; `part`: gives a rank's own part of a whole tensor. Values in a list are saved as they are."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    folder.mkdir(parents=True, exist_ok=True)
    count = int(np.prod(mesh_shape))
    for rank in range(count):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
        mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("ddp", "fsdp")[-len(mesh_shape) :])
        state = {}
        for name, value in values.items():
            if isinstance(value, list):
                state[name] = value[0]
                continue
            local = part(value, rank).clone()
            state[name] = DTensor.from_local(local, mesh, placements, run_check=False, shape=value.shape, stride=value.stride())
        torch.save(state, folder / verl.file_of(count, rank))
        torch.distributed.destroy_process_group()
    return folder


def assembled(folder: Path, tmp_path: Path) -> dict[str, Any]:
    """The tensors, put together."""
    write_file(folder, tmp_path / "whole.safetensors", verl.read_tensors(folder), lambda count: None)
    return load_file(tmp_path / "whole.safetensors")


def checkpoint(run: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    """A step of verl's, whole."""
    actor = run / "global_step_20" / "actor"
    for name, content in ranks(run.parent / "ranks", shapes).items():
        actor.mkdir(parents=True, exist_ok=True)
        (actor / name).write_bytes(content)
    shutil.rmtree(run.parent / "ranks")
    (actor / "huggingface").mkdir()
    (actor / "huggingface" / "config.json").write_text(CONFIG)
    for name, content in TOKENIZER.items():
        (actor / "huggingface" / name).write_bytes(content)
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 2}))
    return actor


@pytest.mark.parametrize("mesh", [(1,), (3,), (2, 2)])
def test_each_tensor_is_put_together_from_the_parts_of_its_ranks_whatever_their_number_and_copies(
    tmp_path: Path, mesh: tuple[int, ...]
) -> None:
    import torch
    from torch.distributed.tensor import Replicate, Shard

    values = {"a": torch.arange(35.0).reshape(7, 5) + 1, "b": torch.arange(2.0) + 1, "plain": [torch.ones(3)]}
    width = mesh[-1]

    def part(value: Any, rank: int) -> Any:
        chunks = value.chunk(width)
        return chunks[rank % width] if rank % width < len(chunks) else value[:0]

    folder = save(tmp_path / "p", mesh, [*([Replicate()] if len(mesh) > 1 else []), Shard(0)], values, part)
    whole = assembled(folder, tmp_path)
    assert whole.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(whole[name], value[0] if isinstance(value, list) else value)


def test_parts_along_another_dimension_and_copies_on_every_rank(tmp_path: Path) -> None:
    import torch
    from torch.distributed.tensor import Replicate, Shard

    whole = {"a": torch.arange(12.0).reshape(3, 4) + 1}
    columns = save(tmp_path / "columns", (2,), [Shard(-1)], whole, lambda value, rank: value.chunk(2, 1)[rank])
    np.testing.assert_array_equal(assembled(columns, tmp_path)["a"], whole["a"])
    copies = save(tmp_path / "copies", (2,), [Replicate()], whole, lambda value, rank: value)
    (tmp_path / "whole.safetensors").unlink()
    np.testing.assert_array_equal(assembled(copies, tmp_path)["a"], whole["a"])


def test_what_is_divided_twice_or_holds_sums_is_refused_with_verls_own_command(tmp_path: Path) -> None:
    import torch
    from torch.distributed.tensor import Partial, Shard

    whole = {"a": torch.arange(16.0).reshape(4, 4) + 1}
    twice = save(tmp_path / "t", (2, 2), [Shard(0), Shard(1)], whole, lambda value, rank: value.chunk(2)[rank // 2].chunk(2, 1)[rank % 2])
    with pytest.raises(Unsupported, match="Shard, Shard"):
        verl.read_tensors(twice)
    sums = save(checkpoint(tmp_path / "run", MODEL), (2,), [Partial()], whole, lambda value, rank: value)
    inspection = inspect(sums)
    assert inspection.refusal is not None and inspection.refusal.code == FaultCode.CONVERT_FIRST and not inspection.missing
    assert f"verl.model_merger merge --backend fsdp --local_dir {sums}" in inspection.refusal.remedy


def test_a_rank_that_is_missing_truncated_or_of_another_state_is_said_and_nothing_is_taken(tmp_path: Path) -> None:
    actor = checkpoint(tmp_path / "run", MODEL)
    assert (inspect(actor).missing, inspect(actor).layout, inspect(actor).step) == ((), "verl-sharded", 20)
    second = actor / verl.file_of(2, 1)
    content = second.read_bytes()
    second.unlink()
    assert f"{second.name} is not there yet" in "; ".join(inspect(actor).missing)
    second.write_bytes(content[: len(content) // 2])
    assert second.name in "; ".join(inspect(actor).missing)
    second.write_bytes(ranks(tmp_path / "other", {"model.norm.weight": (4,)})[second.name])
    assert "do not hold the same tensors" in "; ".join(inspect(actor).missing)
    second.write_bytes(content)
    (actor / verl.file_of(3, 0)).write_bytes(content)  # left by a training of three ranks
    assert inspect(actor).complete
    (actor / "fsdp_config.json").unlink()
    assert "different numbers of ranks" in "; ".join(inspect(actor).missing)


class _Runs:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def test_a_pickle_that_names_code_is_not_run_and_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / verl.file_of(1, 0), "w") as file:
        file.writestr("x/data.pkl", pickle.dumps({"a": _Runs()}, protocol=2))
    with pytest.raises(Unsafe, match="system"):
        verl.read_tensors(tmp_path)
    (tmp_path / verl.file_of(1, 0)).write_bytes(b"no archive")
    with pytest.raises(Unreadable, match="archive"):
        verl.read_tensors(tmp_path)


def test_an_adapter_in_pieces_has_the_configuration_that_verls_merger_makes(tmp_path: Path) -> None:
    actor = checkpoint(tmp_path / "run", {**MODEL, **LORA})
    assert "lora_train_meta.json" in "; ".join(inspect(actor).missing)
    (actor / verl.LORA).write_text(json.dumps({"r": 2, "lora_alpha": 4, "task_type": "CAUSAL_LM"}))
    assert (inspect(actor).missing, inspect(actor).method, inspect(actor).metadata["rank"]) == ((), "LORA", 2)
    said = verl.lora_of(actor)
    assert said is not None
    names = [name.replace(".default", "") for name in LORA]
    config = verl.adapter_config_of(said, names)
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 4, ["model.layers.0.self_attn.q_proj"])


def test_an_adapter_that_older_releases_write_beside_the_pieces_belongs_to_the_step(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    from daemon.checkpoints.names import run_of, step_of
    from daemon.watching.scan import Scanner

    actor = checkpoint(tmp_path / "run", {**MODEL, **LORA})
    adapter = actor / "lora_adapter"
    adapter.mkdir()
    save_file(arrays(LORA), adapter / "adapter_model.safetensors")
    seen = [candidate.path for candidate in Scanner().find(tmp_path, print)]
    assert seen == [adapter] and step_of(adapter) == 20 and run_of(adapter) == tmp_path / "run"
    assert Scanner().checkpoint_of(tmp_path, str(actor / verl.file_of(2, 0))) is None
