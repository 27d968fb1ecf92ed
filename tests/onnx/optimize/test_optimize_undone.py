"""A step of the optimization that goes wrong is undone and named, and the folder is as whole as before it."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from handlers.graphs import graphset
from handlers.onnx.optimize import fusions
from handlers.onnx.optimize.judging import acceptance, equivalence, timing
from handlers.onnx.optimize.judging.random_inputs import Maker, RandomInputs
from handlers.onnx.optimize.step import Step, StepInput
from handlers.onnx.optimize.steps import CACHED_ATTENTION, STEPS
from tests.onnx.conftest import Exported
from tests.onnx.optimize.optimizing import append, assert_in_order, assert_same, constant, copied, of, put_out, run, tampered
from tests.sampling import some

DIVIDE = next(step for step in STEPS if step.name == "divide")
SLIM = next(step for step in STEPS if step.name == "slim")


@pytest.mark.parametrize(("steps", "kept"), [((SLIM, DIVIDE), ["slim"]), ((DIVIDE, SLIM), [])])
def test_what_the_model_itself_refuses_is_undone_from_the_last_step_on(
    steps: tuple[Step, ...], kept: list[str], qwen3: Exported, tmp_path: Path
) -> None:
    folder = copied(qwen3, tmp_path)

    def verify(tried: Path) -> float:
        if all(node.op_type != "Reciprocal" for node in onnx.load(tried / "model.onnx").graph.node):
            raise ValueError("the graph's logits differ from torch's")
        return 0.25

    optimized = run(folder, verify=verify, steps=steps)
    assert [report.name for report in optimized.reports if report.kept] == kept
    assert {report.reason for report in optimized.reports if not report.kept} == {
        "against the model itself: the graph's logits differ from torch's"
    }
    assert optimized.error == (0.25 if kept else None)
    assert_in_order(qwen3.folder, folder, optimized.graphs)
    assert_same(qwen3.folder, folder)


@pytest.mark.parametrize("trial", [False, True])
def test_what_the_model_itself_refuses_proves_nothing(trial: bool, qwen3: Exported, tmp_path: Path) -> None:
    """Neither the step that is undone, nor one that was tried on the graph of a step that is undone."""
    folder, undone = copied(qwen3, tmp_path), DIVIDE if trial else CACHED_ATTENTION

    def verify(tried: Path) -> float:
        if (tried / "model.onnx").read_bytes() != (qwen3.folder / "model.onnx").read_bytes():
            raise ValueError("the graph's logits differ from torch's")
        return 0.25

    optimized = run(folder, verify=verify, steps=(undone,), trials=(CACHED_ATTENTION,) if trial else ())
    assert of(optimized, undone.name).reason == "against the model itself: the graph's logits differ from torch's"
    assert [(report.kept, report.good) for report in optimized.reports] == [(False, False)] * len(optimized.reports)
    if trial:
        assert of(optimized, CACHED_ATTENTION.name).reason == "tried on a graph that was then undone: divide"


@pytest.mark.parametrize(
    ("how", "said"),
    some([
        ("scaled", "logits of .* differs by 0.0001 of its largest value"),
        ("nan", "values that are not finite"),
        ("past", "InvalidArgument|onnxruntime|ONNXRuntime|differs"),
        ("renamed", r"outputs changed: missing \['logits'\], unexpected \['scores'\]"),
        ("reordered", "outputs changed their order"),
        ("fixed", "^logits .* is in the place of logits"),
        ("unknown", "Frobnicate"),
        ("opset", "opset 19 instead of 18"),
        ("double", "larger: "),
        ("fails", "^KeyError: 'shape of"),
    ], of=2),
)  # fmt: skip
def test_a_broken_step_is_undone_and_named(how: str, said: str, qwen3: Exported, tmp_path: Path) -> None:
    folder = copied(qwen3, tmp_path)
    broken = Step("broken", "basic", tampered(how))
    optimized = run(folder, "basic", steps=(broken, DIVIDE))
    report = of(optimized, "broken")
    assert not report.kept and re.search(said, report.reason), report.reason
    assert "\n" not in report.reason
    assert of(optimized, "divide").kept, "the steps after it go on"
    assert_in_order(qwen3.folder, folder, optimized.graphs)
    assert_same(qwen3.folder, folder)


def test_a_folder_whose_every_step_is_undone_is_as_it_was(qwen3: Exported, tmp_path: Path) -> None:
    folder = copied(qwen3, tmp_path)
    run(folder, steps=tuple(Step(how, "basic", tampered(how)) for how in ("scaled", "renamed", "fails")))
    assert {path.name for path in folder.iterdir()} == {path.name for path in qwen3.folder.iterdir()}
    assert_same(qwen3.folder, folder)
    first, second = (onnx.load(one / "model.onnx") for one in (qwen3.folder, folder))
    weights = [{one.name: onnx.numpy_helper.to_array(one).tobytes() for one in proto.graph.initializer} for proto in (first, second)]
    assert first.graph.node == second.graph.node and weights[0] == weights[1]


def test_what_has_just_changed_nothing_is_not_done_again(qwen3: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ready(model: ir.Model) -> ir.Model:
        done.append(model)
        return made_ready(model)

    done, made_ready = list[ir.Model](), fusions.ready
    monkeypatch.setattr(fusions, "ready", ready)  # as "unflatten" calls it
    fold, unflatten = (next(step for step in STEPS if step.name == name) for name in ("fold", "unflatten"))
    first = run(copied(qwen3, tmp_path / "first"), steps=(unflatten,))
    assert len(done) == 1 and of(first, "unflatten").reason == "changed nothing"
    second = run(copied(qwen3, tmp_path / "second"), steps=(fold, unflatten, DIVIDE, unflatten, fold, unflatten))
    assert [report.reason == "changed nothing" for report in second.reports] == [True, True, False, True, True, True]
    assert len(done) == 2, "once more, after the graph has changed"


@pytest.mark.parametrize("held", [acceptance.HELD, 0])
def test_a_graph_is_asked_once_for_answers_that_are_small(
    held: int, qwen3: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def watched(self: acceptance.Arena, session: onnxruntime.InferenceSession, case: RandomInputs) -> list[np.ndarray]:
        sessions.append(session)  # or another one might get its id
        asked[id(session), case.label] += 1
        return original(self, session, case)

    asked, sessions, original = Counter[tuple[int, str]](), list[onnxruntime.InferenceSession](), acceptance.Arena._run
    monkeypatch.setattr(acceptance.Arena, "_run", watched)
    monkeypatch.setattr(acceptance, "HELD", held)
    broken = Step("broken", "basic", tampered("scaled"))
    optimized = run(copied(qwen3, tmp_path), steps=(DIVIDE, broken, SLIM, Step("again", "basic", tampered("longer"))))
    assert [report.kept for report in optimized.reports] == [True, False, True, False]
    assert "differs by 0.0001" in of(optimized, "broken").reason
    assert (max(asked.values()) == 1) is bool(held)


def test_texts_are_fed_too(qwen3: Exported, tmp_path: Path) -> None:
    folder = copied(qwen3, tmp_path)
    cases = Maker(graphset.read(folder).graphs[0], json.loads((folder / "config.json").read_text())).cases()
    rare = min(set(range(320)) - {int(token) for case in cases for token in case.feeds["input_ids"].flat})

    def wrong_for_one_token(subject: StepInput) -> ir.Model:
        model = subject.model
        found = append(model, "Equal", model.graph.inputs[0], constant(model, "added.rare", np.array(rare)))
        number = append(model, "Cast", found, to=int(ir.DataType.FLOAT))
        wide = append(model, "Unsqueeze", number, constant(model, "added.axes", np.array([2])))
        put_out(model, lambda value: append(model, "Add", value, wide))
        return model

    report = of(run(folder, steps=(Step("trap", "basic", wrong_for_one_token),), texts=((5, rare, 9), (5, 9))), "trap")
    assert not report.kept and "logits of text 1 differs" in report.reason


def test_a_graph_that_nothing_can_be_fed_to_is_left_alone(qwen3: Exported, tmp_path: Path) -> None:
    folder = copied(qwen3, tmp_path)
    (folder / "config.json").write_text("{}")
    optimized = run(folder)
    assert {report.reason for report in optimized.reports} == {"not tried: the configuration does not say how many tokens there are"}
    shutil.copy(qwen3.folder / "config.json", folder)
    assert_same(qwen3.folder, folder)


@pytest.mark.slow
def test_a_slower_graph_is_undone(qwen3: Exported, tmp_path: Path) -> None:
    folder = copied(qwen3, tmp_path)
    report = of(run(folder, race=None, steps=(Step("slow", "extended", tampered("slowed")),)), "slow")
    assert not report.kept and report.reason.startswith(("slower: prefill", "slower: decode")), report.reason
    assert report.error is not None and report.error < equivalence.BOUND
    assert set(report.ms_before) == set(report.ms_after) == {"prefill", "decode"}


@pytest.mark.parametrize(
    ("body", "less"),
    [
        ("{ y = MatMul(x, w) }", True),
        ("{ a = Identity(x) y = MatMul(a, w) }", False),
        ("{ a = MatMul(x, w) y = Abs(a) }", False),
        ("{ y = MatMul(x, v) }", False),
    ],
)
def test_what_has_fewer_nodes_and_nothing_else_is_not_raced(body: str, less: bool) -> None:
    def graph(text: str) -> ir.Model:
        weights = {name: np.ones(shape, np.float32) for name, shape in (("w", (64, 64)), ("v", (64, 65))) if f" {name})" in text}
        made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> g (float[n,64] x) => (float[n,k] y) {text}')
        made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
        return ir.from_proto(made)

    assert acceptance.only_less(graph(body), graph("{ a = Identity(x) y = MatMul(a, w) }")) is less


def test_noise_is_not_slowness() -> None:
    verdicts = []
    for seed in range(300):
        noise = 1 + np.random.default_rng(seed).exponential(0.3, (2, 15))
        verdicts.append(timing.judge(list(noise[0]), list(noise[1])))
    assert verdicts.count("equal") > 0.98 * len(verdicts)
    steady = list(1 + np.random.default_rng(1).normal(0, 0.01, 15))
    assert timing.judge(steady, [1.2 * one for one in steady]) == "slower"
    assert timing.judge(steady, [0.8 * one for one in steady]) == "faster"
    assert timing.judge(steady, [1.01 * one for one in steady]) == "equal"


@pytest.mark.parametrize(("tick", "least", "warming"), [(0.005, "LEAST", 2), (0.01, "LEAST", 2), (0.03, "FEW", 2), (1.0, "FEW", 1)])
def test_both_graphs_take_turns_and_each_is_first_as_often(tick: float, least: str, warming: int) -> None:
    """`tick`: seconds between two looks at the clock."""
    order: list[str] = []
    ticks = (tick * number for number in range(10_000))
    outcome = timing.race(lambda: order.append("before"), lambda: order.append("after"), clock=lambda: next(ticks))
    assert order[2 * warming :][:4] == ["before", "after", "after", "before"]
    assert getattr(timing, least) <= order.count("before") - warming <= getattr(timing, least) + 2
    assert order.count("before") == order.count("after")
    assert outcome.verdict == "equal" and outcome.before == pytest.approx(tick) == outcome.after


@pytest.mark.parametrize(("unrest", "factor", "gain", "rounds", "verdict"), [
    (0.02, 1.0, True, timing.LEAST, "equal"), (0.3, 1.0, True, timing.ENOUGH, "equal"), (0.02, 1.04, True, timing.ENOUGH, "slower"),
    (0.02, 0.9, True, timing.ENOUGH, "faster"), (0.001, 1.029, True, timing.LEAST, "equal"),
    (0.02, 0.9, False, timing.LEAST, "faster"), (0.02, 1.04, False, timing.ENOUGH, "slower"), (0.3, 1.0, False, timing.ENOUGH, "equal"),
])  # fmt: skip
def test_few_rounds_are_enough_only_where_they_show_what_is_asked(
    unrest: float, factor: float, gain: bool, rounds: int, verdict: str
) -> None:  # fmt: skip
    now, ran, random = [0.0], [0, 0], np.random.default_rng(5)

    def one(which: int, pace: float) -> None:
        ran[which] += 1
        now[0] += 0.01 * pace * (1 + unrest * random.random())

    outcome = timing.race(lambda: one(0, 1.0), lambda: one(1, factor), gain=gain, clock=lambda: now[0])
    assert outcome.verdict == verdict and ran == [rounds + timing.WARMING] * 2


def test_a_graph_that_is_neither_smaller_nor_faster_is_not_worth_a_change(qwen3: Exported, tmp_path: Path) -> None:
    folder = copied(qwen3, tmp_path)
    report = of(run(folder, steps=(Step("longer", "basic", tampered("longer")),)), "longer")
    assert not report.kept and report.reason == "no fewer nodes and not faster"
