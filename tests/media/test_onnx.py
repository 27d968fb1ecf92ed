"""ONNX graphs of encoders of pictures and sound: optimum's names, transformers' answers at every size, and exporters that are broken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.contract.jobs.options import Work
from daemon.contract.jobs.plan import plan
from daemon.running.rules.suitable import unsuited
from handlers.graphs.comparison import GraphMismatchError
from handlers.onnx.format import MEDIA
from tests.media.families import FAMILIES
from tests.media.measuring import GRAPHS
from tests.media.test_exports import TABLE

PIXELS = {"pixel_values": ["batch", 3, 32, 32]}
ANY_SIZE = {"pixel_values": ["batch", 3, "height", "width"]}
SOUND = {"input_values": ["batch", "samples"]}
MASKED = SOUND | {"attention_mask": ["batch", "samples"]}
TEXT = ["text_batch", "sequence"]
PORTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vit": (PIXELS, {"logits": ["batch", 5]}),
    "vit-bare": (PIXELS, {"last_hidden_state": ["batch", 17, 32], "pooler_output": ["batch", 32]}),
    "deit": (PIXELS, {"logits": ["batch", 5]}),
    "beit": (PIXELS, {"logits": ["batch", 5]}),
    "swin": (PIXELS, {"logits": ["batch", 5]}),
    "dinov2": (ANY_SIZE, {"logits": ["batch", 5]}),
    "convnext": (ANY_SIZE, {"logits": ["batch", 5]}),
    "clip": (
        {"input_ids": TEXT, "pixel_values": ["image_batch", 3, 32, 32], "attention_mask": TEXT},
        {"logits_per_image": ["image_batch", "text_batch"], "logits_per_text": ["text_batch", "image_batch"],
         "text_embeds": ["text_batch", 24], "image_embeds": ["image_batch", 24]},
    ),
    "wav2vec2": (MASKED, {"logits": ["batch", 4]}),
    "wav2vec2-ctc": (MASKED, {"logits": ["batch", "frames", 32]}),
    "hubert-ctc": (SOUND, {"logits": ["batch", "frames", 32]}),
}  # fmt: skip
"""Inputs and outputs of the graph, as optimum-onnx names them (exporters/onnx/model_configs.py); CTC's mask is ours, see the README."""
QUICK = ("vit",)
ALL = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PORTS]
Folders = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folders]:
    """Family → its folder and that of its graph, by the stage itself. Read only."""
    import torch
    import transformers

    from handlers.onnx.export import stage
    from tests.onnx.conftest import make_context, silent

    known: dict[str, tuple[Path, Path]] = {}

    def of(name: str) -> tuple[Path, Path]:
        if name not in known:
            place = tmp_path_factory.mktemp(name)
            torch.manual_seed(0)
            model = FAMILIES[name].make(transformers).eval()
            for key, parameter in model.named_parameters():
                if "norm" in key and key.endswith("bias"):  # none is 0 after a training; of silence, 0 would leave what was rounded
                    torch.nn.init.normal_(parameter, 0.0, 0.2)
            model.save_pretrained(place / "model")
            FAMILIES[name].processor(place / "model")
            context = make_context(place / "onnx", "onnx", {"merge": place / "model"}, place / "model")
            stage.run(context, silent())
            known[name] = place / "model", Path(context.staging)
        return known[name]

    yield of


def engine(kind: str, folder: Path) -> Any:
    from handlers.validate.engines.registry import EngineSpec, load
    from handlers.validate.engines.task_profile import subject_of

    return load(EngineSpec(engine=kind, folder=str(folder), task=subject_of(folder).task))


def apart(folders: tuple[Path, Path], numbers: list[int]) -> float:
    """Largest difference of a graph's answers to a batch of pictures or sounds from transformers', in standard deviations."""
    ids = np.array([[number] for number in numbers])
    loaded = engine("torch", folders[0]), engine("onnx", folders[1])
    wanted, given = (model.run(ids, np.ones_like(ids), np.zeros_like(ids))[0] for model in loaded)
    assert wanted.shape == given.shape
    return float(np.abs(wanted - given).max() / wanted.std())


