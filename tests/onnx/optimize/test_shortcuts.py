"""What is spared of torch's exporter and of onnxscript's rewriter changes no graph, and is given up where it does not work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as passes
import pytest
import torch
from onnxscript import optimizer
from onnxscript.rewriter import pattern

from handlers.onnx.optimize import matching
from handlers.onnx.tracing import exporters, shortcuts
from tests.onnx.layers import deep_models
from tests.sampling import some


class Computes(torch.nn.Module):
    """A module that computes a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "integers and fractions": lambda x, y: (x + y, y * x - 2, torch.where(y > 1, x, y), y / 3, y + 0.5),
    "half and whole": lambda x, y: (x.half() + x, x.half() * y, (x.half() + 1).softmax(-1), x.bfloat16() * 2.5),
    "powers": lambda x, y: (x**2, y**2, y**0.5, 2**x, x.pow(y), (x * x + 1).rsqrt()),
    "comparisons": lambda x, y: (x > y, y <= 2.5, (x > 0) == (y > 0), (x > 0) + y, torch.maximum(x, y.float())),
    "sums": lambda x, y: (y.sum(), (y > 1).sum(-1), y.float().mean(), x.sum(0) + y, (x > 0).cumsum(0), y.prod(0)),
    "sizes": lambda x, y: (x * x.shape[0], y + y.shape[0], x.shape[0] / 2 + y, x.new_zeros(x.shape[0]) + x.shape[0]),
    "parts": lambda x, y: (torch.cat([x[:, :2], y.half()[:, :2]], 1), y.topk(2)[0] * 0.5, x.split(2, -1)[1] + y[:, :2]),
    "a branch": lambda x, y: torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a * 2 - b, (x, y)),
}


def exported(function: Callable[..., Any]) -> bytes:
    """The graph of a module of x and y, whose first axes are dynamic."""
    example = torch.arange(12.0).reshape(3, 4) - 5, torch.arange(12).reshape(3, 4) % 5
    with torch.no_grad():
        program = torch.onnx.export(
            Computes(function).eval(), example, dynamo=True, input_names=["x", "y"], opset_version=18, verbose=False,
            dynamic_shapes=({0: torch.export.Dim.DYNAMIC},) * 2,
        )  # fmt: skip
    assert program is not None
    passes.ClearMetadataAndDocStringPass()(program.model)  # the numbers of code that torch makes are told there
    made: bytes = ir.to_proto(program.model).SerializeToString(deterministic=True)
    return made


@pytest.mark.parametrize("name", some(MIXED, of=8))
def test_types_are_promoted_as_by_torch_alone(name: str) -> None:
    plain = exported(MIXED[name])
    with shortcuts.shortcuts() as taken, matching.by_operator():
        assert exported(MIXED[name]) == plain
    assert taken


