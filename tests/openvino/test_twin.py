"""OpenVINO's models beside the model that their own stored weights give: sound ones equal it, and damaged ones are told."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from handlers.graphs import graphset
from handlers.openvino.twin import stored
from handlers.texts.built_in import BUILT_IN
from handlers.validate.twins import judging
from handlers.validate.twins.messages import Text
from tests.exports.twins import STORED, reasons
from tests.onnx.conftest import make_model
from tests.openvino import damage, forms
from tests.openvino.damage import CASES, FORMS, Damage, answered
from tests.sampling import some
from tests.sharing import shared
from tests.validate import sabotage, zoo
from tests.validate.sabotage import Lab
from tests.validate.test_twins import DECODERS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]
TASKS = {"bert": "text-classification", "roberta": "text-classification", "modernbert": "text-classification"}
STRUCTURE = 2e-3
"""The form's limit."""
KINDS = (*DECODERS, "bert", "roberta", "modernbert", "marian", "t5", "bart")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return shared(tmp_path_factory, "sabotage", sabotage.make)


def made(lab: Lab, variant: str, source: str = "sound") -> Path:
    """A form of a model of the lab. Read only."""
    with FileLock(lab.folder / "lock"):
        place = lab.folder / "openvino" / source
        plain = place / "openvino" / "staging"
        for name in dict.fromkeys(("openvino", variant)):
            if not (place / name).is_dir():
                forms.make(name, lab.made(source, "onnx") if name == "openvino" else plain, place / name)
        return place / variant / "staging"


@pytest.mark.parametrize("variant", ["openvino", *FORMS])
def test_a_sound_form_is_the_model_that_its_own_weights_give(variant: str, lab: Lab) -> None:
    answer = answered(made(lab, variant), lab.made("sound", "pytorch"))
    assert reasons(answer, variant) == ""
    assert answer.error is not None and answer.error < STRUCTURE / 50
    assert answer.rounding is not None and abs(answer.rounding.slope - 1) < judging.SYSTEMATIC / 2


@pytest.mark.parametrize(("case", "variant"), some(CASES, of=24), ids=lambda value: value if isinstance(value, str) else value.name)
def test_each_damage_is_caught_with_its_reason_or_is_harmless(case: Damage, variant: str, lab: Lab, tmp_path: Path) -> None:
    answer = answered(case.apply(made(lab, variant), tmp_path / "damaged"), lab.made("sound", "pytorch"))
    said = reasons(answer, variant)
    if case.words:
        assert re.search(case.words, said), (said, answer)
    else:
        assert not said and answer.error is not None and answer.error <= STRUCTURE, "what passes moves no output by more than that"


@pytest.mark.parametrize("variant", FORMS)
def test_another_checkpoint_is_not_what_rounding_gives(variant: str, lab: Lab) -> None:
    assert re.search(STORED, reasons(answered(made(lab, variant, "stale"), lab.made("sound", "pytorch")), variant))