@pytest.mark.parametrize("name", ALL)
def test_a_graph_has_the_names_and_dynamic_axes_that_optimum_gives_it(name: str, made: Folders) -> None:
    (graph,) = json.loads((made(name)[1] / "graphs.json").read_text())["graphs"]
    inputs, outputs = ({port["name"]: port["shape"] for port in graph[side]} for side in ("inputs", "outputs"))
    assert (inputs, outputs) == PORTS[name] and [*inputs] == [*PORTS[name][0]]
    for file in made(name)[0].glob("*processor*.json"):
        assert (made(name)[1] / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("name", ALL)
def test_what_the_processor_prepares_gets_the_answers_of_transformers_alone_and_in_a_padded_batch(name: str, made: Folders) -> None:
    for numbers in ([0], [3], [0, 1, 2]):
        assert apart(made(name), numbers) < 1e-4


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vit", {"image_mean": [0.5, 0.4, 0.3]}),
        ("vit", {"image_std": [0.3, 0.5, 0.7]}),
        pytest.param("wav2vec2", {"sampling_rate": 8000}, marks=pytest.mark.slow),
    ],
)
def test_a_folder_whose_processor_prepares_otherwise_is_far_off(name: str, changes: dict[str, Any], made: Folders, tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(made(name)[1], tmp_path / "folder")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert apart((made(name)[0], folder), [0]) > 0.01


def _channels_swapped(model: Any, inputs: dict[str, Any]) -> Any:
    return model(**inputs | {"pixel_values": inputs["pixel_values"].flip(1)})


def _mask_ignored(model: Any, inputs: dict[str, Any]) -> Any:
    mask = inputs["attention_mask"]
    return model(**inputs | {"attention_mask": mask * 0 + 1})


def _bias_missing(model: Any, inputs: dict[str, Any]) -> Any:
    output = model(**inputs)
    output["logits"] = output["logits"] - model.classifier.bias
    return output


def _scale_missing(model: Any, inputs: dict[str, Any]) -> Any:
    output = model(**inputs)
    output["logits_per_image"] = output["logits_per_image"] / model.logit_scale.exp()
    return output


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("vit", _channels_swapped),
        ("vit", _bias_missing),
        pytest.param("clip", _mask_ignored, marks=pytest.mark.slow),
        pytest.param("clip", _scale_missing, marks=pytest.mark.slow),
        pytest.param("wav2vec2", _mask_ignored, marks=pytest.mark.slow),
        pytest.param("wav2vec2-ctc", _mask_ignored, marks=pytest.mark.slow),
    ],
)
def test_an_exporter_that_traces_something_else_is_found_out(
    name: str, broken: Callable[..., Any], made: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from handlers.families.base import Tracing
    from handlers.families.choice import choose
    from handlers.families.media import family
    from handlers.graphs import graph_file
    from handlers.onnx.tracing.exporters import Request, dynamo

    def forward(self: Any, *tensors: Any) -> tuple[Any, ...]:
        output = broken(self.model, dict(zip(self.names, tensors, strict=True)))
        return tuple(output[name] for name in self.outputs)

    mine = choose(made(name)[0])
    model = mine.load(made(name)[0], Tracing())
    if broken is _bias_missing:
        torch.nn.init.normal_(model.classifier.bias, 1.0)
    reference = mine.refer(model, made(name)[0])
    monkeypatch.setattr(family.OnePass, "forward", forward)
    (part,) = mine.parts(model, reference)
    graph = dynamo(Request(part, 18, tmp_path))
    graph_file.tidy(graph)
    graph_file.name_axes(graph, part.signature)
    graph_file.write({part.file: graph}, tmp_path, tmp_path)
    with pytest.raises(GraphMismatchError, match="differ from torch's"):
        mine.verify(tmp_path, reference)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_said_before_the_merge_is_what_then_happens(name: str) -> None:
    import transformers

    config = json.loads(FAMILIES[name].make(transformers).config.to_json_string(use_diff=False))
    refused = unsuited(plan(GRAPHS), config, Work.recovered("{}"), GRAPHS)
    for form in GRAPHS:
        assert (form in refused) == (TABLE[name]["forms"][form]["outcome"] == "refused"), form


def test_every_type_that_is_not_refused_was_measured() -> None:
    assert {row["model_type"] for row in TABLE.values() if row["forms"]["onnx"]["outcome"] == "published"} == MEDIA


def test_forms_that_need_texts_are_refused_of_pictures_in_one_sentence_and_the_others_are_named() -> None:
    asked = ("pytorch", *GRAPHS, "onnx-int4", "onnx-int8-static", "onnx-mixed", "openvino", "web", "coreml", "tensorrt-bundle")
    config = {"model_type": "vit", "image_size": 224, "architectures": ["ViTForImageClassification"]}
    faults = unsuited(plan(asked), config, Work.recovered("{}"), asked)
    assert {*asked} - {*faults} == {"pytorch", *GRAPHS}
    (sentence,) = {faults[name].sentence() for name in asked if name in faults}
    assert "it can't be made of models of the type 'vit', which read pictures" in sentence
    assert sentence.endswith("of what was asked for, pytorch, onnx, onnx-fp16 and onnx-int8 can be made.")


def test_a_model_that_writes_about_pictures_is_refused_in_one_sentence_for_all_graphs() -> None:
    config = {"model_type": "llava", "vision_config": {}, "text_config": {"model_type": "llama"}}
    asked = ("pytorch", *GRAPHS, "onnx-int4")
    faults = unsuited(plan(asked), config, Work.recovered("{}"), asked)
    (sentence,) = {faults[name].sentence() for name in asked if name in faults}
    assert {*faults} >= {*GRAPHS, "onnx-int4"} and "of the type 'llava', which read pictures" in sentence
