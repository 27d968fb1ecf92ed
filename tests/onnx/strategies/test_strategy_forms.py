"""What a strategy may give up, what is said of it, and that the reduced graphs say what torch says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from handlers.families.base import Form
from handlers.folder.fixed_window import Window
from handlers.graphs import graphset
from handlers.onnx.export import profiles, stage
from handlers.onnx.export.history import FILE, History, PastExport
from handlers.onnx.options import OnnxOptions
from handlers.onnx.tracing.exporters import Request, legacy
from handlers.onnx.tracing.strategies import STRATEGIES, Strategy, named
from tests.onnx.conftest import Exported, make_context, prompts, silent, torch_logits

LEGACY = named(STRATEGIES, "legacy-eager")
WHOLE = Form()


def refuses(request: Request) -> ir.Model:
    raise RuntimeError("something new")


def order(
    profile: str, known: PastExport | None = None, *, experts: bool = False, external: bool = False, opset: int = 18, wanted: str = ""
) -> list[str]:
    rows = profiles.order(
        STRATEGIES, profile, opset=opset, form=WHOLE, experts=experts, external=external, known=known, wanted=wanted
    )  # fmt: skip
    return [row.name for row in rows]


def fixed_at_two(request: Request) -> ir.Model:
    """Refuses a dynamic batch as the newer exporter does where a model's code fixes it."""
    if 0 in request.part.signature.axes["input_ids"]:
        raise ValueError("Received user-specified dim hint Dim.DYNAMIC, but tracing inferred a static shape of 2 for dimension")
    return legacy(request)


# R7.1
def test_profiles_give_up_nothing_something_or_anything() -> None:
    assert {"dynamo-eager", "legacy-rewritten", "optimum", "layers"} <= set(order("conservative"))
    lossy = ["dynamo-opset", "dynamo-one-row", "dynamo-no-cache", "dynamo-window", "legacy-static"]
    assert not set(lossy) & set(order("conservative"))
    assert [name for name in order("balanced") if name in lossy] == lossy[:2]
    assert [name for name in order("aggressive") if name in lossy] == lossy
    assert "legacy-eager" not in order("conservative", opset=23) and "legacy-eager" in order("balanced", opset=23)


def test_auto_gives_up_less_the_larger_the_model_is() -> None:
    assert [profiles.settled("auto", size) for size in (10**8, 3 * 10**9, 7 * 10**10)] == ["aggressive", "balanced", "conservative"]
    assert profiles.settled("balanced", 10**8) == "balanced"


def test_what_worked_before_comes_first_and_a_mixture_starts_with_its_own_way() -> None:
    assert order("balanced")[0] == "dynamo-eager"
    assert order("balanced", PastExport(strategy="legacy-eager"))[:2] == ["legacy-eager", "dynamo-eager"]
    assert order("balanced", experts=True)[0] == "dynamo-experts"
    assert order("conservative", PastExport(strategy="legacy-static"))[0] == "dynamo-eager"
    assert "dynamo-external" not in order("balanced", external=True)
    assert order("balanced", PastExport(strategy="legacy-eager"), wanted="optimum")[:3] == ["optimum", "legacy-eager", "dynamo-eager"]
    assert order("conservative", opset=23, wanted="optimum")[0] == "dynamo-eager"  # it writes none so new


@pytest.mark.slow
# R7.3
def test_one_row_at_a_time_where_the_batch_is_fixed(pico_base: Path, tmp_path: Path) -> None:
    context = make_context(tmp_path, "onnx", {"merge": pico_base}, pico_base)
    one_row = Strategy("dynamo-one-row", fixed_at_two, "eager", axes="lengths")
    output = stage.export(context, silent(), (Strategy("first", fixed_at_two, "eager"), one_row))
    assert output.figures["attempts"][0]["code"] == "axis-specialized"
    assert [(one.wanted, one.taken) for one in output.fallbacks] == [
        ("first", "dynamo-one-row"), ("any number of rows", "one row at a time"),
    ]  # fmt: skip
    graphs = graphset.read(Path(context.staging))
    shapes = {port.name: port.shape for port in graphs.graphs[0].inputs}
    assert shapes["input_ids"] == (1, "sequence") and shapes["past_key_values.0.key"] == (1, 2, "past", 16)
    assert graphs.extra == {"dynamic_axes": "lengths"}


