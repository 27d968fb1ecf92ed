"""Each row of the table of layouts: recognized, complete by its exact rule, incomplete short of it, taken or refused.

Made with the real writer where it installs (Trainer, PEFT, torch.distributed.checkpoint, torch.save), else by hand in
the form that the writer leaves.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from daemon.checkpoints.files import export_files
from daemon.checkpoints.inspection import inspect
from daemon.checkpoints.layouts import PATIENCE_SECONDS, TABLE
from daemon.checkpoints.names import run_of
from daemon.checkpoints.pinning.pins import identify
from daemon.watching.scan import Scanner
from tests import models
from tests.detection.helpers import below, copy_of, plain_adapter, set_state

PEFTS_FILES = ("adapter_config.json", "adapter_model.safetensors")


def missing(path: Path) -> str:
    found = inspect(path)
    assert not found.complete
    return "; ".join(found.missing)


# transformers Trainer


def test_a_checkpoint_without_optimizer_is_complete(pico_base: Path, tmp_path: Path) -> None:  # R1.1
    run = models.train_run(pico_base, tmp_path / "run", steps=1, save_steps=1, save_only_model=True)
    assert not list((run / "checkpoint-1").glob("optimizer*"))
    found = inspect(run / "checkpoint-1")
    assert (found.missing, found.layout, found.step, found.patience_seconds) == ((), "trainer-adapter", 1, 0)


def full_trainer(base: Path, run: Path) -> Any:
    """A Trainer that trains all weights for one step."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments

    tokenizer = AutoTokenizer.from_pretrained(base)
    arguments = TrainingArguments(
        output_dir=str(run), max_steps=1, save_steps=1, per_device_train_batch_size=1, report_to=[], disable_tqdm=True, use_cpu=True
    )
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in models.TEXTS]
    return Trainer(
        AutoModelForCausalLM.from_pretrained(base), arguments, DataCollatorForLanguageModeling(tokenizer, mlm=False), rows,
        processing_class=tokenizer,
    )  # fmt: skip


def test_a_full_fine_tune_of_trainer_is_complete_and_not_without_its_last_file(pico_base: Path, tmp_path: Path) -> None:  # R1.1 R1.5
    full_trainer(pico_base, tmp_path / "run").train()
    checkpoint = tmp_path / "run" / "checkpoint-1"
    found = inspect(checkpoint)
    assert (found.missing, found.layout, found.method, found.step) == ((), "trainer-full", "full", 1)
    (checkpoint / "trainer_state.json").unlink()
    assert missing(checkpoint) == "trainer_state.json, which the trainer writes last, is not there yet"