@pytest.mark.parametrize("texts", [1, 2, 8, 32])
def test_scales_that_texts_choose_are_no_alarm(texts: int, lab: Lab, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    plain = made(lab, "openvino")
    reader = Tokenizer.from_file(str(plain / "tokenizer.json"))
    folder = calibrated(plain, tmp_path / "form", [reader.encode(text).ids for text in BUILT_IN[:texts]])
    assert reasons(answered(folder, lab.made("sound", "pytorch")), "openvino-int4") == ""


def calibrated(plain: Path, target: Path, rows: Sequence[Sequence[int]]) -> Path:
    """The form of 4 bits whose scales were found with texts."""
    from handlers.openvino import library
    from handlers.openvino.converting import compression

    ov = library.openvino()
    shutil.copytree(plain, target, ignore=shutil.ignore_patterns("openvino_model.*"))
    model = compression.int4(ov.Core().read_model(plain / damage.MODEL), 64, rows)
    ov.save_model(model, target / damage.MODEL, compress_to_fp16=False)
    return target


def _model(kind: str, folder: Path) -> Path:
    if kind in DECODERS:
        name, settings = DECODERS[kind]
        return make_model(folder, name, **settings)
    if kind in TASKS:
        return zoo.make_encoder_base(folder, "AutoModelForSequenceClassification", kind, num_labels=3)
    return zoo.make_seq2seq_base(folder, kind)


@pytest.mark.parametrize("kind", some(KINDS, of=13))
def test_sound_forms_of_untrained_models_raise_no_alarm(
    kind: str, pico_base: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.validate.test_twins import _exported

    def make(folder: Path) -> tuple[Path, Path]:
        merged = _model(kind, folder / "merged")
        return merged, _exported(merged, folder / "onnx", pico_base)

    task = "text-generation" if kind in DECODERS else TASKS.get(kind, "text2text-generation")
    merged, graphs = shared(tmp_path_factory, f"openvino-twin-{re.sub('[^a-z0-9]+', '-', kind)}", make)
    numbers = np.random.default_rng(2)
    targets = tuple(map(int, numbers.integers(5, 300, 6))) if task.startswith("text2text") else ()
    given = [Text(ids=[*map(int, numbers.integers(5, 300, count)), 1], targets=targets) for count in (9, 60)]
    plain, _ = forms.make("openvino", graphs, tmp_path / "openvino")
    for variant in FORMS:
        folder, _ = forms.make(variant, plain, tmp_path / variant)
        answer = answered(folder, merged, given, task)
        assert reasons(answer, variant) == "" and answer.error is not None and answer.error < STRUCTURE / 50, answer


def _multiplied(build: Any, columns: int, folder: Path) -> np.ndarray:
    """What OpenVINO multiplies with the unit matrix of so many columns; the model stays in `folder`."""
    from handlers.openvino import library
    from handlers.openvino.session import Session

    ov = library.openvino()
    given = ov.opset13.parameter([columns, columns], np.float32, name="x")
    weight, turned = build(ov)
    model = ov.Model([ov.opset13.matmul(given, weight, False, not turned)], [given], "m")
    ov.save_model(model, folder / "model.xml", compress_to_fp16=False)
    session = Session(folder / "model.xml")
    result: np.ndarray = session.run([session.get_outputs()[0].name], {session.get_inputs()[0].name: np.eye(columns, dtype=np.float32)})[0]
    return result


@pytest.mark.parametrize("kind", ["u4", "i4", "u8", "i8"])
@pytest.mark.parametrize("turned", [False, True])
def test_stored_integers_mean_what_openvino_multiplies(kind: str, turned: bool, tmp_path: Path) -> None:
    rows, columns, block = 24, 96, 32
    numbers = np.random.default_rng(3)
    low, high = {"u4": (0, 16), "i4": (-8, 8), "u8": (0, 256), "i8": (-128, 128)}[kind]
    shape = (columns // block, block, rows) if turned else (rows, columns // block, block)
    small = (columns // block, 1, rows) if turned else (rows, columns // block, 1)

    def build(ov: Any) -> tuple[Any, bool]:
        ops, types = ov.opset13, getattr(ov.Type, kind)

        def integers(*sizes: int) -> Any:
            array = numbers.integers(low, high, sizes)
            return ops.convert(ops.constant(array.astype(np.int8 if low else np.uint8), dtype=types), "f16")

        value = ops.multiply(
            ops.subtract(integers(*shape), integers(*small)), ops.constant(numbers.uniform(0.01, 0.1, small).astype(np.float16))
        )
        matrix = (columns, rows) if turned else (rows, columns)
        return ops.convert(ops.reshape(value, ops.constant(np.array(matrix, np.int64)), False), "f32"), turned

    wanted = _multiplied(build, columns, tmp_path).T
    (weight,) = stored.read(tmp_path / "model.xml")
    assert (weight.use, weight.shape, weight.block) == ("product", (rows, columns), block)
    np.testing.assert_allclose(weight.part(slice(0, rows)).values, wanted, rtol=1e-3, atol=1e-4)


def test_every_model_of_a_folder_is_read(tmp_path: Path, pico_base: Path) -> None:
    from tests.validate.test_twins import _exported

    merged = zoo.make_seq2seq_base(tmp_path / "merged", "t5")
    graphs = _exported(merged, tmp_path / "onnx", pico_base)
    plain, _ = forms.make("openvino", graphs, tmp_path / "openvino")
    folder, _ = forms.make("openvino-int8", plain, tmp_path / "openvino-int8")
    roles = {graph.role: {one.role for one in stored.read(folder / graph.file, graph.role)} for graph in graphset.read(folder).graphs}
    assert len(roles) == 3 and all(found == {role} for role, found in roles.items())
