"""Whether a directory is complete is read from its structure: real checkpoints of Trainer, damaged in every way we met."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.inspection import inspect, refusal_of
from tests.detection.conftest import Stations
from tests.detection.helpers import copy_of, set_state

ADAPTER = "adapter_model.safetensors"


@pytest.fixture
def checkpoint(pico_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of a real checkpoint-4 that a test may damage."""
    return copy_of(pico_checkpoint, tmp_path / "run" / "checkpoint-4")


def missing(checkpoint: Path) -> str:
    found = inspect(checkpoint)
    assert not found.complete
    return "; ".join(found.missing)


def test_what_trainer_wrote_is_complete_with_its_metadata(pico_checkpoint: Path) -> None:  # R1.1
    found = inspect(pico_checkpoint)
    assert found.missing == ()
    assert (found.layout, found.step, found.method, found.claims_done) == ("trainer-adapter", 4, "LORA", True)
    assert Path(found.base_name or "").name == "pico"
    assert (found.metadata["rank"], found.metadata["alpha"]) == (4, 8)
    assert [step for step, _ in found.metadata["loss_history"]] == [1, 2, 3, 4]
    assert found.metadata["loss"] == found.metadata["loss_history"][-1][1]


@pytest.mark.parametrize("name", [ADAPTER, "adapter_config.json", "tokenizer.json", "tokenizer_config.json", "trainer_state.json"])
def test_a_file_cut_anywhere_is_never_complete(checkpoint: Path, name: str) -> None:  # R1.5
    content = (checkpoint / name).read_bytes()
    size = len(content)
    for length in sorted({0, 1, 7, 8, 9, size // 3, size // 2, size - 5, size - 2, *range(10, size - 2, max(1, size // 40))}):
        (checkpoint / name).write_bytes(content[:length])
        assert not inspect(checkpoint).complete, f"{name} with {length} of {size} bytes"
    (checkpoint / name).write_bytes(content)
    assert inspect(checkpoint).complete


@pytest.mark.parametrize("name", [ADAPTER, "adapter_config.json", "trainer_state.json"])
def test_every_file_that_an_export_cannot_do_without_must_be_there(checkpoint: Path, name: str) -> None:  # R1.5
    (checkpoint / name).unlink()
    assert name in missing(checkpoint)


def test_a_preallocated_file_with_a_hole_is_not_complete(checkpoint: Path) -> None:  # R1.5
    import torch
    from safetensors.torch import save_file

    file = checkpoint / ADAPTER
    save_file({"weight": torch.ones(64, 1024)}, file)
    assert inspect(checkpoint).complete
    size = file.stat().st_size
    os.truncate(file, size // 2)
    os.truncate(file, size)
    assert "has a hole at byte" in missing(checkpoint)


def test_weights_that_end_in_zeros_inside_a_tensor_are_not_complete(checkpoint: Path) -> None:  # R1.5
    import torch
    from safetensors.torch import save_file

    file = checkpoint / ADAPTER
    save_file({"a": torch.ones(16), "weight": torch.ones(64, 1024)}, file)
    size = file.stat().st_size
    with open(file, "r+b") as stream:
        stream.seek(size - 100_000)
        stream.write(bytes(100_000))
    assert "ends with zeros in the middle of a tensor" in missing(checkpoint)


def test_a_lora_b_that_is_still_all_zeros_is_complete(checkpoint: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"lora_A.weight": torch.ones(64, 1024), "lora_B.weight": torch.zeros(64, 1024)}, checkpoint / ADAPTER)
    assert inspect(checkpoint).complete


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"global_step": 2}', "belongs to step 2, but the directory to step 4"),
        ('{"global_step": "4"}', "has no global_step"),
        ("{}", "has no global_step"),
        ("null", "trainer_state.json"),
        ("[]", "trainer_state.json"),
        ('{"global_step": 4', "is not valid JSON"),
    ],
)
def test_a_trainer_state_that_does_not_belong_here_is_not_complete(checkpoint: Path, text: str, why: str) -> None:  # R1.5
    (checkpoint / "trainer_state.json").write_text(text)
    assert why in missing(checkpoint)


def test_an_adapter_config_that_is_no_object_is_not_complete(checkpoint: Path) -> None:  # R1.5
    (checkpoint / "adapter_config.json").write_text("[]")
    assert "adapter_config.json" in missing(checkpoint)


def test_the_sentinel_of_an_interrupted_save_keeps_it_open_until_it_goes(checkpoint: Path) -> None:  # R1.5
    sentinel = checkpoint / "checkpoint-is-incomplete.txt"
    sentinel.touch()
    before = fingerprint(checkpoint)
    assert sentinel.name in missing(checkpoint)
    sentinel.unlink()
    assert inspect(checkpoint).complete
    assert fingerprint(checkpoint) != before


