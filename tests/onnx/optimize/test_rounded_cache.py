"""A KV cache of int8: both branches round and read it alike, no later position leaves its range, and it can be undone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.folder.playback import Player
from handlers.graphs.attention import shared_buffers
from handlers.graphs.attention.fusing import OPERATOR, fuse, spell_out
from handlers.graphs.attention.reading import OtherFormError
from handlers.graphs.attention.rounded_cache import LARGEST, VALUE, is_rounded, reach, round_cache, widen_cache
from handlers.graphs.graphset import GraphSet, read
from handlers.graphs.sessions import check_form, open_session
from handlers.onnx.optimize.judging.random_inputs import Maker
from handlers.onnx.quantize import cache, int8, int8_static, weight_only
from handlers.web import layout
from tests.onnx.conftest import Exported, make_context, silent
from tests.onnx.optimize.optimizing import copied
from tests.onnx.optimize.test_cached_attention import DECODERS, NOT_FUSED, QUICK, operators
from tests.sampling import some

Outputs = dict[str, np.ndarray]
STAGES = {"onnx-int8": int8.run, "onnx-int4": weight_only.int4, "onnx-int8-static": int8_static.run}


pytestmark = pytest.mark.usefixtures("equally_fast")


def answers(path: Path, feeds: Outputs) -> Outputs:
    session = open_session(path, 1)
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, feeds), strict=True))


def seen_in(graphs: GraphSet, folder: Path) -> Outputs:
    """What the cases of a folder leave in its caches."""
    found: Outputs = {}
    for case in Maker(graphs.graphs[0], json.loads((folder / "config.json").read_text())).cases():
        for name, array in answers(folder / graphs.graphs[0].file, case.feeds).items():
            if name.startswith("present."):
                past, largest = name.replace("present.", "past_key_values."), np.abs(array).max(axis=(0, 2), initial=0.0)
                found[past] = np.maximum(found.get(past, 0.0), largest)
    return found


def rounded(feeds: Outputs, model: ir.Model) -> Outputs:
    """Inputs with their pasts as a graph with a rounded cache takes them."""
    scales = {name: value.const_value.numpy() for name, value in model.graph.initializers.items() if name.endswith(".scale")}
    turned = {name: np.rint(feeds[name] / scales[f"{name}.scale"]).clip(-128, 127).astype(np.int8) for name in feeds if "past_" in name}
    return feeds | turned


def at_tokens(name: str, array: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """What of an output is no padding's."""
    if name.startswith("present."):
        return array.transpose(0, 2, 1, 3)[mask == 1].astype(np.float32)
    return array[mask[:, -array.shape[1] :] == 1]


def unlike(found: Outputs, wanted: Outputs, mask: np.ndarray) -> dict[str, float]:
    """Largest difference of logits, in their standard deviation, and of caches, in what they hold."""
    apart: dict[str, float] = {"logits": 0.0, "present": 0.0}
    for name, array in wanted.items():
        share = float(np.std(array)) if name == "logits" else 1.0
        largest = np.abs(at_tokens(name, found[name], mask) - at_tokens(name, array, mask)).max(initial=0.0)
        apart[name.split(".")[0]] = max(apart[name.split(".")[0]], float(largest) / share)
    return apart


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DECODERS])
def test_both_branches_round_alike_for_all_shapes_and_in_one_buffer(
    name: str, two_layers: Callable[..., Exported], tmp_path: Path
) -> None:  # fmt: skip
    """The standard's operators are what the operator's arithmetic is measured by."""
    folder = copied(two_layers(name), tmp_path)
    if name in NOT_FUSED:
        with pytest.raises(OtherFormError, match="not read by onnxruntime's operator alone"):
            round_cache(ir.load(folder / "model.onnx"), {})
        return
    model = fuse(ir.load(folder / "model.onnx"))
    ir.save(model, folder / "fused.onnx")
    round_cache(model, seen_in(read(folder), folder))
    plain, wide = folder / "plain.onnx", folder / "wide.onnx"
    ir.save(model, folder / "rounded.onnx")
    ir.save(spell_out(ir.load(folder / "rounded.onnx")), plain)
    undone = widen_cache(ir.load(folder / "rounded.onnx"))
    assert is_rounded(ir.load(folder / "rounded.onnx")) and not is_rounded(undone)
    assert sorted(operators(undone)) == sorted(operators(ir.load(folder / "fused.onnx")))
    ir.save(undone, wide)
    for path in (folder / "rounded.onnx", plain, wide):
        check_form(path)
    shapes, session = set(), open_session(folder / "rounded.onnx", 1)
    for case in Maker(read(folder).graphs[0], json.loads((folder / "config.json").read_text())).cases():
        mask, feeds = case.feeds["attention_mask"], rounded(case.feeds, model)
        found, spelt = answers(folder / "rounded.onnx", feeds), answers(plain, feeds)
        assert found["present.0.key"].dtype == np.int8
        # A value halfway between two steps may go either way.
        assert (apart := unlike(found, spelt, mask))["logits"] < 1e-3 and apart["present"] <= 1, (case, apart)
        rows, tokens = feeds["input_ids"].shape
        past = mask.shape[1] - tokens
        if rows == 1 or tokens == 1 or past == 0:
            shared = dict(zip(found, shared_buffers.run(session, feeds), strict=True))
            assert unlike(shared, found, mask) == {"logits": 0.0, "present": 0.0}, "what lies behind the past is read"
        assert unlike(answers(wide, case.feeds), answers(folder / "fused.onnx", case.feeds), mask)["logits"] == 0.0
        shapes.add((rows > 1, tokens > 1, past > 0))
    assert shapes >= {(False, False, True), (True, False, True), (True, True, True), (True, True, False)}


