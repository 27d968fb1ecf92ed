"""Warnings of the tracer are judged by where they come from, and a branch that was fixed the wrong way is caught by the check."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from handlers.families.base import Tracing
from handlers.families.choice import choose
from handlers.families.trace_cases import SHAPES, thresholds
from handlers.families.warnings import tracer_warnings
from handlers.families.warnings.library_warnings import LibraryWarnings
from handlers.onnx.export import stage
from handlers.onnx.tracing.model_rewrites import rewritten
from handlers.onnx.tracing.strategies import STRATEGIES, named
from tests.onnx.conftest import SMALL, Exported, make_context, make_model, silent
from tests.onnx.test_export import assert_equal_to_torch

LEGACY, REWRITTEN = named(STRATEGIES, "legacy-eager"), named(STRATEGIES, "legacy-rewritten")
SCALED = {"max_position_embeddings": 16, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}}


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose rotary embedding is rescaled, by a branch on values, beyond 16 tokens."""
    return make_model(tmp_path_factory.mktemp("scaled") / "llama", "Llama", **{**SMALL, **SCALED})


def export(source: Path, pin: Path, folder: Path, *strategies: Any) -> Exported:
    context = make_context(folder, "onnx", {"merge": source}, pin)
    return Exported(source, Path(context.staging), stage.export(context, silent(), strategies))


# R7.2
def test_warnings_of_a_sound_graph_are_judged_harmless_with_what_was_tried(pico_base: Path, tmp_path: Path) -> None:
    warned = export(pico_base, pico_base, tmp_path, LEGACY).output.warnings
    judged = [line for line in warned if line.startswith("The tracer warned about")]
    assert not any("TracerWarning" in line or "might cause the trace" in line for line in warned)
    assert any("cache_utils.py, get_seq_length: it made this constant: whether the cache is empty" in line for line in judged)
    assert any("masking_utils.py, prepare_padding_mask" in line for line in judged)
    tried = "tested on batch 1, 2 and 3, 1, 3, 7, 9 and 23 tokens at once, a past of 0 to 24, padding on the left and right"
    assert judged and all(tried in line for line in judged)


@pytest.mark.slow
# R7.2
def test_a_branch_that_is_wrong_beyond_the_sample_is_caught_and_rewritten(scaled: Path, pico_base: Path, tmp_path: Path) -> None:
    exported = export(scaled, pico_base, tmp_path, LEGACY, REWRITTEN)
    assert exported.output.strategy == "legacy-rewritten"
    (failed, _) = exported.output.figures["attempts"]
    assert failed["code"] == "graph-differs" and "with a batch of 1, fed 23 + 1 + 9 tokens" in failed["error"]
    assert_equal_to_torch(exported, 2, (30,), 3)


# R7.2
@pytest.mark.slow
def test_a_branch_at_a_length_too_long_to_be_tried_rejects_the_graph(
    scaled: Path, pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from handlers.families import trace_cases

    monkeypatch.setattr(trace_cases, "LONGEST", 18)
    monkeypatch.setattr(trace_cases, "SHAPES", SHAPES[:3])
    exported = export(scaled, pico_base, tmp_path, LEGACY, REWRITTEN)
    (failed, _) = exported.output.figures["attempts"]
    assert failed["code"] == "baked-branch"
    assert "dynamic_frequency_update: the tracer made this constant: which frequencies a rotary embedding uses" in failed["error"]


@pytest.mark.slow
# R7.1, R8.3
def test_the_tracers_missing_key_is_mended_by_masks_without_vmap(pico_base: Path, tmp_path: Path) -> None:
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(3)
    config = Gemma3TextConfig(**SMALL, head_dim=16, sliding_window=8, use_bidirectional_attention=True)
    Gemma3ForCausalLM(config).save_pretrained(tmp_path / "gemma")
    exported = export(tmp_path / "gemma", pico_base, tmp_path / "job", LEGACY, named(STRATEGIES, "legacy-sdpa"), REWRITTEN)
    assert exported.output.strategy == "legacy-rewritten"
    (failed, _) = exported.output.figures["attempts"]
    assert (failed["strategy"], failed["code"]) == ("legacy-eager", "tracer-map") and "unordered_map" in failed["error"]


def test_what_is_rewritten_computes_the_same_and_is_undone(scaled: Path) -> None:
    import torch

    family = choose(scaled)
    model = family.load(scaled, Tracing())
    ids, mask = torch.arange(2, 32).reshape(1, 30).repeat(2, 1), torch.ones(2, 30, dtype=torch.long)
    mask[0, :4] = 0
    with torch.inference_mode():
        before = model(ids, attention_mask=mask).logits
        with rewritten("masks-and-rotary", model):
            within = model(ids, attention_mask=mask).logits
            assert any("forward" in vars(module) for module in model.modules())
        assert not any("forward" in vars(module) for module in model.modules())
        after = model(ids, attention_mask=mask).logits
    assert torch.allclose(before[1], within[1], atol=1e-5) and torch.equal(before, after)
    assert torch.allclose(before[0, 4:], within[0, 4:], atol=1e-5)


def test_lengths_at_which_a_model_changes_are_known(scaled: Path) -> None:
    import transformers

    assert thresholds(transformers.AutoConfig.from_pretrained(scaled)) == {16: "the rotary embedding's original length"}
    mistral = transformers.MistralConfig(**SMALL, sliding_window=4096)
    assert thresholds(mistral) == {4096: "the sliding window"}
    assert thresholds(transformers.Qwen3Config(**SMALL, use_sliding_window=False)) == {}


def test_a_warning_is_told_by_the_function_around_its_line() -> None:
    import transformers.masking_utils as module

    path = str(module.__file__)
    line = module.prepare_padding_mask.__code__.co_firstlineno + 5
    place = tracer_warnings.origin(path, line, "Converting a tensor to a Python boolean")
    assert (str(place), tracer_warnings.rule(place).about) == ("masking_utils.py, prepare_padding_mask", "whether the mask is too short")
    assert tracer_warnings.origin("/nowhere/modeling_x.py", 3).function == ""
    assert (
        tracer_warnings.rule(tracer_warnings.Origin("modeling_x.py", "forward")).lengths
        and tracer_warnings.rule(tracer_warnings.Origin("own.py", "f")).lengths
    )


def test_an_unknown_branch_is_rejected_only_where_something_was_not_tried() -> None:
    place = tracer_warnings.Origin("modeling_x.py", "forward")
    assert "This is harmless: the graph was tested on much" in tracer_warnings.judge([place, place], "much", "")[0]
    with pytest.raises(tracer_warnings.BakedBranchError, match=r"may change beyond 4096 tokens"):
        tracer_warnings.judge([place], "much", "beyond 4096 tokens (the sliding window)")
    constant = tracer_warnings.Origin("modeling_x.py", "forward", constant=True)
    assert len(tracer_warnings.judge([constant], "much", "beyond 4096 tokens")) == 1


def test_only_the_tracers_warnings_are_kept_apart() -> None:
    import torch

    with LibraryWarnings() as chatter:
        warnings.warn("Converting a tensor", torch.jit.TracerWarning, stacklevel=1)
        warnings.warn("Converting a tensor", torch.jit.TracerWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert list(chatter.traced.values()) == [1, 1] or list(chatter.traced.values()) == [2]
    assert chatter.lines == ["UserWarning: something else"]