def test_an_adapter_stored_by_torch_save_is_complete_unless_it_is_cut(checkpoint: Path) -> None:  # R1.5
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(checkpoint / ADAPTER), checkpoint / "adapter_model.bin")
    (checkpoint / ADAPTER).unlink()
    assert inspect(checkpoint).complete
    content = (checkpoint / "adapter_model.bin").read_bytes()
    for length in (0, 100, len(content) // 2, len(content) - 30):
        (checkpoint / "adapter_model.bin").write_bytes(content[:length])
        assert "adapter_model.bin" in missing(checkpoint)


def test_files_that_are_links_are_not_followed(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / ADAPTER).rename(tmp_path / "elsewhere.safetensors")
    (checkpoint / ADAPTER).symlink_to(tmp_path / "elsewhere.safetensors")
    assert f"{ADAPTER} is a link to {tmp_path}/elsewhere.safetensors, and links are not followed: put the file" in missing(checkpoint)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "a loop": (lambda file: file.symlink_to(file.name), "is a link to NAME, which leads back to itself"),
    "a dangling link": (lambda file: file.symlink_to("gone"), "is a link to gone, which is not there"),
    "a directory": (lambda file: file.mkdir(), "is a directory, not a file"),
    "a pipe": (os.mkfifo, "is not a regular file"),
}


@pytest.mark.parametrize("name", [ADAPTER, "trainer_state.json"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_in_the_place_of_a_file_is_said(checkpoint: Path, name: str, wrong: str) -> None:
    make, said = WRONG[wrong]
    (checkpoint / name).unlink()
    make(checkpoint / name)
    assert f"{name} {said.replace('NAME', name)}" in missing(checkpoint)


def test_what_is_in_the_place_of_the_configuration_is_said(checkpoint: Path) -> None:
    (checkpoint / "adapter_config.json").unlink()
    (checkpoint / "adapter_config.json").symlink_to("adapter_config.json")
    assert "adapter_config.json is a link to adapter_config.json, which leads back to itself" in missing(checkpoint)


def test_an_adapter_that_is_not_named_default_is_named_with_the_command_that_exports_it(checkpoint: Path) -> None:
    for folder in ("policy", "ref", "reference"):
        (checkpoint / folder).mkdir()
        for name in (ADAPTER, "adapter_config.json"):
            shutil.copy2(checkpoint / name, checkpoint / folder / name)
    for name in (ADAPTER, "adapter_config.json"):
        (checkpoint / name).unlink()
    said = missing(checkpoint)
    assert "but in policy/, reference/, where PEFT writes an adapter that is not named default" in said
    assert f"`ckptd export {checkpoint / 'policy'}`" in said


def test_what_is_in_the_place_of_a_whole_models_weights_is_said(checkpoint: Path) -> None:
    for name in (ADAPTER, "adapter_config.json"):
        (checkpoint / name).unlink()
    (checkpoint / "config.json").write_text("{}")
    assert "no adapter and no model weights in it yet" in missing(checkpoint)
    (checkpoint / "model.safetensors").mkdir()
    assert "no adapter and no model weights in it yet: model.safetensors is a directory, not a file" in missing(checkpoint)
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "b"}}))
    assert "model.safetensors is a directory, not a file; b, which model.safetensors.index.json names, is not there yet" in (
        "; ".join(sorted(inspect(checkpoint).missing, reverse=True))
    )


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "", "a/b", "x" * 300, "a\nb", "\x1b[2J", 5, None, ["a"]])
def test_an_index_that_names_what_is_no_file_beside_it_is_refused(checkpoint: Path, name: object) -> None:
    for one in (ADAPTER, "adapter_config.json"):
        (checkpoint / one).unlink()
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": name}}))
    refusal = inspect(checkpoint).refusal
    assert (
        refusal is not None
        and refusal == refusal_of(checkpoint)
        and refusal.code == "checkpoint-damaged"
        and "can't be the name of a file beside it" in refusal.cause
    )
    assert len(refusal.sentence()) <= 600 and refusal.sentence().isprintable()


def test_an_index_of_many_files_is_answered_in_a_few_lines(checkpoint: Path) -> None:
    for one in (ADAPTER, "adapter_config.json"):
        (checkpoint / one).unlink()
    (checkpoint / "config.json").write_text("{}")
    names = {f"layer.{number}": f"model-{number:06}.safetensors" for number in range(100_000)}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    said = "; ".join(inspect(checkpoint).missing)
    assert len(said) < 3000 and "and more of the 100,000 files" in said


def test_a_loss_that_is_not_a_number_keeps_nothing_back(checkpoint: Path) -> None:
    set_state(checkpoint, log_history=[{"step": 4, "loss": math.nan}], epoch=math.nan)
    assert inspect(checkpoint).complete


@pytest.mark.parametrize("history", [3, "x", [1, None], [{"step": 1, "loss": None}], {"a": 1}])
def test_a_history_of_another_shape_is_passed_over(checkpoint: Path, history: object) -> None:
    set_state(checkpoint, log_history=history)
    assert inspect(checkpoint).complete