@pytest.fixture(scope="module")
def static(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The pico base as a window of fixed size, after a way that failed."""
    context = make_context(tmp_path_factory.mktemp("static"), "onnx", {"merge": pico_base}, pico_base)
    output = stage.export(context, silent(), (Strategy("first", refuses), named(STRATEGIES, "legacy-static")))
    return Exported(pico_base, Path(context.staging), output)


# R7.3, R7.1
def test_a_graph_of_fixed_size_says_what_torch_says_up_to_its_window(static: Exported) -> None:
    session = onnxruntime.InferenceSession(str(static.folder / "model.onnx"), providers=["CPUExecutionProvider"])
    shapes = {value.name: value.shape for value in session.get_inputs()}
    assert shapes == {"input_ids": [1, 128], "attention_mask": [1, 128], "position_ids": [1, 128]}
    window = Window(session)
    for batch, tokens, padding in ((1, 1, 0), (3, 9, 2), (2, 128, 5)):
        ids, mask = prompts(batch, tokens, padding)
        found = window.logits(ids, mask, np.maximum(mask.cumsum(1) - 1, 0))
        real = mask.astype(bool)
        assert np.abs(found - torch_logits(static.source, ids, mask))[real].max() < 1e-4
    with pytest.raises(ValueError, match="takes 128 tokens, not 129"):
        window.logits(*(np.ones((1, 129), np.int64) for _ in range(3)))


# R7.3
def test_each_thing_given_up_is_a_recorded_fallback(static: Exported) -> None:
    assert [(one.wanted, one.taken) for one in static.output.fallbacks] == [
        ("first", "legacy-static"),
        ("any number of rows", "one row at a time"),
        ("any length", "a window of fixed size, padded on the right"),
        ("a KV cache", "no cache: each new token needs a pass over all tokens"),
    ]
    assert all("RuntimeError: something new" in one.reason for one in static.output.fallbacks)
    assert graphset.read(static.folder).extra == {"cache": False, "dynamic_axes": "none", "window": 128}


@pytest.mark.slow
def test_no_cache_that_was_asked_for_is_no_loss(pico_base: Path, tmp_path: Path) -> None:
    context = make_context(tmp_path, "onnx", {"merge": pico_base}, pico_base)
    work = context.work.with_options(OnnxOptions(cache=False, external_data="always"))
    output = stage.export(context.model_copy(update={"work": work}), silent(), (LEGACY,))
    assert output.fallbacks == [] and output.figures["outputs"] == ["logits"]
    assert output.figures["external_data"] is True
    assert (Path(context.staging) / "model.onnx.data").is_file()


@pytest.mark.slow
def test_a_way_that_worked_is_taken_first_next_time(pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "STRATEGIES", (Strategy("first", refuses), LEGACY))
    first = make_context(tmp_path / "1", "onnx", {"merge": pico_base}, pico_base)
    output = stage.run(first, silent())
    assert [row["strategy"] for row in output.figures["attempts"]] == ["first", "legacy-eager"]
    second = make_context(tmp_path / "2", "onnx", {"merge": pico_base}, pico_base).model_copy(update={"cache": first.cache})
    output = stage.run(second, silent())
    assert [row["strategy"] for row in output.figures["attempts"]] == ["legacy-eager"] and output.figures["profile"] == "aggressive"


def test_a_loss_taken_from_memory_is_recorded_with_its_reason(pico_base: Path, tmp_path: Path) -> None:
    context = make_context(tmp_path, "onnx", {"merge": pico_base}, pico_base)
    known = PastExport(strategy="legacy-no-cache", failed={"dynamo-eager": "data-dependent"})
    output = stage.export(context, silent(), (named(STRATEGIES, "legacy-no-cache"),), known)
    (fallback,) = output.fallbacks
    assert fallback.wanted == "a KV cache" and "dynamo-eager: data-dependent (at an earlier export" in fallback.reason


@pytest.mark.parametrize("content", [b"", b"[]", b'{"key": 1}', b"\xff\xfe", b'{"key": {"strategy": 3}}'])
def test_a_memory_that_can_t_be_read_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert History(tmp_path).get("key") is None
    History(tmp_path).put("key", PastExport(strategy="legacy-eager"))
    assert History(tmp_path).get("key") == PastExport(strategy="legacy-eager")


def test_a_memory_that_can_t_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    History(tmp_path / "file").put("key", PastExport(strategy="legacy-eager"))


def test_another_opset_is_the_nearest_that_runtimes_know() -> None:
    other = named(STRATEGIES, "dynamo-opset")
    assert [other.opset(wanted) for wanted in (18, 19, 22, 23, 99)] == [20, 18, 21, 21, 23]