@pytest.mark.parametrize("trace", ["training_args.bin", "rng_state_1.pth"])
def test_any_trace_of_trainer_means_that_its_last_file_is_waited_for(pico_checkpoint: Path, tmp_path: Path, trace: str) -> None:  # R1.5
    checkpoint = plain_adapter(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    assert inspect(checkpoint).complete
    (checkpoint / trace).touch()
    assert missing(checkpoint) == "trainer_state.json, which the trainer writes last, is not there yet"


@pytest.mark.parametrize("state", ["optimizer.pt", "scheduler.pt", "scaler.pt", "training_state.pt"])
def test_what_loops_of_ones_own_save_beside_an_adapter_is_no_trace_of_trainer(pico_checkpoint: Path, tmp_path: Path, state: str) -> None:
    checkpoint = plain_adapter(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    (checkpoint / state).touch()
    found = inspect(checkpoint)
    assert (found.layout, found.missing, found.patience_seconds) == ("adapter", (), PATIENCE_SECONDS)


def test_the_staging_name_of_older_releases_is_never_complete(pico_checkpoint: Path, tmp_path: Path) -> None:  # R1.5
    staging = copy_of(pico_checkpoint, tmp_path / "run" / "tmp-checkpoint-4")
    assert "older releases of transformers stage" in missing(staging)
    assert below(tmp_path) == []
    staging.rename(staging.with_name("checkpoint-4"))
    assert inspect(tmp_path / "run" / "checkpoint-4").complete


def test_trls_reference_adapter_is_no_part_of_the_export_and_no_checkpoint(pico_checkpoint: Path, tmp_path: Path) -> None:
    checkpoint = copy_of(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    before = identify(checkpoint)
    copy_of(pico_checkpoint, checkpoint / "ref", weights=1.0)
    copy_of(pico_checkpoint, tmp_path / "run" / "ref", weights=1.0)
    assert identify(checkpoint) == before
    assert below(tmp_path) == ["run/checkpoint-4"]
    assert Scanner().checkpoint_of(tmp_path, f"{tmp_path}/run/checkpoint-4/ref/adapter_model.safetensors") == checkpoint
    assert Scanner().checkpoint_of(tmp_path, f"{tmp_path}/run/ref/adapter_model.safetensors") is None


# Adapters without a trainer's state


def save_with_peft(base: Path, folder: Path) -> Path:
    """PEFT's own `save_pretrained` and the tokenizer's."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    model.save_pretrained(folder)
    models.make_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("name", "step"), [("checkpoint-7", 7), ("epoch_3", 3), ("final", 40), ("adapter", 40)])
def test_what_peft_saves_is_complete_but_asks_for_more_quiet(pico_base: Path, tmp_path: Path, name: str, step: int) -> None:  # R1.1
    (tmp_path / "run" / "checkpoint-40").mkdir(parents=True)
    saved = save_with_peft(pico_base, tmp_path / "run" / name)
    found = inspect(saved)
    assert (found.missing, found.step, found.method) == ((), step, "LORA")
    assert found.layout == "adapter", "nothing says which trainer it was"
    assert (found.patience_seconds, found.claims_done) == (PATIENCE_SECONDS, False)
    assert run_of(saved) == tmp_path / "run"
    for file in PEFTS_FILES:
        content = (saved / file).read_bytes()
        (saved / file).write_bytes(content[:-3])
        assert file in missing(saved)
        (saved / file).write_bytes(content)


def test_what_trainer_saves_into_the_runs_own_directory_is_found_with_the_run_as_its_name(
    pico_base: Path, pico_run: Path, tmp_path: Path
) -> None:  # R1.1
    from peft import AutoPeftModelForCausalLM
    from transformers import Trainer, TrainingArguments

    run = tmp_path / "team" / "run"
    shutil.copytree(pico_run, run)
    model = AutoPeftModelForCausalLM.from_pretrained(run / "checkpoint-4")
    Trainer(model, TrainingArguments(output_dir=str(run), report_to=[], use_cpu=True)).save_model()
    (run / "train_results.json").write_text("{}")
    assert below(tmp_path) == ["team/run", "team/run/checkpoint-2", "team/run/checkpoint-4"]
    assert Scanner().checkpoint_of(tmp_path, f"{run}/training_args.bin") == run
    found = inspect(run)
    assert (found.missing, found.layout, found.step, found.patience_seconds) == ((), "adapter", 4, PATIENCE_SECONDS)
    assert run_of(run) == run
    assert "train_results.json" not in export_files(run)


def test_a_state_that_lies_in_the_runs_own_directory_gives_the_step_but_not_the_word_that_it_is_done(
    pico_checkpoint: Path, tmp_path: Path
) -> None:
    final = copy_of(pico_checkpoint, tmp_path / "run" / "final")
    found = inspect(final)
    assert (found.layout, found.step, found.patience_seconds) == ("trainer-adapter", 4, PATIENCE_SECONDS)


# DeepSpeed, FSDP, torchtune


def deepspeed(source: Path, target: Path) -> Path:
    """ZeRO's additions to a checkpoint, as Trainer with DeepSpeed leaves them."""
    copy_of(source, target)
    (target / "global_step4").mkdir()
    (target / "global_step4" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(bytes(1000))
    (target / "latest").write_text("global_step4")
    (target / "zero_to_fp32.py").write_text("# written by DeepSpeed\n")
    return target


def test_deepspeeds_folders_are_passed_over_and_latest_must_name_one_of_them(pico_checkpoint: Path, tmp_path: Path) -> None:  # R1.1 R1.5
    checkpoint = deepspeed(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    found = inspect(checkpoint)
    assert (found.missing, found.layout, found.step) == ((), "deepspeed-adapter", 4)
    assert export_files(checkpoint) == export_files(pico_checkpoint)
    (checkpoint / "latest").write_text("global_step9\n")
    assert missing(checkpoint) == "latest names the folder 'global_step9', which is not there"
    (checkpoint / "latest").unlink()
    assert missing(checkpoint) == "latest, which DeepSpeed writes last, is not there yet"
    shutil.rmtree(checkpoint / "global_step4")
    assert inspect(checkpoint).layout == "trainer-adapter"
    assert inspect(checkpoint).complete


def test_deepspeeds_state_without_a_trainers_last_file_is_incomplete(pico_checkpoint: Path, tmp_path: Path) -> None:  # R1.5
    checkpoint = deepspeed(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    (checkpoint / "trainer_state.json").unlink()
    assert "trainer_state.json" in missing(checkpoint)


def refusal_of(path: Path, layout: str) -> str:
    """The sentence of a complete checkpoint that is refused."""
    found = inspect(path)
    assert (found.layout, found.missing) == (layout, ())
    assert found.refusal is not None
    return found.refusal.sentence()


def test_deepspeeds_shards_of_a_kind_that_is_not_put_together_are_refused_without_a_program_of_theirs(
    pico_checkpoint: Path, tmp_path: Path
) -> None:  # R1.5
    checkpoint = deepspeed(pico_checkpoint, tmp_path / "a run" / "checkpoint-4")
    for file in PEFTS_FILES:
        (checkpoint / file).unlink()
    assert "rank 0" in missing(checkpoint), "the model states are not there yet"
    (checkpoint / "global_step4" / "layer_0_expert_1_mp_rank_00_model_states.pt").write_bytes(bytes(1000))
    said = refusal_of(checkpoint, "deepspeed-sharded")
    assert "an expert" in said
    assert "stage3_gather_16bit_weights_on_model_save" in said and "python" not in said, "whoever wrote the state wrote that file too"
    (checkpoint / "trainer_state.json").unlink()
    assert "trainer_state.json" in missing(checkpoint)


def test_fsdps_shards_alone_are_a_model_once_their_description_is_there(pico_checkpoint: Path, tmp_path: Path) -> None:  # R1.5
    import torch
    from torch.distributed import checkpoint as dcp

    checkpoint = tmp_path / "a run" / "checkpoint-4"
    weights = {"layer.weight": torch.arange(12.0).reshape(3, 4)}
    dcp.save({"model": weights}, storage_writer=dcp.FileSystemWriter(checkpoint / "pytorch_model_fsdp_0"), no_dist=True)
    dcp.save({"optimizer": weights}, storage_writer=dcp.FileSystemWriter(checkpoint / "optimizer_0"), no_dist=True)
    shutil.copy(pico_checkpoint / "trainer_state.json", checkpoint)
    found = inspect(checkpoint)
    assert (found.layout, found.missing, found.refusal, found.method) == ("fsdp-sharded", (), None, "full")
    folder = "pytorch_model_fsdp_0"
    assert export_files(checkpoint) == [f"{folder}/.metadata", f"{folder}/__0_0.distcp", "trainer_state.json"]
    (checkpoint / folder / ".metadata").unlink()
    assert f"{folder}/.metadata" in missing(checkpoint)


def test_the_folders_of_accelerates_parts_are_no_checkpoints_of_their_own(tmp_path: Path) -> None:
    import torch
    from torch.distributed import checkpoint as dcp

    for folder in ("pytorch_model_fsdp_0", "optimizer_0"):
        writer = dcp.FileSystemWriter(tmp_path / "runs" / "run" / "step_4" / folder)
        dcp.save({"model": {"layer.weight": torch.ones(3)}}, storage_writer=writer, no_dist=True)
    assert below(tmp_path / "runs") == ["run/step_4"]


def test_pieces_without_a_model_are_refused(tmp_path: Path) -> None:
    import torch
    from torch.distributed import checkpoint as dcp

    dcp.save({"optimizer": {"x": torch.ones(3)}}, checkpoint_id=tmp_path / "run" / "step-4", no_dist=True)
    assert "but no tensor of a model" in refusal_of(tmp_path / "run" / "step-4", "dcp-sharded")


def test_an_adapter_beside_fsdps_shards_is_exported(pico_checkpoint: Path, tmp_path: Path) -> None:
    checkpoint = copy_of(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    (checkpoint / "pytorch_model_fsdp_0").mkdir()
    (checkpoint / "pytorch_model_fsdp.bin").write_bytes(bytes(100))
    found = inspect(checkpoint)
    assert (found.layout, found.missing, found.refusal) == ("trainer-adapter", (), None)
    assert export_files(checkpoint) == export_files(pico_checkpoint)


def test_what_axolotl_saves_at_the_end_is_its_last_checkpoint_again(pico_checkpoint: Path, pico_base: Path, tmp_path: Path) -> None:  # R1.1
    checkpoint, run = copy_of(pico_checkpoint, tmp_path / "run" / "checkpoint-4"), plain_adapter(pico_checkpoint, tmp_path / "end")
    (checkpoint / "tokens_state.json").write_text('{"total": 640, "trainable": 214}')
    shutil.copy(pico_base / "config.json", run)
    assert inspect(run).complete
    assert identify(run) == identify(checkpoint)
    assert "config.json" in export_files(run), "some tokenizers are read by the model's type alone"
    (run / "tokenizer_config.json").write_text("{}")
    assert identify(run) != identify(checkpoint)


def test_torchtunes_merged_weights_are_not_read_beside_its_adapter(pico_checkpoint: Path, pico_base: Path, tmp_path: Path) -> None:  # R1.1
    epoch = plain_adapter(pico_checkpoint, tmp_path / "run" / "epoch_2")
    before = export_files(epoch)
    shutil.copy(pico_base / "model.safetensors", epoch / "model-00001-of-00001.safetensors")
    (epoch / "model.safetensors.index.json").write_text('{"weight_map": {')
    for name in ("adapter_model.pt", "recipe_state.pt"):
        (epoch / name).write_bytes(bytes(10))
    found = inspect(epoch)
    assert (found.layout, found.missing, found.step) == ("torchtune-adapter", (), 2)
    assert export_files(epoch) == before


# Recognized and refused


def test_of_lightnings_files_the_newest_is_taken_once_all_are_whole(tmp_path: Path) -> None:  # R1.5
    import torch

    folder = tmp_path / "version_0" / "checkpoints"
    folder.mkdir(parents=True)
    for step in (6, 10):
        torch.save({"state_dict": {"model.weight": torch.ones(3)}, "global_step": step}, folder / f"epoch=0-step={step}.ckpt")
    found = inspect(folder)
    assert (found.layout, found.missing, found.refusal, found.method, found.step) == ("lightning", (), None, "full", 10)
    assert export_files(folder) == ["epoch=0-step=10.ckpt"]
    file = folder / "epoch=0-step=10.ckpt"
    file.write_bytes(file.read_bytes()[:-40])
    assert file.name in missing(folder)


def test_a_lightning_file_with_objects_is_refused_with_their_class_and_never_runs_them(tmp_path: Path) -> None:  # R1.5
    import torch

    folder, mark = tmp_path / "checkpoints", tmp_path / "ran"
    folder.mkdir()
    bomb = type("Bomb", (), {"__reduce__": lambda self: (os.system, (f"touch {mark}",))})()
    torch.save({"state_dict": {"weight": torch.ones(3)}, "hyper_parameters": {"x": bomb}}, folder / "last.ckpt")
    said = refusal_of(folder, "lightning")
    assert "posix.system" in said and "its LightningModule's load_from_checkpoint" in said
    assert not mark.exists()


def test_litgpts_lora_is_recognized_and_refused_with_its_commands(tmp_path: Path) -> None:  # R1.5
    import torch

    for name in ("step-000100", "final"):
        folder = tmp_path / "run" / name
        folder.mkdir(parents=True)
        torch.save({"model": {"lm_head.lora_A": torch.ones(2, 2)}}, folder / "lit_model.pth.lora")
        said = refusal_of(folder, "litgpt")
        assert f"`litgpt merge_lora {folder}`, then `litgpt convert_from_litgpt {folder} OUTPUT`" in said
    assert inspect(tmp_path / "run" / "step-000100").step == 100
    assert below(tmp_path) == ["run/final", "run/step-000100"]


def test_composers_files_are_refused_with_the_command_for_the_newest_once_all_are_whole(tmp_path: Path) -> None:  # R1.5
    import torch

    run = tmp_path / "run"
    run.mkdir()
    for name in ("ep0-ba2-rank0.pt", "ep0-ba10-rank0.pt"):
        torch.save({"state": {"model": {"model.lm_head.weight": torch.ones(2, 2)}}}, run / name)
    (run / "latest-rank0.pt").symlink_to("ep0-ba10-rank0.pt")
    assert below(tmp_path) == ["run"]
    said = refusal_of(run, "composer")
    assert f'write("{run}/ep0-ba10-rank0.pt", "OUTPUT")' in said and "`ckptd export OUTPUT`" in said
    file = run / "ep0-ba10-rank0.pt"
    file.write_bytes(file.read_bytes()[:-40])
    assert file.name in missing(run)


def test_docs_have_every_layout_of_the_table_in_its_order() -> None:
    text = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE) == [layout.name for layout in TABLE]
    assert f"{PATIENCE_SECONDS:.0f} seconds" in text


@pytest.mark.parametrize("text", ['{"weight_map": {}}', '{"weight_map": []}', "{}"])
def test_an_index_that_maps_nothing_is_not_complete(pico_base: Path, tmp_path: Path, text: str) -> None:  # R1.5
    folder = tmp_path / "run" / "final"
    shutil.copytree(pico_base, folder)
    assert (inspect(folder).layout, inspect(folder).missing) == ("full", ())
    (folder / "model.safetensors.index.json").write_text(text)
    assert "maps no weights to files" in missing(folder)


def test_an_epochs_number_need_not_be_the_step_that_its_state_tells(pico_checkpoint: Path, tmp_path: Path) -> None:
    epoch = copy_of(pico_checkpoint, tmp_path / "run" / "epoch_1")
    set_state(epoch, global_step=400)
    assert (inspect(epoch).complete, inspect(epoch).step) == (True, 400)
