"""ZeRO's flat parts become the very tensors that were trained; what does not fit, and what is of another kind, is told."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.checkpoints.files import export_files, fingerprint, weights_follow_state
from daemon.checkpoints.inspection import inspect
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.sharded.deepspeed import read_tensors
from handlers.consolidate.assemble import write_file
from tests.consolidate import zero
from tests.consolidate.helpers import consolidate, pinned
from tests.consolidate.test_pieces import Bomb


def weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    loaded: dict[str, Any] = load_file(folder / "model.safetensors")
    return loaded


def divided(weights: dict[str, Any]) -> list[dict[str, Any]]:
    """Two groups, as training has them: what decays and what does not."""
    return [{name: value for name, value in weights.items() if (value.dim() > 1) is matrix} for matrix in (True, False)]


def saved_of(base: Path, folder: Path, stage: int = 3, ranks: int = 3, **more: Any) -> Path:
    return zero.save(folder, stage, ranks, divided(weights_of(base)), shared={"lm_head.weight": "model.embed_tokens.weight"}, **more)


@pytest.mark.parametrize(("stage", "ranks"), [(1, 2), (2, 3), (3, 1), (3, 3)])
def test_a_model_of_any_stage_is_the_file_that_save_pretrained_writes(pico_base: Path, stage: int, ranks: int, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    run = saved_of(pico_base, tmp_path / "run", stage, ranks)
    found = inspect(run)
    assert (found.layout, found.missing, found.refusal, found.method, found.step) == ("deepspeed-sharded", (), None, "full", 4)
    folder, output = consolidate(pinned(run, tmp_path / "pin"), pico_base, tmp_path / "work")
    save_file({name: value.float() for name, value in weights_of(pico_base).items()}, tmp_path / "right", {"format": "pt"})
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "right").read_bytes()
    assert output.figures["left_out"] == ["lm_head.weight"], "it is tied"
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    assert not {path.name for path in folder.iterdir()} & {"latest", "global_step4"}, "the pieces are not carried along"


@settings(max_examples=30, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=6),
    frozen=st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), max_size=3),
    ranks=st.integers(1, 5), stage=st.sampled_from([1, 2, 3]), cut=st.integers(0, 6), aligned=st.sampled_from([1, 4]),
)  # fmt: skip
def test_tensors_of_any_shapes_cut_over_any_number_of_ranks_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: list[tuple[int, ...]],
    frozen: list[tuple[int, ...]],
    ranks: int,
    stage: int,
    cut: int,
    aligned: int,
) -> None:
    import torch
    from safetensors.torch import load_file

    folder, count = tmp_path_factory.mktemp("zero"), 0

    def counted(shape: tuple[int, ...]) -> Any:
        nonlocal count
        count += torch.Size(shape).numel()
        return torch.arange(count - torch.Size(shape).numel(), count, dtype=torch.float32).reshape(shape)

    trained = {f"t{number}": counted(shape) for number, shape in enumerate(shapes)}
    still = {f"f{number}": counted(shape).bfloat16() for number, shape in enumerate(frozen)}
    names = list(trained)
    groups = [{name: trained[name] for name in part} for part in (names[:cut], names[cut:]) if part]
    buffers = {"b": torch.tensor([3, 4])}
    zero.save(folder, stage, ranks, groups, frozen=still, buffers=buffers, shared={"again": "t0"}, aligned=aligned)
    write_file(folder, folder / "out.safetensors", read_tensors(folder), lambda count: None)
    right = {**trained, **still, **buffers, "again": trained["t0"]}
    found = load_file(folder / "out.safetensors")
    assert found.keys() == right.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in right.items())


def lora(base: Path, adapter: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The adapter's tensors and the base's, by the names of a model with that adapter in it."""
    from safetensors.torch import load_file

    own = load_file(adapter / "adapter_model.safetensors")
    mine = {name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default."): value for name, value in own.items()}
    wrapped = {name.rpartition(".lora_")[0].removeprefix("base_model.model.") for name in own}
    base_names = {}
    for name, value in weights_of(base).items():
        module, _, kind = name.rpartition(".")
        base_names[f"base_model.model.{module}.{'base_layer.' if module in wrapped else ''}{kind}"] = value
    return mine, base_names


@pytest.mark.parametrize("with_base", [True, False])
@pytest.mark.parametrize("stage", [2, 3])
def test_an_adapter_is_the_file_that_peft_writes_with_or_without_its_frozen_base(
    pico_base: Path, adapter: Path, stage: int, with_base: bool, tmp_path: Path
) -> None:
    mine, frozen = lora(pico_base, adapter)
    checkpoint = zero.save(tmp_path / "run" / "checkpoint-4", stage, 2, [mine], frozen=frozen if with_base else {})
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    found, before = inspect(checkpoint), fingerprint(checkpoint)
    assert found.refusal is not None
    assert (found.refusal.code, found.missing) == (FaultCode.DEEPSPEED_SHARDED, ())
    shutil.copy(adapter / "adapter_config.json", tmp_path / "run")
    assert fingerprint(checkpoint) != before, "so that the daemon looks again"
    found = inspect(checkpoint)
    assert (found.refusal, found.method, found.base_name) == (None, "LORA", str(pico_base))
    folder, _ = consolidate(pinned(checkpoint, tmp_path / "pin"), pico_base, tmp_path / "work")
    assert (folder / "adapter_model.safetensors").read_bytes() == (adapter / "adapter_model.safetensors").read_bytes()


def test_the_empty_adapter_that_trainer_leaves_beside_the_state_is_not_taken_for_the_adapter(
    pico_base: Path, adapter: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    checkpoint = zero.save(tmp_path / "run" / "checkpoint-4", 3, 2, [lora(pico_base, adapter)[0]])
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    shutil.copy(adapter / "adapter_config.json", checkpoint)
    save_file({}, checkpoint / "adapter_model.safetensors", {"format": "pt"})
    assert "adapter_model.safetensors" not in export_files(checkpoint)
    found = inspect(checkpoint)
    assert (found.layout, found.missing, found.refusal, found.method) == ("deepspeed-sharded", (), None, "LORA")
    folder, _ = consolidate(pinned(checkpoint, tmp_path / "pin"), pico_base, tmp_path / "work")
    assert (folder / "adapter_model.safetensors").read_bytes() == (adapter / "adapter_model.safetensors").read_bytes()
    shutil.copy(adapter / "adapter_model.safetensors", checkpoint)
    assert inspect(checkpoint).layout == "deepspeed-adapter", "one with weights counts"


def test_of_several_states_in_one_directory_the_one_that_latest_names_is_taken(pico_base: Path, tmp_path: Path) -> None:
    run = saved_of(pico_base, tmp_path / "run")
    before = fingerprint(run)
    saved_of(pico_base, tmp_path / "other", tag="global_step8")
    shutil.move(tmp_path / "other" / "global_step8", run)
    assert (inspect(run).step, fingerprint(run)) == (4, before)
    (run / "latest").write_text("global_step8\n")
    assert inspect(run).step == 8
    assert all(name.startswith("global_step8/") for name in export_files(run) if "/" in name)
    for name in export_files(run):
        os.utime(run / name, ns=(0, 9) if name == "latest" else (0, 5))
    assert not weights_follow_state(fingerprint(run))
    os.utime(run / "latest", ns=(0, 1))
    assert weights_follow_state(fingerprint(run)), "it is being written again"


def test_the_directory_that_lightnings_deepspeed_strategy_writes_is_read(pico_base: Path, tmp_path: Path) -> None:
    groups = [{f"_forward_module.net.{name}": value for name, value in group.items()} for group in divided(weights_of(pico_base))]
    state = {"hyper_parameters": {"lr": 0.1}, "pytorch-lightning_version": "2.6.6"}
    run = zero.save(tmp_path / "checkpoints" / "epoch=0-step=6.ckpt", 2, 2, groups, state=state, tag="checkpoint")
    found = inspect(run)
    assert (found.layout, found.missing, found.refusal, found.step) == ("deepspeed-sharded", (), None, 6)
    folder, _ = consolidate(pinned(run, tmp_path / "pin"), pico_base, tmp_path / "work")
    assert weights_of(folder).keys() == weights_of(pico_base).keys()


def test_what_is_saved_without_zero_is_read_as_it_is(pico_base: Path, tmp_path: Path) -> None:
    import torch

    (tmp_path / "run" / "global_step4").mkdir(parents=True)
    model = {"module": weights_of(pico_base), "buffer_names": [], "param_shapes": None, "shared_params": None}
    torch.save(model, tmp_path / "run" / "global_step4" / "mp_rank_00_model_states.pt")
    (tmp_path / "run" / "latest").write_text("global_step4")
    folder, _ = consolidate(pinned(tmp_path / "run", tmp_path / "pin"), pico_base, tmp_path / "work")
    assert (folder / "model.safetensors").read_bytes() == (pico_base / "model.safetensors").read_bytes()


# What does not fit


def optimizer_file(run: Path, rank: int) -> Path:
    return run / "global_step4" / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


@pytest.mark.parametrize("stage", [2, 3])
def test_a_rank_that_is_not_there_and_a_file_that_is_cut_short_make_it_incomplete(pico_base: Path, stage: int, tmp_path: Path) -> None:
    run = saved_of(pico_base, tmp_path / "run", stage)
    file = optimizer_file(run, 2)
    whole = file.read_bytes()
    file.unlink()
    assert "saved by 3 ranks, but only the optimizer's states of 2 are there" in " ".join(inspect(run).missing)
    file.write_bytes(whole[:-100])
    assert file.name in " ".join(inspect(run).missing)
    file.write_bytes(whole)
    assert inspect(run).complete


def test_of_frozen_parts_that_stage_3_keeps_with_each_rank_none_may_be_missing(pico_base: Path, adapter: Path, tmp_path: Path) -> None:
    mine, frozen = lora(pico_base, adapter)
    run = zero.save(tmp_path / "run", 3, 2, [mine], frozen=frozen)
    (run / "global_step4" / "zero_pp_rank_1_mp_rank_00_model_states.pt").unlink()
    assert "the model states of 1 are there" in " ".join(inspect(run).missing)


@pytest.mark.parametrize("stage", [2, 3])
def test_groups_that_are_shorter_than_their_parameters_are_noticed(pico_base: Path, stage: int, tmp_path: Path) -> None:
    import torch

    run = saved_of(pico_base, tmp_path / "run", stage)
    with zero.deepspeeds_names():
        value = torch.load(optimizer_file(run, 1), weights_only=False)
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        state = value["optimizer_state_dict"]
        state[key] = [one[: one.numel() - 40].clone() for one in state[key]]
        torch.save(value, optimizer_file(run, 1))
    (problem,) = inspect(run).missing
    assert "elements" in problem


@pytest.mark.parametrize(
    ("name", "said"),
    [("mp_rank_01_model_states.pt", "tensor parallel"), ("layer_00-model_states.pt", "pipeline"),
     ("expp_rank_0_mp_rank_00_optim_states.pt", "expert")],
)  # fmt: skip
def test_other_kinds_of_parallel_training_are_refused_by_name(pico_base: Path, name: str, said: str, tmp_path: Path) -> None:
    run = saved_of(pico_base, tmp_path / "run", 2)
    (run / "global_step4" / name).write_bytes(bytes(100))
    found = inspect(run)
    assert found.refusal is not None
    assert found.complete and found.refusal.code == FaultCode.DEEPSPEED_SHARDED
    assert said in found.refusal.cause and "stage3_gather_16bit_weights_on_model_save" in found.refusal.remedy


def test_objects_of_other_classes_are_refused_by_name_and_never_run(pico_base: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    run = saved_of(pico_base, tmp_path / "run", state={"client": Bomb(mark)})
    found = inspect(run)
    assert found.refusal is not None
    assert "posix.system" in found.refusal.cause
    assert not mark.exists()


def test_a_latest_that_names_no_folder_beside_it_is_not_followed(pico_base: Path, tmp_path: Path) -> None:
    run = saved_of(pico_base, tmp_path / "run")
    saved_of(pico_base, tmp_path / "elsewhere")
    for said in ("../elsewhere/global_step4", str(tmp_path / "elsewhere" / "global_step4"), ".", "", "global_step4\0"):
        (run / "latest").write_text(said)
        assert not inspect(run).complete
        assert not [name for name in export_files(run) if "/" in name]
    shutil.move(run / "global_step4", tmp_path / "moved")
    (run / "global_step4").symlink_to(tmp_path / "moved")
    (run / "latest").write_text("global_step4")
    assert not inspect(run).complete
