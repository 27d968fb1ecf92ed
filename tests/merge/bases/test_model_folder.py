"""A model's folder: what it answers, that it reads each file once, and the figures that a merge leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.figures import MergeFigures
from handlers.merge import Execution, MergeOptions, merge_adapter, stage
from handlers.merge.weights.model_structure import model_class
from handlers.models import folder as module
from handlers.models.folder import ModelFolder
from tests.merge import helpers
from tests.merge.interrupted import Case


@pytest.fixture
def model(tmp_path: Path) -> ModelFolder:
    """Two tensors in two files, with their index and a nested configuration."""
    save_file({"a": torch.zeros(3, 4)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.zeros(5).bfloat16()}, tmp_path / "model-2.safetensors")
    mapping = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "text_config": {"vocab_size": 5}}))
    return ModelFolder(tmp_path)


def test_it_answers_from_the_headers_and_the_configuration(model: ModelFolder) -> None:
    assert model.weight_names == ("model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json")
    assert (model.parameters, model.stored_bytes, model.main_dtype, model.pickled) == (17, 58, "float32", False)
    assert (model.setting("vocab_size"), model.setting("model_type"), model.setting("none"), model.uses_conv1d) == (5, "gpt2", None, True)
    assert model.path_of(model.headers["b"]) == model.path / "model-2.safetensors"
    assert model.file_bytes == sum((model.path / name).stat().st_size for name in model.files.names)


def test_of_pickled_weights_it_knows_the_files_alone(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(3)}, tmp_path / "pytorch_model.bin")
    model = ModelFolder(tmp_path)
    model.check()
    assert model.pickled and model.stored_bytes == model.file_bytes == (tmp_path / "pytorch_model.bin").stat().st_size
    with pytest.raises(Permanent, match="the weights are pickled"):
        model.headers  # noqa: B018


def test_errors_name_the_model_by_its_part_in_the_merge(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="read the base's configuration"):
        ModelFolder.opened(tmp_path, "base")


def test_a_merge_reads_the_configuration_and_each_header_of_its_base_once(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def noting(function: Any) -> Any:
        def noted(path: Path, *rest: Any) -> Any:
            read.append(path)
            return function(path, *rest)

        return noted

    for name in ("read_header", "read_json"):
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    (tmp_path / "out").mkdir()
    options = MergeOptions(dtype="float32", verify="full")
    report = merge_adapter(case.adapter, case.base, tmp_path / "out", options, Execution(cache=tmp_path / "cache"))
    assert report.figures.weight_files == len(case.shards)
    for folder in (case.base, tmp_path / "out"):
        headers = [path.name for path in read if path.parent == folder and path.suffix == ".safetensors"]
        assert sorted(headers) == case.shards
        assert [path.name for path in read if path.parent == folder].count("config.json") == 1


FIGURES = (
    "base_bytes", "parameters", "base_dtype", "output_dtype", "base_digest", "method", "changed_modules", "changed_parameters", "rank",
    "ranks", "scale", "scales", "merge_seconds", "resumed_files", "resumed_bytes", "weight_files", "recast_tensors", "held_share", "task",
)  # fmt: skip


def test_the_stage_leaves_the_figures_under_the_names_that_others_read(case: Case, tmp_path: Path) -> None:
    figures = stage.run(helpers.context(tmp_path, case.adapter, case.base), helpers.reporter()).figures
    assert tuple(figures) == FIGURES
    assert json.loads(json.dumps(figures)) == figures
    assert (figures["ranks"], figures["scales"], figures["rank"], figures["scale"]) == ([4], [3.0], 4, 3.0)
    assert figures["task"] == "text-generation"


def test_figures_of_another_version_can_be_read() -> None:
    older = {"base_bytes": 1, "parameters": 2, "base_dtype": "float32", "method": "LORA", "changed_modules": 3, "changed_parameters": 4}
    read = MergeFigures.model_validate({**older, "merge_seconds": 5, "of_another_version": 6})
    assert (read.changed_parameters, read.ranks, read.output_dtype, read.task) == (4, (), "", None)


def test_a_model_that_names_no_class_is_not_blamed_on_the_release_of_transformers(model: ModelFolder) -> None:
    with pytest.raises(Permanent) as raised:
        model_class(model)
    assert raised.value.fault.cause == "config.json names no architecture"
    assert "name the model's class there" in raised.value.fault.remedy