@given(st.integers(0, 1 << 31), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_keys_that_positions_turn_stay_within_what_was_seen_of_them(seed: int, tokens: int) -> None:
    """However far a text goes on: a channel that held little at first may hold all of its pair later."""
    generator = np.random.default_rng(seed)
    plain = generator.standard_normal((2, tokens, 16)) * generator.exponential(3.0, (2, 1, 16))
    angles = 10000.0 ** (-np.arange(8) / 8)

    def turned(positions: np.ndarray) -> np.ndarray:
        cosine, sine = (np.tile(function(positions[:, None] * angles), 2) for function in (np.cos, np.sin))
        return plain * cosine + np.concatenate([-plain[..., 8:], plain[..., :8]], axis=-1) * sine

    operator = ir.Node("com.microsoft", "GroupQueryAttention", [ir.Value(), ir.node("RotaryEmbedding", [ir.Value()]).outputs[0]])
    other = ir.Node("com.microsoft", "GroupQueryAttention", [ir.Value(), ir.node("Reshape", [ir.Value()]).outputs[0]])
    here = np.abs(turned(np.arange(tokens))).max(axis=1)
    later = np.abs(turned(np.arange(tokens) + generator.integers(0, 100_000))).max(axis=1)
    assert (later <= reach(operator, 1, here) + 1e-9).all()
    assert (later <= reach(other, 1, here) + 1e-9).all()
    assert (reach(operator, VALUE, here) == here).all()


@pytest.fixture
def exported(qwen3_auto: Exported) -> Path:
    """A trained model's graphs in fp32, whose attention was shown to be equal in one operator. Read only."""
    return qwen3_auto.folder


def stage(folder: Path, job_folder: Path, name: str = "onnx-int8", **options: Any) -> Exported:
    options = {"optimize": "auto", "kv_cache": "int8", "accuracy_level": 1, **options}
    context = make_context(job_folder, name, {"onnx": folder}, folder, **options)
    output = STAGES[name](context, silent())
    return Exported(folder, Path(context.staging), output)


def started(graphs: GraphSet, ids: Iterable[int], first: int = 0) -> Outputs:
    """Inputs of a decoder for a text with nothing before it, at positions from `first` on."""
    row = np.array([list(ids)])
    feeds = {"input_ids": row, "attention_mask": np.ones_like(row), "position_ids": np.arange(row.size)[None] + first}
    ports = [port for port in graphs.graphs[0].inputs if port.name.startswith("past_")]
    return feeds | {port.name: np.zeros((1, port.shape[1], 0, port.shape[3]), port.dtype) for port in ports}


@pytest.mark.parametrize("name", some(STAGES, of=3))
def test_a_quantized_variant_keeps_its_cache_in_int8_where_that_is_asked_for(name: str, exported: Path, tmp_path: Path) -> None:
    kept, made = stage(exported, tmp_path / "float", name, kv_cache="float"), stage(exported, tmp_path / "int8", name)
    ports = {port.name: port.dtype for graph in read(made.folder).graphs for port in (*graph.inputs, *graph.outputs)}
    assert {ports[name] for name in ports if "past_" in name or "present" in name} == {"int8"}
    assert {port.dtype for port in read(kept.folder).graphs[0].inputs if "past_" in port.name} == {"float32"}
    assert made.output.figures["kv_cache"] == "int8" and 0 < float(made.output.figures["kv_cache_error"]) < 0.3
    assert "kv_cache" not in kept.output.figures and made.output.fallbacks == kept.output.fallbacks
    assert {path.name for path in made.folder.iterdir()} == {path.name for path in kept.folder.iterdir()}
    model = ir.load(made.folder / "model.onnx")
    ids = [3, 17, 40, 5, 9, 33, 12, 8, 61, 7]
    last = list(Player(made.folder, read(made.folder), 1).play(ids))[-1]
    whole = answers(made.folder / "model.onnx", started(read(made.folder), ids))
    if name != "onnx-int8":  # that one rounds activations by the rows that go through together
        assert np.abs(last.outputs["logits"][0, -1] - whole["logits"][0, -1]).max() < 1e-3 * whole["logits"].std()
    largest = max(np.abs(array.astype(int)).max() for name, array in whole.items() if name.startswith("present."))
    assert LARGEST / 2 < largest < LARGEST, "the range is used, and nothing is cut"
    assert is_rounded(model)


def test_positions_far_behind_the_calibrations_texts_are_not_cut(exported: Path, tmp_path: Path) -> None:
    made = stage(exported, tmp_path)
    for start in (0, 1000, 30000):
        found = answers(made.folder / "model.onnx", started(read(made.folder), range(3, 43), start))
        cut = [np.mean(np.abs(array.astype(int)) >= LARGEST) for name, array in found.items() if name.endswith(".key")]
        assert max(cut) == 0.0, (start, cut)


@pytest.mark.parametrize(("options", "reason"), [
    ({"optimize": "none"}, 'onnx.optimize = "none" keeps'),
    pytest.param({"optimize": "basic"}, 'onnx.optimize = "basic" keeps', marks=pytest.mark.slow),
    pytest.param({"cache": False}, "", marks=pytest.mark.slow),
])  # fmt: skip
def test_where_it_can_not_be_done_the_result_says_so_and_the_graph_stays(
    options: dict[str, Any], reason: str, qwen3: Exported, export: Callable[..., Exported], tmp_path: Path
) -> None:
    plain = options == {"optimize": "none"}
    folder = qwen3.folder if plain else export(qwen3.source, **{"optimize": "auto", **options}).folder
    made = stage(folder, tmp_path / "int8", **options)
    assert len(made.output.fallbacks) == bool(reason), "where there is no cache nothing was asked for"
    for told in made.output.fallbacks:
        assert (told.wanted, told.taken) == ("a KV cache of int8", "one of fp32") and reason in told.reason
    kept = stage(folder, tmp_path / "float", kv_cache="float", **options)
    assert (made.folder / "model.onnx").read_bytes() == (kept.folder / "model.onnx").read_bytes()
    assert {path.name for path in made.folder.iterdir()} == {path.name for path in kept.folder.iterdir()}


def test_a_graph_that_is_not_the_same_model_any_more_is_not_taken(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "extents", lambda player, rows: {
        port.name: np.full((port.shape[1], port.shape[3]), 1e4) for port in player._graphs[0].inputs if "past_" in port.name
    })  # fmt: skip
    made = stage(exported, tmp_path)
    assert "of their standard deviation" in made.output.fallbacks[0].reason
    assert not is_rounded(ir.load(made.folder / "model.onnx"))


def test_where_onnxruntime_does_not_take_it_the_graph_stays(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one, whose errors are no RuntimeError: when the graph is opened, and when it runs."""
    real = cache.round_cache
    for number, setting in enumerate(({"no_such_attribute": 1}, {"kv_cache_bit_width": 5})):

        def spoilt(model: ir.Model, extents: Outputs, setting: dict[str, int] = setting) -> None:
            real(model, extents)
            for node in model.graph.all_nodes():
                if node.op_type == OPERATOR:
                    node.attributes.update({name: ir.AttrInt64(name, value) for name, value in setting.items()})

        monkeypatch.setattr(cache, "round_cache", spoilt)
        made = stage(exported, tmp_path / str(number))
        assert len(made.output.fallbacks) == 1 and "kv_cache" not in made.output.figures
        assert not list(made.folder.glob("*.cache")) and not is_rounded(ir.load(made.folder / "model.onnx"))
        answers(made.folder / "model.onnx", started(read(made.folder), [3, 5, 8]))


def test_a_page_gets_caches_of_floats(exported: Path, tmp_path: Path) -> None:
    """transformers.js makes no others."""
    made, kept = stage(exported, tmp_path / "int8"), stage(exported, tmp_path / "float", kv_cache="float")
    (tmp_path / "web").mkdir(), (tmp_path / "other").mkdir()
    written = layout.write(made.folder, read(made.folder).graphs[0], tmp_path / "web", "_quantized")
    wanted = layout.write(kept.folder, read(kept.folder).graphs[0], tmp_path / "other", "_quantized")
    assert written.graph.inputs == wanted.graph.inputs and written.graph.outputs == wanted.graph.outputs
    feeds = started(read(kept.folder), [3, 5, 8])
    found, expected = (answers(root / one.graph.file, feeds) for root, one in ((tmp_path / "web", written), (tmp_path / "other", wanted)))
    assert all((found[name] == expected[name]).all() for name in expected)
