"""Core ML's packages of every kind say what the programs say that they were made of; what can't be made is one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.static_programs import description
from handlers.static_programs.published.feeding import Text, TooLongError
from tests import stages
from tests.exports.formats import FORMATS
from tests.onnx import qwen
from tests.sampling import some
from tests.stages import refused
from tests.static_programs import forms as static_forms
from tests.static_programs.forms import program, programs, said, unheard
from tests.torch_programs.forms import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]
BOUNDS = {"coreml": 0.05, "coreml-int8": 0.5, "coreml-int4": 4.0, "coreml-palettized": 4.0}
"""Variant → largest difference, in standard deviations of the outputs; the models are untrained, and computed in half precision."""
LENGTH = 96


def session(folder: Path, role: str) -> Any:
    from handlers.coreml.session import opened

    graph = description.read(folder).graph(role)
    return opened(folder / graph.file, graph)


def package_of(folder: Path, role: str = "model") -> Any:
    from handlers.coreml.evaluation import package

    return package.read(folder / description.read(folder).graph(role).file)


@pytest.mark.parametrize("name", some(list(MODELS), of=3))
def test_every_form_says_what_its_programs_say(name: str, tmp_path: Path) -> None:  # R2.4
    model = MODELS[name](tmp_path / "model")
    made_of, _ = programs(model, tmp_path / "programs", context_length=LENGTH)
    wanted, sizes = said(made_of, program), []
    for variant, bound in BOUNDS.items():
        folder, output = stages.make(variant, made_of, tmp_path / variant)
        made_of = folder if variant == "coreml" else made_of
        # An expert that is chosen otherwise changes everything behind it; one of two numbers may be near nothing.
        loose = 60 if name == "Qwen3Moe" else 4 if name == "Bert" else 1
        for ours, theirs in zip(said(folder, session), wanted, strict=True):
            assert ours.shape == theirs.shape
            assert np.abs(ours - theirs).max() <= loose * bound * max(theirs.std(), 0.1), variant
        experts = name == "Qwen3Moe" and variant in ("coreml-int4", "coreml-palettized")
        assert not experts or any("have 8 bits" in one for one in output.warnings), output.warnings
        assert not output.fallbacks and (variant == "coreml" or output.figures["small_share"] > 0.8)
        assert unlike(variant, folder, model) is None
        sizes.append(output.figures["graph_bytes"])
    assert sizes[0] > sizes[1] > max(sizes[2:])
    for folder in (tmp_path / one / "staging" for one in BOUNDS):
        assert not list(folder.glob("*.pt2")) and (folder / "graphs.json").is_file() and (folder / "config.json").is_file()
        for path in folder.glob("*.mlpackage"):
            assert {one.name for one in path.iterdir()} == {"Manifest.json", "Data"}, "nothing else is in a package"


def unlike(variant: str, folder: Path, model: Path) -> str | None:
    """Why the weights of a folder are not those of a model."""
    from handlers.coreml import comparison

    return comparison.difference(folder, model)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return static_forms.tied(tmp_path_factory)


@pytest.fixture(scope="module")
def plain(tied: tuple[Path, Path], toolchain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its packages. Read only."""
    from tests.toolchains.real import imported

    for _ in imported(toolchain):
        return stages.make("coreml", tied[1], tmp_path_factory.mktemp("plain"))[0]
    raise AssertionError


def test_a_language_model_has_a_state_for_each_layer_and_takes_one_token_or_many(plain: Path) -> None:
    made = package_of(plain)
    assert made.specification == 9, "iOS 18 and macOS 15"
    assert sorted(made.states) == ["cache_0_key", "cache_0_value", "cache_1_key", "cache_1_value"]
    assert {kind.dtype for kind in made.states.values()} == {"float16"} and {kind.shape for kind in made.states.values()} == {
        (1, 2, 96, 16)
    }
    assert made.shapes == dict.fromkeys(("input_ids", "position_ids"), ((1, 1), (1, 32))) and made.outputs == ("logits",)
    described = description.read(plain)
    assert [port.name for port in described.graph("model").inputs] == ["input_ids", "position_ids"]
    assert [port.name for port in described.graph("model").outputs] == ["logits"] and described.known.dtype == "float16"


