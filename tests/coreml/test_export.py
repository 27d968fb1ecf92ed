"""A checkpoint of a real training, exported to Core ML's forms by the command line; what is wrong is caught."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exports.formats import FORMATS
from tests.stages import made_in
from tests.toolchains import real
from tests.torch_programs.test_published import checkpoint_of
from tests.validate import sabotage

VARIANTS = FORMATS["coreml"].variants
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.exported(tmp_path_factory, "coreml")


def test_report_and_page_say_that_apples_runtime_did_not_run_it_and_with_what_it_was_made(exported: Path) -> None:
    report, html = json.loads((exported / "report.json").read_bytes()), (exported / "report.html").read_text()
    assert report["versions"]["coremltools"] == "9.0"
    assert "evaluated operator by operator" in json.dumps(report)
    assert "evaluated operator by operator" in html and "runtime did not run it" in html


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_readme_says_how_it_is_run_and_that_it_was_not(variant: str, exported: Path) -> None:
    section, (code,) = real.section(exported, variant), real.blocks(exported, variant, "python")
    assert "Not run here by Apple" in section and re.search(r"pip install coremltools==9.0", section)
    ast.parse(code)
    assert f"SIZES = {[1, 32]}" in code and "make_state" in code and "model.makeState()" in section
    folder = exported / variant
    assert {one.name for one in folder.iterdir()} >= {"model.mlpackage", "graphs.json", "tokenizer.json", "config.json"}
    assert {one.name for one in folder.glob("*.py")} <= {"chat_template.py"}, "what evaluates it is no part of it"


@pytest.mark.parametrize("variant", ["coreml", "coreml-int4"])
def test_the_readmes_python_writes_what_the_model_writes_where_core_ml_is_stood_in_for(
    variant: str, exported: Path, libraries: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code of the README with the evaluator in place of Core ML, so that at least its own loop is right."""
    import coremltools as ct

    from handlers.coreml.evaluation import package
    from handlers.coreml.evaluation.evaluator import Evaluator

    class Model:
        def __init__(self, path: str) -> None:
            self._evaluator = Evaluator(package.read(Path(path)))

        def make_state(self) -> list[Any]:
            return [self._evaluator.start()]

        def predict(self, given: dict[str, Any], state: list[Any]) -> dict[str, np.ndarray]:
            found, state[0] = self._evaluator.run(state[0], given)
            return found

    (code,) = real.blocks(exported, variant, "python")
    monkeypatch.setattr(ct.models, "MLModel", Model)
    monkeypatch.chdir(exported)
    report = json.loads((exported / "report.json").read_bytes())
    sample = next(one for one in report["artifacts"] if one["variant"] == variant)["figures"]["sample"]
    asked = re.sub(r"encode\((['\"]).*?\1\)", lambda _: f"encode({sample['prompt']!r})", code)
    assert asked != code
    exec(compile(asked, "README.md", "exec"), {})
    assert sample["text"][:20] in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["seq2seq", "encoder"])
def test_other_kinds_of_models_pass(kind: str, state: Path, tmp_path: Path) -> None:  # R2.4
    wanted = VARIANTS[:3] if kind == "seq2seq" else VARIANTS  # 16 numbers a table are too few for so small a model
    folder = real.export(checkpoint_of(kind, tmp_path), state, tmp_path / "out", wanted)
    for variant in wanted:
        section = real.section(folder, variant)
        assert "```swift" in section and "Not run here" in section
        for code in real.blocks(folder, variant, "python"):
            ast.parse(code)


@pytest.fixture(scope="module")
def sound(lab: sabotage.Lab, toolchain: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Variant → its folder, of the sound model. Read only."""
    for _ in real.imported(toolchain):
        return made_in(lab, "sound", VARIANTS, tmp_path_factory.mktemp("sound"))
    raise AssertionError


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_damaged_block_of_weights_is_caught_and_named(variant: str, lab: sabotage.Lab, sound: dict[str, Path], tmp_path: Path) -> None:
    from handlers.coreml.evaluation import package
    from handlers.coreml.evaluation.blobs import Blob

    bench = lab.bench(tmp_path / "scratch")
    folder = shutil.copytree(sound[variant], tmp_path / "damaged")
    name = "layers_1_mlp_down_proj_weight"
    named = [one for one in package.read(folder / "model.mlpackage").operators if one.outputs and name in one.outputs[0][0]]
    bounds = [bound for one in named for given in one.inputs.values() for bound in given]
    (blob,) = (
        one for one in (*(one.value for one in named), *bounds)
        if isinstance(one, Blob) and (one.dtype != "float16" or variant == "coreml")
    )  # fmt: skip
    whole = bytearray(blob.path.read_bytes())
    place = int.from_bytes(whole[blob.offset + 16 : blob.offset + 24], "little") + 512
    whole[place : place + 64] = np.random.default_rng(0).integers(0, 100, 64, np.uint8).tobytes()
    blob.path.write_bytes(whole)
    told = bench.told_of_weights(variant, folder)
    assert told is not None and "model.layers.1.mlp.down_proj.weight is not that of the merge" in told
    assert bench.checked(variant, folder).verdict == "failed"


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("damage", ["a state that is not written", "a state that is written one row late", "a table of angles"])
def test_a_program_that_was_damaged_is_caught(damage: str, lab: sabotage.Lab, sound: dict[str, Path], tmp_path: Path) -> None:  # R4.5
    from handlers.coreml import library
    from handlers.coreml.evaluation import package

    bench = lab.bench(tmp_path / "scratch")
    folder = shutil.copytree(sound["coreml"], tmp_path / "damaged")
    file = folder / "model.mlpackage/Data/com.apple.CoreML/model.mlmodel"
    model = library.proto().Model.FromString(file.read_bytes())
    (block,) = model.mlProgram.functions["main"].block_specializations.values()
    written = next(one for one in block.operations if one.type == "write_state")
    if damage == "a state that is not written":
        block.operations.remove(written)
    elif damage == "a state that is written one row late":
        others = [one for one in block.operations if one.type == "write_state"]
        written.inputs["data"].arguments[0].name = others[2].inputs["data"].arguments[0].name  # of the other layer, which comes later
        block.operations.remove(written)
        block.operations.append(written)
    else:
        path = folder / "model.mlpackage"
        table = next(one for one in package.read(path).operators if one.kind == "const" and "_table_" in one.outputs[0][0] and one.value)
        whole = bytearray(table.value.path.read_bytes())
        place = int.from_bytes(whole[table.value.offset + 16 : table.value.offset + 24], "little")
        size = int(np.prod(table.value.shape)) * 2
        whole[place : place + size] = whole[place + 64 : place + size] + bytes(64)
        table.value.path.write_bytes(whole)
    file.write_bytes(model.SerializeToString())
    assert bench.checked("coreml", folder).verdict == "failed"