@contextlib.contextmanager
def _without() -> Iterator[list[str]]:
    yield []


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one != "GPT-2")) for one in deep_models.MODELS])
def test_every_family_has_the_same_graph(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {"num_hidden_layers": 1} if name == "GPT-2" else {}  # of the quick one
    source, graphs = deep_models.make(tmp_path / "model", name, **fewer), list[dict[str, Any]]()
    for spared in (True, False):
        if not spared:
            monkeypatch.setattr(exporters, "shortcuts", _without)
            monkeypatch.setattr(exporters, "by_operator", contextlib.nullcontext)
        folder = deep_models.run(deep_models.job(tmp_path / str(spared), source, templates=False)).folder
        graphs.append({path.name: deep_models.canonical(path) for path in folder.glob("*.onnx")})
    assert graphs[0] and graphs[0] == graphs[1]


def test_a_program_that_can_not_be_translated_with_them_is_translated_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = list[str]()

    @contextlib.contextmanager
    def breaking() -> Iterator[list[str]]:
        with shortcuts.shortcuts() as taken:
            yield taken
            ran.extend(taken)
            raise KeyError("val")

    monkeypatch.setattr(exporters, "shortcuts", breaking)
    source = deep_models.make(tmp_path / "model", "Llama", num_hidden_layers=1)
    made = deep_models.run(deep_models.job(tmp_path / "job", source, templates=False))
    assert ran and made.output.strategy == "dynamo-eager" and not made.output.fallbacks


def test_what_torch_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = exported(MIXED["powers"])
    monkeypatch.setattr(shortcuts, "_look_up", lambda module, name: None)
    with shortcuts.shortcuts() as taken:
        assert exported(MIXED["powers"]) == wanted
    assert not taken


@pytest.mark.slow
def test_each_of_the_names_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = shortcuts._look_up, list[tuple[str, str]]()

    def listening(module: str, name: str) -> Any:
        asked.append((module, name))
        return found(module, name)

    monkeypatch.setattr(shortcuts, "_look_up", listening)
    with shortcuts.shortcuts():
        pass
    assert len(asked) > 4
    wanted = exported(MIXED["powers"])
    for missing in tuple(asked):
        monkeypatch.setattr(shortcuts, "_look_up", lambda *name, missing=missing: None if name == missing else found(*name))
        with shortcuts.shortcuts():
            assert exported(MIXED["powers"]) == wanted, missing


def test_outside_torch_is_as_it_was() -> None:
    from torch._dynamo import config
    from torch.onnx._internal.exporter import _registration
    from torch.onnx._internal.fx.passes import type_promotion

    def state() -> list[Any]:
        functions = _registration.onnxscript_apis.get_torchlib_ops, type_promotion._TypePromotionInterpreter.run_node
        return [config.fake_tensor_cache_enabled, torch.fx.config.do_not_emit_stack_traces, *functions, pattern.RewriteRule.try_rewrite]

    before = state()
    with pytest.raises(ZeroDivisionError), shortcuts.shortcuts(), matching.by_operator():
        assert all(mine != theirs for mine, theirs in zip(state(), before, strict=True))
        raise ZeroDivisionError
    assert state() == before


class _NoSquare(pattern.RewriteRuleClassBase):
    def pattern(self, op: Any, x: Any) -> Any:
        return op.Sqrt(op.Mul(x, x))

    def rewrite(self, op: Any, x: Any) -> Any:
        return op.Abs(x)


class _Module(pattern.RewriteRuleClassBase):
    """The domain of its operator is not known beforehand."""

    def pattern(self, op: Any, x: Any) -> Any:
        return pattern.torch_module_op.Sin(x)

    def rewrite(self, op: Any, x: Any) -> Any:
        return op.Neg(x)


class _TwoEnds(pattern.RewriteRuleClassBase):
    def pattern(self, op: Any, x: Any, y: Any) -> Any:
        return op.MatMul(x, y, _outputs=["one"]), op.Tanh(x, _outputs=["other"])

    def rewrite(self, op: Any, x: Any, y: Any, **_: Any) -> Any:
        return op.Gemm(x, y), op.Sinh(x)


GRAPH = ir.from_onnx_text(
    """<ir_version: 8, opset_import: ["" : 18, "other" : 1, "pkg.torch.nn" : 1]>
    agraph (float[4,4] x, float[4,4] y) => (float[4,4] a, float[4,4] b, float[4,4] c, float[4,4] d, float[4,4] e) {
        square = Mul(x, x)
        a = Sqrt(square)
        b = pkg.torch.nn.Sin(y)
        c = MatMul(x, y)
        d = Tanh(x)
        e = other.Sqrt(x)
    }"""
)


def test_rules_rewrite_what_they_rewrite_without_the_choice_by_operator() -> None:
    def rewritten(*rules: Any) -> tuple[int, bytes]:
        model = GRAPH.clone()
        count = sum(pattern.RewriteRuleSet([rule.rule()]).apply_to_model(model) for rule in rules)
        optimizer.optimize_ir(model)
        return count, ir.to_proto(model).SerializeToString(deterministic=True)

    for rules in ([_NoSquare], [_TwoEnds], [_Module], [_NoSquare, _TwoEnds, _Module]):
        plain = rewritten(*rules)
        with matching.by_operator():
            assert rewritten(*rules) == plain and plain[0] >= 1


def test_a_rule_is_not_tried_on_nodes_of_other_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, original = list[str](), pattern.RewriteRule.try_rewrite

    def watched(self: Any, model: Any, graph: Any, node: ir.Node, **how: Any) -> Any:
        tried.append(node.op_type)
        return original(self, model, graph, node, **how)

    monkeypatch.setattr(pattern.RewriteRule, "try_rewrite", watched)
    with matching.by_operator():
        pattern.RewriteRuleSet([_TwoEnds.rule()]).apply_to_model(GRAPH.clone())
        pattern.RewriteRuleSet([_Module.rule()]).apply_to_model(GRAPH.clone())
    assert tried[0] == "MatMul" and set(tried[1:]) >= {"Mul", "Sqrt", "Sin", "Tanh"}