def test_only_files_that_an_export_reads_are_in_the_fingerprint(checkpoint: Path) -> None:
    before = fingerprint(checkpoint)
    for name in ("optimizer.pt", "rng_state.pth", "scheduler.pt", "new-of-a-callback.bin"):
        with open(checkpoint / name, "ab") as stream:
            stream.write(b"more")
    assert fingerprint(checkpoint) == before
    os.utime(checkpoint / ADAPTER, ns=(0, 0))
    assert fingerprint(checkpoint) != before


@pytest.fixture(scope="module")
def whole_sharded(pico_base: Path, pico_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full fine-tune's checkpoint-4 in several shards with an index, saved by transformers."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("full") / "run" / "checkpoint-4"
    AutoModelForCausalLM.from_pretrained(pico_base).save_pretrained(folder, max_shard_size="100KB")
    shutil.copy(pico_checkpoint / "trainer_state.json", folder)
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    return folder


@pytest.fixture
def sharded(whole_sharded: Path, tmp_path: Path) -> Path:
    return copy_of(whole_sharded, tmp_path / "full" / "checkpoint-4")


def test_a_sharded_full_model_is_complete(sharded: Path) -> None:  # R1.1
    found = inspect(sharded)
    assert (found.missing, found.layout, found.method) == ((), "trainer-full", "full")


def _without_shard(folder: Path) -> str:
    shard = sorted(folder.glob("model-*.safetensors"))[-1]
    shard.unlink()
    return shard.name


def _with_swapped_shard(folder: Path) -> str:
    first, *_, last = sorted(folder.glob("model-*.safetensors"))
    shutil.copy(first, last)
    return f"{last.name} lacks"


def _with_cut_shard(folder: Path) -> str:
    first = min(folder.glob("model-*.safetensors"))
    os.truncate(first, first.stat().st_size - 1)
    return first.name


def _with_cut_index(folder: Path) -> str:
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text()[:-20])
    return index.name


def _with_a_list_for_an_index(folder: Path) -> str:
    (folder / "model.safetensors.index.json").write_text(json.dumps(["weight_map"]))
    return "model.safetensors.index.json"


@pytest.mark.parametrize("damage", [_without_shard, _with_swapped_shard, _with_cut_shard, _with_cut_index, _with_a_list_for_an_index])
def test_a_sharded_model_with_anything_amiss_is_not_complete(sharded: Path, damage: Callable[[Path], str]) -> None:  # R1.5
    assert damage(sharded) in missing(sharded)


def test_a_directory_without_weights_says_so(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-4").mkdir()
    assert "no adapter and no model weights" in missing(tmp_path / "checkpoint-4")


MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
    {"idx": 4, "name": "4", "path": "4_Own", "type": "elsewhere.Own"},
]


def test_the_modules_of_sentence_transformers_are_waited_for(checkpoint: Path) -> None:  # R1.5
    """All but the folder of a module without settings: it is empty, and copies lose it."""
    (checkpoint / "modules.json").write_text(json.dumps(MODULES))
    steps = [
        ("1_Pooling/config.json", b"{}", "1_Pooling/config.json, which modules.json names, is not there yet"),
        ("2_Dense/config.json", b"{}", "2_Dense/config.json, which modules.json names, is not there yet"),
        ("4_Own/anything", b"x", "4_Own, which modules.json names, is not there yet"),
    ]
    for position, (name, data, _) in enumerate(steps):
        assert inspect(checkpoint).missing == tuple(problem for _, _, problem in steps[position:])
        (checkpoint / name).parent.mkdir()
        assert not inspect(checkpoint).complete or position == len(steps) - 1
        (checkpoint / name).write_bytes(data)
    assert inspect(checkpoint).complete
    weights = (checkpoint / "adapter_model.safetensors").read_bytes()
    (checkpoint / "2_Dense" / "model.safetensors").write_bytes(weights[:-1])
    (problem,) = inspect(checkpoint).missing
    assert problem.startswith("2_Dense/model.safetensors")
    (checkpoint / "2_Dense" / "model.safetensors").write_bytes(weights)
    assert inspect(checkpoint).complete


def test_adapters_that_an_export_leaves_out_are_told(station: Stations, pico_run: Path) -> None:
    here = station()
    made = copy_of(pico_run / "checkpoint-4", here.home / "made" / "checkpoint-4")
    for folder in ("style", "reference", "notes"):
        (made / folder).mkdir()
        for name in (ADAPTER, "adapter_config.json") if folder != "notes" else ():
            shutil.copy2(made / name, made / folder / name)
    made.parent.rename(here.root / "run")
    (job,) = here.wait_for_jobs(1)
    path = here.root / "run" / "checkpoint-4" / "style"
    assert job.warnings == (f"style/ in the checkpoint: another adapter, which this export leaves out; run `ckptd export {path}`",)