def test_no_size_is_read_while_it_runs_and_no_angle_is_computed(plain: Path) -> None:
    kinds = {one.kind for one in package_of(plain).operators}
    assert not kinds & {"shape", "range_1d", "cos", "sin", "pow", "fill"}


def test_a_tied_head_and_its_table_are_stored_once(tied: tuple[Path, Path], plain: Path, tmp_path: Path) -> None:
    weights = sum(path.stat().st_size for path in tied[0].glob("*.safetensors"))
    stored = (plain / "model.mlpackage/Data/com.apple.CoreML/weights/weight.bin").stat().st_size
    assert weights / 2 - 10_000 < stored < weights / 2 + 20_000
    _, output = stages.make("coreml-int4", plain, tmp_path / "int4")
    assert output.figures["weights"]["int8"] == 1024 * 96, "table and head, once"
    assert set(output.figures["blocks"]) == {"32", "rows"}


def test_the_weights_that_are_read_are_those_that_core_ml_tools_read(plain: Path, tmp_path: Path) -> None:
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load

    from handlers.coreml import comparison

    for variant in FORMATS["coreml"].variants:
        folder = plain if variant == "coreml" else stages.make(variant, plain, tmp_path / variant)[0]
        model = ct.models.MLModel(str(folder / "model.mlpackage"), skip_model_load=True)
        theirs = load(model.get_spec(), specification_version=9, file_weights_dir=model.weights_dir).functions["main"]
        values = {}
        for operator in theirs.operations:
            if operator.op_type.startswith("constexpr_"):
                values[operator.outputs[0].name] = operator.materialized_val_inference()
            elif operator.op_type == "const":
                values[operator.outputs[0].name] = operator.outputs[0].val
        ours = list(comparison.weights_of(package_of(folder)))
        assert len(ours) > 20
        for weight in ours:
            wanted = np.asarray(values[weight.name]).astype(np.float32)
            assert np.allclose(weight.values, wanted, rtol=2e-3, atol=1e-6), weight.name  # theirs are rounded to half precision


def test_a_text_that_fills_the_room_is_the_longest(tied: tuple[Path, Path], plain: Path) -> None:
    wanted, found = Text(program(tied[1], "model"), LENGTH), Text(session(plain, "model"), LENGTH)
    tokens = list(range(5, 5 + LENGTH))
    first = wanted.feed(tokens)
    assert np.abs(found.feed(tokens) - first).max() < 0.05 * first.std()
    with pytest.raises(TooLongError, match="room for 96 tokens"):
        found.feed([7])


def test_fp32_is_exact_but_for_the_cache_which_core_ml_keeps_in_half_precision(tied: tuple[Path, Path], tmp_path: Path) -> None:
    folder, output = stages.make("coreml", tied[1], tmp_path / "single", precision="float32")
    assert output.figures["precision"] == "float32" and description.read(folder).known.dtype == "float32"
    assert set(output.figures["weights"]) == {"float32"}
    ours, theirs = (Text(one, LENGTH).feed([5]) for one in (session(folder, "model"), program(tied[1], "model")))
    assert np.abs(ours - theirs).max() < 1e-4
    for ours, theirs in zip(said(folder, session), said(tied[1], program), strict=True):
        assert np.abs(ours - theirs).max() < 1e-2 * theirs.std()


def test_what_overflows_in_half_precision_is_made_again_in_single(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    model = qwen.make(tmp_path / "model", tie_word_embeddings=False)
    tensors = load_file(model / "model.safetensors")
    for name in ("gate_proj", "up_proj"):
        tensors[f"model.layers.0.mlp.{name}.weight"] *= 400.0
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, model / "model.safetensors", {"format": "pt"})
    source, _ = programs(model, tmp_path / "programs", context_length=LENGTH)
    folder, output = stages.make("coreml", source, tmp_path / "work")
    (fallback,) = output.fallbacks
    assert (fallback.wanted, fallback.taken) == ("float16", "float32") and "not finite in half precision" in fallback.reason
    assert output.figures["precision"] == "float32" and description.read(folder).known.dtype == "float32"
    assert all(np.isfinite(array).all() for array in said(folder, session))
    assert torch.isfinite(torch.tensor(said(source, program)[0])).all()


