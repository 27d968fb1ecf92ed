"""Loops of one's own with accelerate: `save_state` into `step_N` and `epoch_N`, and the model in the run's directory at the end.

The directories are made by accelerate and PEFT, in the order in which transformers' `run_clm_no_trainer.py` makes them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from daemon.checkpoints.files import export_files
from daemon.checkpoints.inspection import inspect, why_unconfigured
from daemon.contract.sharded.accelerate import RANDOM, steps_made
from daemon.contract.sharded.forms import read_tensors
from tests.detection.bench import Bench
from tests.detection.helpers import below, passed_over


def accelerated(base: Path, *, peft: bool = False) -> tuple[Any, Any, Any]:
    """An accelerator, its model, and what makes a step of its optimizer and its scheduler."""
    import torch
    from accelerate import Accelerator
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, get_scheduler

    model = AutoModelForCausalLM.from_pretrained(base)
    if peft:
        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False))
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=100)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        scheduler.step()

    return accelerator, model, step


@pytest.fixture(scope="module")
def run(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with step_2, epoch_0 (of step 3), step_4 and epoch_1 (of step 4, the same weights), and no model at the end yet."""
    folder = tmp_path_factory.mktemp("accelerate") / "run"
    accelerator, _, step = accelerated(pico_base)
    for _made, names in enumerate([[], ["step_2"], ["epoch_0"], ["step_4", "epoch_1"]], 1):
        step()
        for name in names:
            accelerator.save_state(str(folder / name))
    return folder


def test_a_state_is_complete_when_its_last_file_is_there_and_its_epoch_has_the_step_of_its_scheduler(run: Path, tmp_path: Path) -> None:
    whole = inspect(run / "epoch_0")
    assert (whole.layout, whole.missing, whole.method, whole.step, whole.lacks_config) == ("accelerate", (), "full", 3, True)
    assert [inspect(run / name).step for name in ("step_2", "step_4", "epoch_1")] == [2, 4, 4]
    assert whole.patience_seconds == 0, "its last file tells"
    copy = shutil.copytree(run / "epoch_0", tmp_path / "run" / "epoch_0")
    (copy / "model.safetensors").touch()
    assert inspect(copy).patience_seconds > 0, "it may be being written again"
    (copy / RANDOM).unlink()
    assert inspect(copy).missing == (f"{RANDOM}, which accelerate writes last, is not there yet",)
    (copy / RANDOM).write_bytes((run / "epoch_0" / RANDOM).read_bytes()[:-40])
    assert not inspect(copy).complete


def test_steps_of_several_ranks_are_counted_once(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run / "step_4", tmp_path / "epoch_0")
    shutil.copy(copy / RANDOM, copy / "random_states_1.pkl")
    assert (steps_made(run / "step_4"), steps_made(copy)) == (4, 2)
    (copy / "scheduler.bin").unlink()
    assert (steps_made(copy), inspect(copy).step) == (None, 0)


@pytest.mark.parametrize("plain", [True, False])
def test_the_tensors_are_those_of_the_live_model(pico_base: Path, tmp_path: Path, plain: bool) -> None:
    accelerator, model, _ = accelerated(pico_base)
    accelerator.save_state(str(tmp_path / "step_1"), safe_serialization=plain)
    tensors = read_tensors(tmp_path / "step_1")
    assert inspect(tmp_path / "step_1").missing == ()
    parameters = dict(model.named_parameters())
    assert tensors.keys() - {"lm_head.weight"} == parameters.keys() - {"lm_head.weight"}
    name = "model.layers.1.mlp.down_proj.weight"
    [piece] = tensors[name].pieces
    data = (tmp_path / "step_1" / piece.file).read_bytes()[piece.start : piece.start + tensors[name].size]
    import torch

    stored = torch.frombuffer(bytearray(data), dtype=parameters[name].dtype).view(tensors[name].shape)
    assert torch.equal(stored, parameters[name].detach())


