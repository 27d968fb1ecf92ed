"""Programs that need no decomposition are translated as they are; the graph is the one that comes of the decomposed program."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from handlers.onnx.tracing import exporters, lowering
from tests.onnx.layers import deep_models
from tests.sampling import some

DECOMPOSED = {"GPT-OSS": "aten.add_.Tensor"}
"""Models of which a program has to be decomposed, with the first operator for that."""


class Computes(torch.nn.Module):
    """A module that computes a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(self, x, y)


def translated(function: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> tuple[ir.Model, Counter[str]]:
    """The graph of a module of x and y, whose first axes are dynamic, and how its program was lowered."""
    with lowering.lightly() as ways, torch.no_grad():
        program = torch.onnx.export(
            Computes(function).eval(), (x, y), dynamo=True, input_names=["x", "y"], opset_version=18, verbose=False,
            dynamic_shapes=({0: torch.export.Dim.DYNAMIC},) * 2,
        )  # fmt: skip
    assert program is not None
    return program.model, ways


def run(model: ir.Model, x: torch.Tensor, y: torch.Tensor) -> list[np.ndarray]:
    proto = ir.to_proto(model)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": x.numpy(), "y": y.numpy()}
    found: list[np.ndarray] = session.run(None, {port.name: feeds[port.name] for port in session.get_inputs()})
    return found


def changed(z: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    change(z)
    return z


def seen(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    view = z.transpose(1, 2)
    z.add_(y)
    return view * 3


def twice(z: torch.Tensor, y: torch.Tensor) -> None:
    part = z.add_(y)[0]
    z.mul_(3)
    z += part


def used_before_and_after(z: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    before = z + 1
    other = z.div_(y.exp())
    return before, z * 2, other.transpose(1, 2) + 1


LIGHT: dict[str, Callable[..., Any]] = {
    "conversions": lambda self, x, y: (x.to(torch.float64).to(torch.float32) + y.long(), x.type_as(y) * 1, y.to("cpu") + x.to(x.dtype)),
    "conversion of an output": lambda self, x, y: ((x + 1).to(torch.float32), (y > 0).to(torch.float32), (x + y).contiguous()),
    "flattened": lambda self, x, y: (x.flatten(0, 1) + 1, x.flatten() + 1, (x.flatten(-2) + y.flatten(1)).flatten(0, -1)),
    "turned around": lambda self, x, y: x @ y[0].T + x.sum(0).T.sum(),
    "chunks": lambda self, x, y: (x.chunk(2, -1)[0] + 1, torch.cat(y.chunk(4, 2)[::-1], 1), x.chunk(3, dim=1)[2] * 2),
    "in place": lambda self, x, y: used_before_and_after(x * 3, y),
    "in place, an output": lambda self, x, y: changed(x * 2, lambda z: z.add_(y)),
    "in place, one of several": lambda self, x, y: y.topk(3)[0].div_(2).sum(1) + x[:, 0, :3],
    "in place, with integers": lambda self, x, y: (x.long() * 3).add_(y.long()) + 1,
    "in place, with a number": lambda self, x, y: (x * 3).mul_(0.5).relu() + y,
    "in place, with a factor": lambda self, x, y: (x * 3).add_(y, alpha=2) + 0,
    "the larger ones": lambda self, x, y: torch.max(x, y) - torch.min(x, y * 2),
    "logic": lambda self, x, y: (((x > 0) & (y > 0)) | (x > 1)).float() * 1,
    "what changes nothing": lambda self, x, y: self.dropout(x).contiguous() + y.detach() + torch.tensor([0.5, 1.0, 2.0, 3.0]),
    "viewed": lambda self, x, y: x.transpose(1, 2).contiguous().view(x.shape[0], 12) + y.permute(0, 2, 1).contiguous().view(-1, 12),
    "reshaped": lambda self, x, y: x.transpose(1, 2).reshape(x.shape[0], -1) + y.transpose(1, 2).reshape(-1, 12),
}
HEAVY: dict[str, tuple[Callable[..., Any], str]] = {
    "in place, a view of an input": (lambda self, x, y: x.transpose(1, 2).mul_(2) + y.transpose(1, 2), "aten.mul_.Tensor"),
    "in place, one of several parts": (
        lambda self, x, y: torch.cat((x * 2).chunk(2, -1)[1].mul_(2).split(1, -1)) + y[:, :, :1].sum(),
        "aten.mul_",
    ),
    "in place, an input": (lambda self, x, y: x.add_(y) * 1, "aten.add_.Tensor"),
    "in place, a part": (lambda self, x, y: changed(x * 2, lambda z: z[:, 0].add_(y[:, 0])), "aten.add_.Tensor"),
    "in place, seen by a view": (lambda self, x, y: seen(x * 2, y), "aten.add_.Tensor"),
    "in place, another dtype": (lambda self, x, y: (x.half() * 2).add_(y) + 1, "aten.add_.Tensor"),
    "in place, a comparison": (lambda self, x, y: (x * 2).gt_(y) + 1, "aten.gt_.Tensor"),
    "in place, a power": (lambda self, x, y: (x * 2).pow_(2) + y, "aten.pow_.Scalar"),
    "in place, twice": (lambda self, x, y: (x * 2).add_(y).mul_(3) + 1, "aten.mul_.Tensor"),
    "in place, twice, seen in between": (lambda self, x, y: changed(x * 2, lambda z: twice(z, y)) + 1, "aten.mul_.Tensor"),
    "an input that is an output": (lambda self, x, y: (x, x + y), "the input x is an output too"),
    "twice the same output": (lambda self, x, y: [x + y] * 2, "an output twice"),
    "a composite view": (lambda self, x, y: x.unflatten(2, (2, 2)).sum(2) + y.sum(), "aten.unflatten.int"),
    "without an own function": (lambda self, x, y: torch.special.zeta(x * x + 2, y * y + 1), "aten.special_zeta"),
    "training": (lambda self, x, y: torch.nn.functional.dropout(x + y, 0.5, training=True), "aten.dropout.default in training"),
    "chunks of a dynamic axis": (lambda self, x, y: x.chunk(2, 0)[0].sum() + y, "aten.chunk.default of an axis"),
}


def joined(names: Sequence[str]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function that computes all of these, as one program."""

    def compute(self: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = [LIGHT[name](self, x, y) for name in names]
        return tuple(value for one in found for value in (one if isinstance(one, tuple) else (one,)))

    return compute


@pytest.mark.parametrize("names", some([tuple(LIGHT), *((name,) for name in LIGHT)], of=len(LIGHT) + 1), ids="; ".join)
def test_a_program_without_an_obstacle_is_only_tidied(names: tuple[str, ...]) -> None:
    torch.manual_seed(1)
    x, y, function = torch.randn(3, 3, 4), torch.randn(3, 3, 4), joined(names)
    model, ways = translated(function, x, y)
    assert ways == {"": 1}
    for rows in (3, 5):
        x, y = torch.randn(rows, 3, 4), torch.randn(rows, 3, 4)
        for mine, theirs in zip(run(model, x, y), Computes(function).eval()(x, y), strict=True):
            assert mine.dtype == theirs.numpy().dtype
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", HEAVY)
def test_what_has_to_be_decomposed_is_told(name: str) -> None:
    function, obstacle = HEAVY[name]
    rows = ({0: torch.export.Dim.DYNAMIC},) * 2
    with torch.no_grad():
        program = torch.export.export(Computes(function).eval(), (torch.randn(4, 3, 4), torch.randn(4, 3, 4)), dynamic_shapes=rows)
    assert obstacle in lowering.obstacle(program, {torch.ops.aten.special_zeta.default})


STEPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "scaled": lambda t, u: t * 2 + 1,
    "sum": lambda t, u: t + u,
    "largest": lambda t, u: torch.max(t, u),
    "where": lambda t, u: torch.where((t > 0) & (u > 0) | (t > 1), t, u),
    "half": lambda t, u: t.half(),
    "integer": lambda t, u: t.to(torch.int64, copy=True),
    "as the other": lambda t, u: t.type_as(u),
    "with the other, in place": lambda t, u: t.add_(u),
    "halved, in place": lambda t, u: t.mul_(0.5),
    "compared, in place": lambda t, u: t.gt_(u),
    "a part, in place": lambda t, u: t[..., 0].add_(1),
    "a view": lambda t, u: t.transpose(-1, -2),
    "highest": lambda t, u: t.topk(2)[0],
    "a view of nothing else, in place": lambda t, u: (t * 2).unsqueeze(0).squeeze(0).add_(u),
    "first rows": lambda t, u: t[1:],
    "contiguous": lambda t, u: t.contiguous().view(t.shape[0], -1),
    "turned and contiguous": lambda t, u: t.transpose(-1, -2).contiguous().view(-1, 2, 2),
    "reshaped": lambda t, u: t.transpose(-1, -2).reshape(-1, 2),
    "flat": lambda t, u: t.flatten(-2),
    "flat from the left": lambda t, u: t.flatten(0, 1),
    "chunk": lambda t, u: t.chunk(2, -1)[1],
    "uneven chunks": lambda t, u: torch.cat(t.chunk(3, -1)[::-1], -1),
    "spread": lambda t, u: t.unsqueeze(1).expand(-1, 2, *t.shape[1:]),
    "detached": lambda t, u: t.detach(),
    "dropout": lambda t, u: torch.nn.functional.dropout(t, 0.5, training=False),
}
"""What a random program does with two of the tensors that it has so far."""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(
    steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6),
    outputs=st.lists(st.integers(0, 7), min_size=1, max_size=3),
)
def test_a_tidied_program_computes_what_the_model_computes(steps: list[tuple[str, int, int]], outputs: list[int]) -> None:
    def follow(_: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = [x * 3, y + 1]
        for name, one, other in steps:
            found.append(STEPS[name](found[-1 - one % len(found)], found[-1 - other % len(found)]))
        return tuple(found[-1 - number % len(found)] * 1 if number % 2 else found[-1 - number % len(found)] for number in outputs)

    def inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(rows)
        return torch.randn(rows, 3, 4, generator=generator), torch.randn(rows, 3, 4, generator=generator)

    module = Computes(follow).eval()
    try:
        with torch.no_grad():
            wanted = {rows: module(*inputs(rows)) for rows in (3, 4, 6)}
            program = torch.export.export(module, inputs(4), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},) * 2)
            for rows in wanted:  # not every number of rows may be allowed
                program.module(check_guards=False)(*inputs(rows))
    except Exception:  # shapes that do not fit together, or a program that torch.export refuses
        assume(False)
    if why := lowering.obstacle(program, ()):
        event(f"decomposed: {why}")
        return
    event("tidied")
    lowering.tidy(program)
    with torch.no_grad():
        for rows, theirs in wanted.items():
            for mine, one in zip(program.module(check_guards=False)(*inputs(rows)), theirs, strict=True):
                assert mine.dtype == one.dtype
                torch.testing.assert_close(mine, one, equal_nan=True)


def test_the_decomposition_is_called_where_it_is_needed() -> None:
    function = HEAVY["in place, a part"][0]
    with lowering.lightly() as ways:
        program = torch.export.export(Computes(function).eval(), (torch.randn(2, 3), torch.randn(2, 3)))
        assert "add_" not in str(program.run_decompositions({}).graph) and "add_" in str(program.graph)
    assert list(ways) == ["aten.add_.Tensor"]
    assert "add_" not in str(program.run_decompositions({}).graph) and ways.total() == 1, "outside torch is as it was"


@pytest.mark.slow
def test_a_program_that_can_not_be_translated_after_all_is_decomposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(program: torch.export.ExportedProgram) -> None:
        tidied.append(program)
        raise KeyError("val")

    tidied = list[torch.export.ExportedProgram]()
    monkeypatch.setattr(lowering, "tidy", breaking)
    source = deep_models.make(tmp_path / "model", "Llama", num_hidden_layers=1)
    made = deep_models.run(deep_models.job(tmp_path / "job", source, templates=False))
    assert len(tidied) == 1 and made.output.strategy == "dynamo-eager" and not made.output.fallbacks


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one != "Phi 3")) for one in deep_models.MODELS])
def test_every_family_has_the_graph_of_the_decomposed_program(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, lightly = Counter[str](), lowering.lightly

    @contextlib.contextmanager
    def watched() -> Iterator[Counter[str]]:
        with lightly() as ways:
            yield ways
        seen.update(ways)

    @contextlib.contextmanager
    def never() -> Iterator[Counter[str]]:
        yield Counter()

    fewer = {"num_hidden_layers": 1} if name == "Phi 3" else {}  # of the quick one
    source, graphs = deep_models.make(tmp_path / "model", name, **fewer), dict[str, dict[str, Any]]()
    for way, manager in (("lightly", watched), ("decomposed", never)):
        monkeypatch.setattr(exporters, "lightly", manager)
        folder = deep_models.run(deep_models.job(tmp_path / way, source, templates=False)).folder
        graphs[way] = {path.name: deep_models.canonical(_without_allowzero(path)) for path in folder.glob("*.onnx")}
    assert set(seen) == {DECOMPOSED.get(name, "")}
    for file, (outputs, nodes) in graphs["decomposed"].items():
        mine, others = graphs["lightly"][file]
        assert mine == outputs
        assert others.total() <= nodes.total() + 3, "a size may be asked of two tensors"


def _without_allowzero(path: Path) -> Path:
    """The graph as if no axis had no elements, where `Reshape` means the same in both of its forms."""
    model, plain = ir.load(path), path.with_suffix(".plain")
    for node in model.graph:
        if node.op_type == "Reshape":
            node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)
    ir.save(model, plain)
    return plain
