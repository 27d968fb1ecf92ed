"""Full fine-tunes: weights are taken, leftovers of the training and code are not."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from daemon.contract.faults.errors import Permanent
from handlers.merge.full_finetune import place_weights
from handlers.models.code import copy_code
from handlers.models.folder import ModelFolder

LEFTOVERS = ["optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_0.pth", "training_args.bin", "trainer_state.json", "scaler.pt"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder for a model, with a configuration that says nothing."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/config.json").write_text("{}")
    return tmp_path / "source"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An empty folder to write into."""
    (tmp_path / "output").mkdir()
    return tmp_path / "output"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def shards(source: Path, *tables: dict[str, Any], count: int | None = None) -> None:
    """Save `tables` as numbered .bin files with their index."""
    mapping = {}
    for number, table in enumerate(tables, 1):
        name = f"pytorch_model-{number:05}-of-{count or len(tables):05}.bin"
        torch.save(table, source / name)
        mapping.update(dict.fromkeys(table, name))
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": mapping}))


def test_leftovers_of_the_training_are_never_taken(pico_base: Path, source: Path, output: Path) -> None:
    shutil.copytree(pico_base, source, dirs_exist_ok=True)
    for name in LEFTOVERS:
        (source / name).write_bytes(b"\x80\x02.")
    (source / "global_step5").mkdir()
    (source / "global_step5" / "mp_rank_00_model_states.pt").write_bytes(b"x")
    place_weights(ModelFolder(source), output)
    assert names(output) == ["model.safetensors"]
    torch.save({"a.weight": torch.ones(2)}, source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    (output / "model.safetensors").unlink()
    place_weights(ModelFolder(source), output)
    assert names(output) == ["model.safetensors"]


def test_dtypes_and_values_stay_as_they_are(source: Path, output: Path) -> None:
    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)
    table = {f"{dtype}".removeprefix("torch."): torch.arange(6).to(dtype) for dtype in kinds}
    torch.save(table, source / "pytorch_model.bin")
    place_weights(ModelFolder(source), output)
    written = load_file(output / "model.safetensors")
    assert written.keys() == table.keys()
    assert all(written[name].dtype == tensor.dtype and torch.equal(written[name], tensor) for name, tensor in table.items())


def test_shards_become_shards_with_an_index_that_fits(source: Path, output: Path) -> None:
    shards(source, {"a.weight": torch.ones(3)}, {"b.weight": torch.zeros(4)})
    place_weights(ModelFolder(source), output)
    assert names(output) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    index = json.loads((output / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}
    assert index["metadata"]["total_size"] == 28


def test_a_single_numbered_file_gets_the_name_that_is_found_without_an_index(source: Path, output: Path) -> None:
    shards(source, {"a.weight": torch.ones(3)})
    place_weights(ModelFolder(source), output)
    assert names(output) == ["model.safetensors"]


def test_a_tensor_in_two_shards_is_refused(source: Path, output: Path) -> None:
    shards(source, {"a.weight": torch.ones(3)}, {"a.weight": torch.zeros(3), "b.weight": torch.ones(1)})
    index = {"weight_map": {"a.weight": "pytorch_model-00001-of-00002.bin", "b.weight": "pytorch_model-00002-of-00002.bin"}}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(Permanent, match=r"a\.weight is in two files"):
        place_weights(ModelFolder(source), output)


def test_a_missing_shard_is_named(source: Path, output: Path) -> None:
    shards(source, {"a.weight": torch.ones(3)}, {"b.weight": torch.zeros(4)})
    (source / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(Permanent, match=r"pytorch_model-00002-of-00002\.bin"):
        place_weights(ModelFolder(source), output)


@pytest.mark.parametrize(("config", "kept"), [({"tie_word_embeddings": True}, False), ({"tie_word_embeddings": False}, True), ({}, True)])
def test_a_head_that_shares_its_memory_is_left_out_only_where_the_configuration_ties_it(
    source: Path, output: Path, config: dict[str, Any], kept: bool
) -> None:
    weight = torch.randn(8, 4)
    torch.save({"model.embed_tokens.weight": weight, "lm_head.weight": weight}, source / "pytorch_model.bin")
    (source / "config.json").write_text(json.dumps(config))
    place_weights(ModelFolder(source), output)
    written = load_file(output / "model.safetensors")
    assert torch.equal(written["model.embed_tokens.weight"], weight)
    assert ("lm_head.weight" in written) is kept


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_code_is_refused_and_not_run(source: Path, output: Path, tmp_path: Path, legacy: bool) -> None:
    sprung = tmp_path / "sprung"
    torch.save({"a": torch.ones(1), "b": Trap(sprung)}, source / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(Permanent, match="pickled code is never executed") as caught:
        place_weights(ModelFolder(source), output)
    assert caught.value.fault.code == "unsafe-pickle"
    assert not sprung.exists()
    assert names(output) == []


def test_a_file_in_the_old_format_is_converted(source: Path, output: Path) -> None:
    torch.save({"a.weight": torch.arange(5.0)}, source / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    place_weights(ModelFolder(source), output)
    assert torch.equal(load_file(output / "model.safetensors")["a.weight"], torch.arange(5.0))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04rubbish", pickle.dumps({"a": 1}), b"\x80\x04K\x05."])
def test_what_is_no_table_of_tensors_is_refused(source: Path, output: Path, content: bytes) -> None:
    (source / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(Permanent):
        place_weights(ModelFolder(source), output)


def test_a_trainers_whole_state_is_no_table_of_tensors(source: Path, output: Path) -> None:
    torch.save({"state_dict": {"a": torch.ones(1)}, "epoch": 3}, source / "pytorch_model.bin")
    with pytest.raises(Permanent, match="it holds no table of tensors, but state_dict, epoch"):
        place_weights(ModelFolder(source), output)


def with_code(source: Path, auto_map: Any) -> None:
    (source / "config.json").write_text(json.dumps({"auto_map": auto_map}))
    for name in ("modeling_own.py", "helper.py"):
        (source / name).write_text("raise SystemExit('was run')\n")


def test_code_of_the_model_is_copied_only_when_trusted(source: Path, output: Path) -> None:
    with_code(source, {"AutoModelForCausalLM": "modeling_own.Own"})
    (warning,) = copy_code(source, output, trusted=False)
    assert "set merge.trust_remote_code" in warning
    assert names(output) == []
    assert copy_code(source, output, trusted=True) == []
    assert names(output) == ["helper.py", "modeling_own.py"]


@pytest.mark.parametrize("auto_map", [None, {}, {"AutoModel": "owner/model--modeling.Own"}, {"AutoTokenizer": [None, None]}])
def test_python_files_of_a_model_that_needs_none_are_left_alone(source: Path, output: Path, auto_map: Any) -> None:
    with_code(source, auto_map)
    assert copy_code(source, output, trusted=True) == []
    assert names(output) == []


def test_code_of_unlikely_size_is_refused(source: Path, output: Path) -> None:
    with_code(source, {"AutoModel": ["modeling_own.Own", None]})
    with open(source / "huge.py", "wb") as stream:
        stream.truncate(1 << 30)
    with pytest.raises(Permanent, match="3 Python files"):
        copy_code(source, output, trusted=True)
    assert names(output) == []
