"""Declarations that do not fit: none of them displaces ours, keeps the plan from being made, or makes an export that never ends."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from daemon.contract.formats import catalog
from daemon.contract.formats.declaration import Format, FormatEntry, Variant
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.plan import plan, variant_names
from handlers.pytorch.format import FORMAT as PYTORCH

ONNX_ENGINE = "handlers.validate.engines.graphs.onnx_causal:OnnxEngine"


def variant(name: str, **changes: Any) -> Variant:
    return replace(PYTORCH.variants[0], name=name, traits=frozenset(), **changes)


def declared(*variants: Variant, name: str, order: int = 500, engines: Mapping[str, Mapping[str, str]] | None = None) -> Format:
    return Format(name=name, about="somebody's", variants=variants, order=order, engines=engines or {})


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module of another package; `take` makes the catalog of ours and of what it declares."""
    module: Any = types.ModuleType("strangers")
    monkeypatch.setitem(sys.modules, "strangers", module)
    ours = catalog.catalog().entries

    def take(*formats: Format) -> catalog.Catalog:
        for one in formats:
            setattr(module, one.name, one)
        catalog.use([*ours, *(FormatEntry(value=f"strangers:{one.name}") for one in formats)])
        return catalog.catalog()

    module.take, module.ours = take, ours
    yield module
    catalog.use(ours)


def test_a_format_that_comes_first_does_not_displace_one_of_ours(strangers: Any) -> None:
    known = strangers.take(declared(variant("onnx"), name="first", order=1))
    names = [one.name for one in known.formats]
    assert names[:3] == ["pytorch", "pytorch-adapter", "onnx"]
    assert len(names) == len(strangers.ours) and "first" not in names
    assert known.problems == ("the format first (strangers:first) was left out: there is another stage onnx",)


@pytest.mark.parametrize("engine", ["onnx", "torch", "live"])
def test_no_format_checks_the_artifacts_of_another_by_its_own_engine(strangers: Any, engine: str) -> None:
    known = strangers.take(declared(variant("mine"), name="evil", engines={engine: {"causal": "evil:Engine"}}))
    assert known.problems == (f"the format evil (strangers:evil) was left out: there is another engine {engine}",)
    assert known.engines["onnx"]["causal"] == ONNX_ENGINE


def test_what_builds_on_a_format_that_is_left_out_is_left_out_too(strangers: Any) -> None:
    known = strangers.take(
        declared(variant("small", needs=("full",)), name="builder", order=400),
        declared(variant("full"), variant("pytorch"), name="clashing", order=500),
    )
    assert [problem.rpartition(": ")[2] for problem in known.problems] == [
        "there is another stage pytorch", "small names a stage full, which does not exist",
    ]  # fmt: skip
    assert "merge" in [spec.name for spec in plan(known.variants)]


def test_a_format_may_have_stages_that_are_made_and_not_published(strangers: Any) -> None:
    inner = StageSpec("inner", "handlers.pytorch.stage:run", 1, needs=("merge",))
    known = strangers.take(Format(name="between", about="", stages=(inner,)), declared(variant("outer", needs=("inner",)), name="user"))
    assert known.problems == () and known.stages["inner"] is inner and "inner" not in known.variants
    assert [spec.name for spec in plan(["outer"])][:3] == ["merge", "inner", "outer"]
    assert "inner" not in variant_names()


def test_a_variant_is_no_smaller_form_of_what_is_not_published(strangers: Any) -> None:
    inner = StageSpec("inner", "handlers.pytorch.stage:run", 1, needs=("merge",))
    outer = variant("outer", needs=("inner",), fallback="inner")
    known = strangers.take(Format(name="mine", about="", stages=(inner,), variants=(outer,)))
    assert "outer names a variant inner, which does not exist" in known.problems[0]


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (StageSpec("inner", "handlers.pytorch.stage", 1), "entry is 'handlers.pytorch.stage'; write module:function"),
        (StageSpec("inner", "a:b", 1, artifact=True), "artifact is for variants alone"),
        (StageSpec("inner", "a:b", 1, needs=("merge", "merge")), "needs names merge more than once"),
        (StageSpec("inner", "a:b", 1, memory_fixed=-1), "a size or a number of threads is negative"),
        (StageSpec("onnx", "a:b", 1), "there is another stage onnx"),
        (StageSpec("inner", "a:b", 1, settings=("none.such",)), "depends on a setting none.such, which does not exist"),
    ],
)
def test_what_is_wrong_with_such_a_stage_is_said(stage: StageSpec, said: str, strangers: Any) -> None:
    known = strangers.take(Format(name="mine", about="", stages=(stage,)))
    assert said in known.problems[0] and "mine" not in [one.name for one in known.formats]


def test_stages_that_wait_for_each_other_are_refused(strangers: Any) -> None:
    known = strangers.take(declared(variant("one", needs=("two",)), variant("two", after=("one",)), name="circle"))
    assert "circle" not in [one.name for one in known.formats]
    assert "waits for itself, through" in known.problems[0]


def test_the_merged_model_is_run_unless_adapters_alone_are_exported() -> None:
    def stages(*variants: str) -> list[str]:
        return [spec.name for spec in plan(variants, speed=False)]

    assert stages("pytorch-adapter") == ["merge", "pytorch-adapter", "reference", "check-pytorch-adapter", "report"]
    assert stages("gguf-adapter") == ["merge", "pytorch-adapter", "gguf-adapter", "reference", "check-gguf-adapter", "report"]
    assert all("merged" in stages(*variants) for variants in (("pytorch",), ("pytorch-adapter", "onnx"), ()))


@pytest.mark.parametrize("stage", ["report", "speed", "merged"])
def test_no_format_waits_for_a_stage_that_comes_after_all_formats(strangers: Any, stage: str) -> None:
    known = strangers.take(declared(variant("late", after=(stage,)), name="late"))
    assert known.problems == (f"the format late (strangers:late) was left out: late names the stage {stage}, which runs after all formats",)


def test_formats_that_fit_stand_in_their_order_and_may_build_on_ours(strangers: Any) -> None:
    known = strangers.take(declared(variant("half", needs=("onnx",), form_of="onnx", fallback="onnx"), name="between", order=25))
    assert known.problems == ()
    assert [one.name for one in known.formats][:4] == ["pytorch", "pytorch-adapter", "onnx", "between"]
    assert [spec.name for spec in plan(["half"])][:3] == ["merge", "onnx", "half"]
