"""Artifacts that are wrong in one way each are caught, each with the reason that fits; sound ones of the same models pass."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx_ir as ir
import pytest
from filelock import FileLock

from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.plan import spec_of
from handlers.graphs.weights import rounded_weights
from handlers.validate.folders import portability
from tests.onnx.small import derived
from tests.sampling import some
from tests.sharing import shared
from tests.validate import artifacts, sabotage, zoo
from tests.validate.bench import Bench, measured
from tests.validate.sabotage import CASES, VARIANTS, Lab, Sabotage
from tests.validate.test_encoders import SEQUENCE, classify


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The trained models. Artifacts of other sources are added as they are asked for."""
    return shared(tmp_path_factory, "sabotage", sabotage.make)


@pytest.fixture(scope="session")
def bench(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Their live model, measured."""
    with FileLock(lab.folder / "lock"):
        return lab.bench(tmp_path_factory.mktemp("bench") / "scratch")


@pytest.mark.parametrize("variant", some(VARIANTS, of=13))
def test_sound_artifacts_of_the_models_pass(variant: str, lab: Lab, bench: Bench) -> None:
    with FileLock(lab.folder / "lock"):
        folder, source = lab.made("sound", variant), lab.source(variant)
    check = bench.check(variant, folder, source)
    assert check.verdict is Verdict.PASSED, check.reasons
    low, high = check.figures["fine_tuning_interval"]
    assert 0.9 < low <= high < 1.1
    assert not any("grow" in note or "blind" in note for note in check.figures["notes"]), check.figures["notes"]


@pytest.mark.parametrize(("case", "variant"), some(CASES, of=64), ids=lambda value: value if isinstance(value, str) else value.name)
def test_each_sabotage_is_caught_with_its_reason(case: Sabotage, variant: str, lab: Lab, bench: Bench, tmp_path: Path) -> None:
    with FileLock(lab.folder / "lock"):
        lab.made(case.source, variant), lab.source(variant)
    check = sabotage.checked(lab, bench, case, variant, tmp_path)
    assert check.verdict is Verdict.FAILED
    assert re.search(case.words, " | ".join(check.reasons)), check.reasons


def _permute_names(folder: Path) -> None:
    names = list(json.loads((folder / "config.json").read_text())["id2label"].values())
    zoo.edit_json(folder / "config.json", id2label={str(number): name for number, name in enumerate(names[1:] + names[:1])})


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["pytorch", "onnx", "onnx-int8"])
def test_a_label_map_that_is_permuted_is_caught(variant: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    def make(folder: Path) -> tuple[dict[str, Path], Path, Path]:
        base = zoo.make_encoder_base(folder / "base", SEQUENCE, num_labels=3)
        targets = ["query", "value", "output.dense"]
        adapter = zoo.train_adapter(
            base, folder / "adapter", SEQUENCE, classify, load={"num_labels": 3}, target_modules=targets, task_type="SEQ_CLS"
        )
        merged = zoo.merge(base, adapter, folder / "merged")
        graph = zoo.export_encoder(merged, folder / "onnx", SEQUENCE, ("logits",))
        smaller = artifacts.quantize(graph, folder / "onnx-int8")
        return {"pytorch": merged, "onnx": graph, "onnx-int8": smaller}, base, adapter

    made, base, adapter = shared(tmp_path_factory, "classifier", make)
    bench = measured(adapter, base, made["pytorch"], tmp_path / "scratch")
    sound = bench.check(variant, made[variant])
    assert sound.verdict is Verdict.PASSED, sound.reasons
    assert sound.figures["texts"] == 4 < sound.figures["positions"], "the halves of a text are no texts of their own"
    folder = artifacts.copy(made[variant], tmp_path / "artifact")
    _permute_names(folder)
    check = bench.check(variant, folder)
    assert check.verdict is Verdict.FAILED
    assert any("its labels have other names than the live model's" in reason for reason in check.reasons), check.reasons


def test_another_rope_theta_makes_differences_that_grow(lab: Lab, bench: Bench) -> None:
    with FileLock(lab.folder / "lock"):
        sound, other = lab.made("sound", "pytorch"), lab.made("rope theta", "pytorch")
    growth = {folder: bench.check("pytorch", folder).figures["growth"] for folder in (sound, other)}
    assert growth[other] > 1.3 * growth[sound]


def test_the_worst_position_of_an_artifact_is_shown_as_text(lab: Lab, bench: Bench) -> None:
    with FileLock(lab.folder / "lock"):
        other = lab.made("swapped layers", "pytorch")
    worst = bench.check("pytorch", other).figures["worst"]
    sample = bench.reference.samples[worst["number"] - 1]
    assert worst["prompt"] == sample.text and worst["live"] != worst["artifact"]
    assert worst["position"] in sample.keep and worst["position_kl"] >= worst["kl"]
    if worst["position"] < len(sample.ids) and not sample.text.startswith(worst["before"]):
        assert worst["before"] in sample.text


@pytest.mark.slow
def test_a_fingerprint_of_weights_passes_every_way_of_rounding(lab: Lab, tmp_path: Path) -> None:
    with FileLock(lab.folder / "lock"):
        source = lab.made("sound", "onnx")
    graph = ir.load(source / "model.onnx")
    for algorithm in ("rtn", "k-quant", "hqq"):
        for symmetric in (True, False):
            folder = derived("int4", source, tmp_path / f"{algorithm}-{symmetric}", algorithm=algorithm, symmetric=symmetric).folder
            told = rounded_weights.difference(ir.load(folder / "model.onnx"), graph, nearest=algorithm != "hqq")
            assert told is None, (algorithm, symmetric, told)


@pytest.mark.slow
def test_the_check_of_a_form_reads_what_it_was_made_of(lab: Lab) -> None:
    with FileLock(lab.folder / "lock"):
        source, stale = lab.made("sound", "onnx"), lab.made("stale", "onnx-int8")
    assert "onnx" in spec_of("check-onnx-int8").needs
    told = portability.check(stale, source=source, nearest=True)
    assert told.fault is None and told.weights is not None and "were rounded from others" in told.weights
    assert portability.check(stale).weights is None
