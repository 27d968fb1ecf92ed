"""LiteRT's models of every kind say what the programs say that they were made of; what can't be made is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.graphs import graphset
from handlers.static_programs import description
from handlers.static_programs.published.feeding import Text, TooLongError
from tests import stages
from tests.onnx import qwen
from tests.stages import refused
from tests.static_programs import forms as static_forms
from tests.static_programs.forms import program, programs, said, unheard
from tests.static_programs.test_programs import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]
BOUNDS = {"litert": 1e-4, "litert-int8": 0.6, "litert-int4": 5.0}
"""Variant → largest difference, in standard deviations of the outputs; the models are untrained."""
LENGTH = 96


def session(folder: Path, role: str) -> Any:
    from handlers.litert.session import Session

    return Session(folder / description.read(folder).graph(role).file, role, 2)


@pytest.mark.parametrize("name", KINDS)
def test_every_form_says_what_its_programs_say(name: str, tmp_path: Path) -> None:  # R2.4
    model = KINDS[name](tmp_path / "model")
    source, _ = programs(model, tmp_path / "programs", context_length=LENGTH)
    wanted = said(source, program)
    made_of, sizes = source, []
    for variant, bound in BOUNDS.items():
        folder, output = stages.make(variant, made_of, tmp_path / variant)
        made_of = folder if variant == "litert" else made_of
        experts = name == "Qwen3Moe" and variant != "litert"
        for ours, theirs in zip(said(folder, session), wanted, strict=True):
            assert ours.shape == theirs.shape
            # An expert that is chosen otherwise changes everything behind it.
            assert np.abs(ours - theirs).max() <= bound * theirs.std() * (4 if experts else 1), variant
        assert any("are left as they are" in one for one in output.warnings) == experts, output.warnings
        if variant != "litert":
            assert (output.figures["small_share"] > 0.8) != experts
        sizes.append(output.figures["graph_bytes"])
    assert sizes[0] > sizes[1] > sizes[2]
    made = graphset.read(tmp_path / "litert-int4" / "staging")
    assert made.dtype == "int4" and all(one.file.endswith(".tflite") for one in made.graphs)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return static_forms.tied(tmp_path_factory)


def test_prefill_and_decode_share_their_weights_and_so_do_a_tied_head_and_its_table(tied: tuple[Path, Path], tmp_path: Path) -> None:
    model, source = tied
    weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    folder, output = stages.make("litert", source, tmp_path / "plain")
    assert list(output.figures["signatures"]["model"]) == ["prefill", "decode"]
    plain = (folder / "model.tflite").stat().st_size
    assert weights - 10_000 < plain < weights + 150_000, "the graphs come on top, and no second copy of the weights"
    int8, made = stages.make("litert-int8", folder, tmp_path / "int8")
    assert made.figures["weights"]["int8"] * 4 < weights
    assert (int8 / "model.tflite").stat().st_size < weights / 4 + 150_000


def test_four_bits_are_for_products_in_blocks_that_fit_and_eight_for_table_and_head(tied: tuple[Path, Path], tmp_path: Path) -> None:
    _, source = tied
    folder, _ = stages.make("litert", source, tmp_path / "plain")
    _, output = stages.make("litert-int4", folder, tmp_path / "int4", block_size=64)
    figures = output.figures
    assert figures["weights"]["int8"] == 1024 * 96, "table and head, once"
    assert figures["weights"]["int4"] > 0 and figures["small_share"] > 0.95
    # Rows of 96 weights (from the hidden size) are no multiple of 64, those of 64 and 128 are.
    assert figures["block_size"] == 64 and set(figures["blocks"]) == {"32", "64"}
    _, wide = stages.make("litert-int4", folder, tmp_path / "wide", block_size=128)
    assert set(wide.figures["blocks"]) == {"32", "64", "128"}
    assert wide.figures["graph_bytes"] < figures["graph_bytes"]


def test_rows_that_no_block_fits_get_one_scale(tmp_path: Path) -> None:
    model = qwen.make(tmp_path / "model", hidden_size=40, intermediate_size=72)
    source, _ = programs(model, tmp_path / "programs", context_length=LENGTH)
    folder, _ = stages.make("litert", source, tmp_path / "plain")
    made, output = stages.make("litert-int4", folder, tmp_path / "int4")
    assert output.figures["blocks"]["rows"] > 0
    assert all(np.isfinite(array).all() for array in said(made, session))


def test_a_text_that_fills_the_room_is_the_longest(tied: tuple[Path, Path], tmp_path: Path) -> None:
    _, source = tied
    folder, _ = stages.make("litert", source, tmp_path / "plain")
    wanted, found = Text(program(source, "model"), LENGTH), Text(session(folder, "model"), LENGTH)
    tokens = list(range(5, 5 + LENGTH))
    assert np.abs(found.feed(tokens) - wanted.feed(tokens)).max() < 1e-3
    with pytest.raises(TooLongError, match="room for 96 tokens"):
        found.feed([7])


def test_repeated_heads_are_shared_and_the_result_is_the_same(tied: tuple[Path, Path]) -> None:
    import torch

    from handlers.litert import rewriting

    _, source = tied
    plain, changed = (torch.export.load(source / "model.pt2").module(check_guards=False) for _ in range(2))
    assert rewriting.share_heads(changed) == 4, "the keys and the values of two layers"
    assert not [node for node in changed.graph.nodes if node.target is torch.ops.aten.expand.default and len(node.args[1]) == 5]
    graph = description.read(source).graph("model")
    random = torch.Generator().manual_seed(0)
    cache = [torch.randn(*map(int, port.shape), generator=random) for port in graph.inputs[2:]]
    given = (torch.randint(5, 90, (1, 9), generator=random).int(), torch.arange(20, 29)[None].int(), *cache)
    for ours, theirs in zip(changed(*given), plain(*given), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_an_operator_that_litert_does_not_know_is_one_sentence(tied: tuple[Path, Path], tmp_path: Path) -> None:
    fault = refused(
        r"litert-torch does not convert it .*bessel_j0", stages.make, "litert", unheard(tied[1], tmp_path / "programs"), tmp_path / "work"
    )
    assert fault.remedy == "leave litert out of export.variants"
    assert not list((tmp_path / "work" / "staging").glob("*.tflite"))