def test_the_whole_model_of_fsdp_is_read_where_it_is_the_only_one(run: Path, pico_base: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    copy = shutil.copytree(run / "step_2", tmp_path / "run" / "step_2")
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model_fsdp.bin")
    assert "pytorch_model_fsdp.bin" not in export_files(copy)
    (copy / "model.safetensors").unlink()
    assert (inspect(copy).layout, inspect(copy).missing) == ("accelerate", ())
    assert export_files(copy) == ["pytorch_model_fsdp.bin"]
    assert read_tensors(copy).keys() == read_tensors(run / "step_2").keys()


def test_what_lacks_a_configuration_is_listed_once_and_taken_with_its_run_s(bench: Bench, run: Path, pico_base: Path) -> None:
    ours = shutil.copytree(run, bench.root / "run")
    with capture_logs() as said:
        bench.pass_time(60.0)
    assert bench.jobs() == [] and bench.tracker.listing.incomplete == {}
    listed = bench.tracker.listing.passed_over
    assert sorted(path.name for path in listed) == ["epoch_0", "epoch_1", "step_2", "step_4"]
    assert all("no config.json, and accelerate writes none; put the config.json and tokenizer" in why for why in listed.values())
    assert len([entry for entry in said if "accelerate writes none" in entry["event"]]) == 4
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(pico_base / name, ours)
    bench.pass_time(60.0)
    assert sorted((job.checkpoint.step, Path(job.checkpoint.path).name) for job in bench.jobs()) == [
        (2, "step_2"), (3, "epoch_0"), (4, "epoch_1")
    ], "the same weights of one step are one export"  # fmt: skip
    assert bench.tracker.listing.passed_over == {}


def test_a_base_in_the_configuration_is_enough_and_a_later_configuration_makes_no_second_export(
    bench: Bench, run: Path, pico_base: Path
) -> None:
    base = bench.tracker._intake.settings.base.model_copy(update={"map": {"": pico_base}})
    assert why_unconfigured(inspect(run / "step_2"), base.map) is None
    object.__setattr__(bench.tracker._intake.settings, "base", base)
    ours = shutil.copytree(run, bench.root / "run")
    bench.pass_time(60.0)
    jobs = [job.id for job in bench.jobs()]
    assert len(jobs) == 3
    shutil.copy(pico_base / "config.json", ours)
    bench.pass_time(60.0)
    assert [job.id for job in bench.jobs()] == jobs


def test_the_model_at_the_end_is_taken_since_the_states_beside_it_are_a_training_s(bench: Bench, run: Path, pico_base: Path) -> None:
    ours = shutil.copytree(run, bench.root / "run")
    assert below(bench.root) == ["run/epoch_0", "run/epoch_1", "run/step_2", "run/step_4"]
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(pico_base).save_pretrained(ours)
    assert below(bench.root)[0] == "run"
    bench.pass_time(60.0)
    (final,) = [job.checkpoint for job in bench.jobs() if job.checkpoint.ending]
    assert (final.run, final.step, final.path) == ("run", 4, str(ours)), "not before the last checkpoint"


def test_the_state_of_a_peft_model_is_an_adapter_with_the_run_s_adapter_config(pico_base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    accelerator, model, step = accelerated(pico_base, peft=True)
    step()
    accelerator.save_state(str(run / "epoch_0"))
    refusal = inspect(run / "epoch_0").refusal
    assert refusal is not None and "an adapter's training state, but no adapter_config.json" in refusal.cause
    model.save_pretrained(run)
    whole = inspect(run / "epoch_0")
    assert (whole.missing, whole.refusal, whole.method, whole.step) == ((), None, "LORA", 1)
    assert [path.name for path in whole.borrowed] == ["adapter_config.json"]


def test_several_models_are_refused_by_name(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run / "step_2", tmp_path / "run" / "step_2")
    shutil.copy(copy / "model.safetensors", copy / "model_1.safetensors")
    refusal = inspect(copy).refusal
    assert refusal is not None and "several models (model.safetensors, model_1.safetensors)" in refusal.cause


def test_a_model_s_folder_with_an_optimizer_of_its_own_is_no_state(run: Path, pico_base: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(pico_base, tmp_path / "run" / "step_2")
    shutil.copy(run / "step_2" / "optimizer.bin", copy)
    assert (inspect(copy).layout, inspect(copy).missing) == ("full", ())


# What lies beside a run's checkpoints.


def adapter_of(base: Path, folder: Path) -> Path:
    """An adapter's directory that names its base."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(base)}))
    (folder / "adapter_model.safetensors").touch()
    return folder


def test_a_base_among_the_checkpoints_is_not_the_end_of_their_training(pico_base: Path, tmp_path: Path) -> None:
    base = shutil.copytree(pico_base, tmp_path / "run" / "base")
    adapter_of(base, tmp_path / "run" / "checkpoint-2")
    assert (below(tmp_path), passed_over(tmp_path)) == (["run/checkpoint-2"], ["run/base"])
    adapter_of(Path("/another/base"), tmp_path / "other" / "checkpoint-2")
    shutil.copytree(pico_base, tmp_path / "other" / "base")
    for file in (tmp_path / "other" / "checkpoint-2").iterdir():
        file.touch()
    assert "other/base" in passed_over(tmp_path), "it is older than every checkpoint"
    merged = shutil.copytree(pico_base, tmp_path / "other" / "merged", copy_function=shutil.copyfile)
    assert f"other/{merged.name}" in below(tmp_path), "it is newer"


def test_a_run_with_a_temporary_name_is_listed_and_a_staging_directory_is_not(pico_base: Path, tmp_path: Path) -> None:
    for name in ("tmp-try", "try-tmp", ".hidden"):
        adapter_of(pico_base, tmp_path / name / "checkpoint-2")
    adapter_of(pico_base, tmp_path / "run" / "tmp-checkpoint-4")
    assert (below(tmp_path), passed_over(tmp_path)) == ([], ["tmp-try", "try-tmp"])
