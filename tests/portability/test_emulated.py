"""The quantized artifacts of a trained tiny model say the same on processors that are not here. Slow: every instruction is translated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from handlers.folder.playback import Player, tokenize
from handlers.graphs import graphset
from tests import models
from tests.onnx.conftest import Exported
from tests.onnx.small import derived
from tests.portability import emulation, graphs
from tests.portability.conftest import Answers, read
from tests.portability.test_kernels import SCHEMES, wrong

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("answers.py")
X86 = ("Nehalem", "Haswell", "EPYC-Rome", "Skylake-Server", "Cascadelake-Server")
FORMS = {
    "int8": ("int8", {}), "int8-static": ("int8_static", {}), "int8-weight-1": ("int8_weight", {"accuracy_level": 1}),
    "int8-weight-4": ("int8_weight", {"accuracy_level": 4}), "int4-1": ("int4", {"accuracy_level": 1}),
    "int4-4": ("int4", {"accuracy_level": 4}), "int4-k-4": ("int4", {"accuracy_level": 4, "algorithm": "k-quant"}),
}  # fmt: skip
"""Form → stage and options."""
CLOSE = {"int8": 0.03, "int8-static": 0.03, "int8-weight-1": 1e-4, "int8-weight-4": 0.02, "int4-1": 1e-4, "int4-4": 0.04, "int4-k-4": 0.04}
"""Root mean square of the difference between two processors, in standard deviations of the logits. What is computed in fp32 differs by
rounding; where activations are rounded to 8 bits, a value on the border between two steps may fall to either side."""


@pytest.fixture(scope="session")
def tiny(qwen3: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all forms of the trained model with inputs of prefill and cached decoding, and of hostile products."""
    folder = tmp_path_factory.mktemp("tiny") / "graphs"
    folder.mkdir()
    player = Player(qwen3.folder, graphset.read(qwen3.folder), 1)
    calls = [call for row in tokenize(qwen3.folder, models.TEXTS[:3]).rows for call in player.play(row)]
    for name, (stage, options) in FORMS.items():
        made = derived(stage, qwen3.folder, tmp_path_factory.mktemp(name) / "made", **options)
        onnx.save(onnx.load(made.folder / "model.onnx"), folder / f"{name}.onnx")
        for number, call in enumerate(calls):
            np.savez(folder / f"{name}.{number}.npz", **call.feeds)
    weights = graphs.hostile_weights()
    graphs.store(graphs.dynamic(weights), folder, "hostile", graphs.activations())
    graphs.store(graphs.static(weights, -2.0, 20.0), folder, "hostile-static", graphs.activations())
    for place, scheme in enumerate(SCHEMES):
        for level in (1, 4):
            graphs.store(graphs.blocks(weights, scheme, level), folder, f"hostile-{place}-{level}", graphs.activations())
    return folder


@pytest.fixture(scope="session")
def own(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What this processor says."""
    import sys

    target = tmp_path_factory.mktemp("own") / "answers"
    emulation.run([sys.executable], {}, SCRIPT, tiny, target)
    return read(target)


@pytest.fixture(scope="session")
def arm_root(tmp_path_factory: pytest.TempPathFactory) -> emulation.ArmRoot:
    try:
        return emulation.ArmRoot(tmp_path_factory.mktemp("arm64"))
    except emulation.Unavailable as reason:
        pytest.skip(str(reason))


def check(own: Answers, theirs: Answers) -> None:
    """Compare all answers of another processor with this one's, and the hostile products with what is right."""
    assert theirs.keys() == own.keys()
    found: dict[str, list[float]] = {}
    for name, outputs in theirs.items():
        form = name.rpartition(".")[0]
        if form in FORMS:
            mine, other = own[name]["logits"], outputs["logits"]
            found.setdefault(form, []).append(float(np.sqrt(np.square(mine - other).mean()) / mine.std()))
    differences = {form: round(max(values), 5) for form, values in found.items()}
    print(json.dumps(differences))
    assert all(difference <= CLOSE[form] for form, difference in differences.items()), differences
    weights = graphs.hostile_weights()
    dynamic, static = graphs.dynamic(weights), graphs.static(weights, -2.0, 20.0)
    for number, call in enumerate(graphs.activations()):
        assert wrong(theirs[f"hostile.{number}"]["y"], graphs.right_answer(dynamic, call)) < 1e-5
        assert wrong(theirs[f"hostile-static.{number}"]["y"], graphs.right_answer(static, call, -2.0, 20.0)) < 1e-5
        for place, scheme in enumerate(SCHEMES):
            exact = call @ graphs.dequantized(weights, scheme)
            assert wrong(theirs[f"hostile-{place}-1.{number}"]["y"], exact) < 1e-4
            # By rows at most: half a step of 1/127 of the largest activation in each of the products that are summed.
            step = np.abs(call).max() / 254 * np.sqrt(graphs.INPUTS) * np.abs(graphs.dequantized(weights, scheme)).max()
            assert wrong(theirs[f"hostile-{place}-4.{number}"]["y"], exact) < 2 * step / exact.std()


@pytest.mark.parametrize("cpu", X86)
def test_another_x86_64_processor_says_the_same(own: Answers, tiny: Path, tmp_path: Path, cpu: str) -> None:
    try:
        argv = emulation.x86(cpu)
    except emulation.Unavailable as reason:
        pytest.skip(str(reason))
    # OpenBLAS, which numpy's own sanity check multiplies with, takes QEMU's Nehalem for a processor with AVX.
    environment = {"OPENBLAS_CORETYPE": cpu} if cpu == "Nehalem" else {}
    emulation.run(argv, environment, SCRIPT, tiny, tmp_path / "answers")
    check(own, read(tmp_path / "answers"))


@pytest.mark.parametrize("arm", emulation.ARMS, ids=lambda arm: arm.cpu)
def test_an_arm64_processor_says_the_same(
    own: Answers, tiny: Path, arm_root: emulation.ArmRoot, tmp_path: Path, arm: emulation.Arm
) -> None:
    argv, environment = arm_root.python(arm)
    emulation.run(argv, environment, SCRIPT, tiny, tmp_path / "answers")
    check(own, read(tmp_path / "answers"))