def test_an_operator_that_core_ml_tools_do_not_know_is_one_sentence(tied: tuple[Path, Path], tmp_path: Path) -> None:
    fault = refused("bessel_j0", stages.make, "coreml", unheard(tied[1], tmp_path / "programs"), tmp_path / "work")
    assert fault.remedy == "leave coreml out of export.variants"


def test_an_operator_that_is_not_evaluated_is_named(
    tied: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # what nobody can check is not published as sound
    from handlers.coreml.evaluation.kernels import KERNELS

    monkeypatch.delitem(KERNELS, "silu")
    refused(r"model.mlpackage is not sound \(UnknownOperator: it has an operator silu", stages.make, "coreml", tied[1], tmp_path / "work")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("manifest", "files can't be read"), ("model", "model can't be read"), ("weights", "cut short"),
        ("elsewhere", "not one of the package"),
    ],
)  # fmt: skip
def test_a_package_that_was_damaged_is_one_sentence(damage: str, words: str, plain: Path, tmp_path: Path) -> None:
    from handlers.coreml import library
    from handlers.coreml.evaluation import package
    from handlers.coreml.evaluation.blobs import Unreadable
    from handlers.coreml.evaluation.evaluator import Evaluator

    path = shutil.copytree(plain / "model.mlpackage", tmp_path / "model.mlpackage")
    inside = path / "Data/com.apple.CoreML"
    if damage == "manifest":
        (path / "Manifest.json").write_text("{}")
    elif damage == "model":
        (inside / "model.mlmodel").write_bytes(b"\xff" * 100)
    elif damage == "weights":
        whole = (inside / "weights/weight.bin").read_bytes()
        (inside / "weights/weight.bin").write_bytes(whole[: len(whole) // 2])
    else:
        model = library.proto().Model.FromString((inside / "model.mlmodel").read_bytes())
        (block,) = model.mlProgram.functions["main"].block_specializations.values()
        named = next(one for one in block.operations if one.attributes["val"].blobFileValue.fileName)
        named.attributes["val"].blobFileValue.fileName = "@model_path/../../elsewhere.bin"
        (inside / "model.mlmodel").write_bytes(model.SerializeToString())
    with pytest.raises(Unreadable, match=words):
        Evaluator(package.read(path))


def test_on_a_mac_core_ml_is_asked_with_a_state_of_each_text(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed to Core ML, up to the edge: it runs nowhere else."""
    from handlers.coreml import library
    from handlers.coreml import session as sessions

    asked: list[tuple[dict[str, Any], Any]] = []

    class Model:
        def __init__(self, path: str, compute_units: Any) -> None:
            assert Path(path) == plain / "model.mlpackage" and compute_units == library.coremltools().ComputeUnit.CPU_ONLY

        def make_state(self) -> object:
            return object()

        def predict(self, given: dict[str, Any], state: Any = None) -> dict[str, np.ndarray]:
            asked.append((given, state))
            return {"logits": np.zeros((1, given["input_ids"].shape[1], 1024), np.float16)}

    monkeypatch.setattr(sessions.sys, "platform", "darwin")
    monkeypatch.setattr(library.coremltools().models, "MLModel", Model)
    opened = session(plain, "model")
    assert isinstance(opened, sessions.AppleSession) and opened.sizes == (1, 32)
    first, second = Text(opened, LENGTH), Text(opened, LENGTH)
    assert first.feed(list(range(5, 45))).shape == (40, 1024) and second.feed([7]).dtype == np.float32
    assert [given["input_ids"].shape[1] for given, _ in asked] == [32, 32, 1]
    assert all(array.dtype == np.int32 for given, _ in asked for array in given.values())
    states = [state for _, state in asked]
    assert states[0] is states[1] and states[0] is not states[2] and None not in states
    assert asked[1][0]["position_ids"].tolist() == [list(range(32, 64))]


def test_graphs_json_says_which_sizes_a_package_takes(plain: Path) -> None:
    known = json.loads((plain / "graphs.json").read_text())
    assert known["extra"] == {"context_length": 96, "sizes": {"model": [1, 32]}}
    assert known["graphs"][0]["file"] == "model.mlpackage"
