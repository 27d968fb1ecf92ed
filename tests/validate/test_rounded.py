"""Mixtures of experts in 16 bits: rounding decides between experts that are almost equally good, and no sound merge fails for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from daemon.contract.jobs.messages import Verdict
from handlers.merge.api import merge_adapter
from handlers.models.folder import ModelFolder
from handlers.validate.checks.live import rounded
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.client import EngineWorker
from tests.sharing import shared
from tests.validate import odd_models, sabotage, zoo
from tests.validate.bench import Bench, Direct, measured, quiet

pytestmark = pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
EXPERTS = next(odd for odd in odd_models.ODD if odd.name == "experts of Mixtral in bf16")


def _make(folder: Path) -> None:
    checkpoint = odd_models.make(EXPERTS, folder)
    (folder / "merged").mkdir()
    merge_adapter(checkpoint, folder / "base", folder / "merged")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(folder / "base" / name, folder / "merged" / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base of experts in bf16, a checkpoint over it, and their merge. Read only."""

    def make(place: Path) -> Path:
        _make(place)
        return place

    return shared(tmp_path_factory, "experts-in-bf16", make)


@pytest.fixture(scope="module")
def bench(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The live model, measured, and measured again with rounded weights."""
    (checkpoint,) = (folder / "run").iterdir()
    scratch = tmp_path_factory.mktemp("bench") / "scratch"
    bench = measured(checkpoint, folder / "base", folder / "merged", scratch)
    _ask(checkpoint, folder, bench, scratch)
    return bench


def _ask(adapter: Path, folder: Path, bench: Bench, scratch: Path) -> None:
    live = Direct("live", EngineSpec(engine="live", folder=str(adapter), base=str(folder / "base")))
    live.load()
    merging = rounded.Merging(adapter, ModelFolder(folder / "base"), ModelFolder(folder / "merged"))
    rounded.ask(cast(EngineWorker, live), bench.reference, merging, scratch, quiet)


def test_a_sound_merge_is_nearer_to_the_live_model_that_was_rounded_too_and_passes(folder: Path, bench: Bench) -> None:
    check = bench.check("pytorch", folder / "merged")
    assert check.verdict is Verdict.PASSED, check.reasons
    assert check.figures["rounded"]["kl"] < check.figures["kl"] / 2
    assert {row["outcome"] for row in check.figures["decisions"]} == {"passed"}
    assert {row["limit"] for row in check.figures["decisions"] if row["texts"]} >= {"kl", "agreement", "perplexity"}


def _scale(part: str, factor: float) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if part in name]:
            tensors[name] = tensors[name] * factor

    return change


@pytest.mark.parametrize("change", [_scale("layers.1.self_attn.o_proj", 1.5), _scale("layers.2.block_sparse_moe.gate", -1.0)])
def test_what_rounding_does_not_do_still_fails(change: Any, folder: Path, bench: Bench, tmp_path: Path) -> None:
    target = tmp_path / "damaged"
    shutil.copytree(folder / "merged", target)
    before = (target / "model.safetensors").read_bytes()
    sabotage.edit_tensors(target, change)
    assert (target / "model.safetensors").read_bytes() != before
    check = bench.check("pytorch", target)
    assert check.verdict is Verdict.FAILED
    assert any("above the limit" in reason for reason in check.reasons), check.reasons


def _noise(tensors: dict[str, Any]) -> None:
    import torch

    chosen = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if ".layers." in name and tensors[name].ndim > 1]:
        mine = tensors[name].float()
        tensors[name] = (mine + 0.003 * mine.std() * torch.randn(mine.shape, generator=chosen)).to(tensors[name].dtype)


def _shifted(tensors: dict[str, Any]) -> None:
    for name in [name for name in tensors if "norm" in name]:
        tensors[name] = tensors[name] + 0.03


@pytest.mark.parametrize("change", [_noise, _shifted, None])
def test_a_faulty_merge_of_stacked_experts_that_is_within_all_other_limits_fails(
    change: Any, folder: Path, bench: Bench, tmp_path: Path
) -> None:
    target = shutil.copytree(folder / "merged", tmp_path / "damaged")
    if change is None:
        zoo.edit_json(target / "config.json", rms_norm_eps=1e-4)
    else:
        sabotage.edit_tensors(target, change)
    check = bench.check("pytorch", target)
    assert check.verdict is Verdict.FAILED
    assert any("the merge is not the one that PEFT makes" in reason for reason in check.reasons), check.reasons


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_merge_of_stacked_experts_is_faithful_whatever_was_rounded_before_the_sum(dtype: str, folder: Path, tmp_path: Path) -> None:
    """PEFT rounds their deltas to the base's 16 bits first; a merge in fp32 has other weights, and is as right."""
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    (checkpoint,) = (folder / "run").iterdir()
    adapter, made = shutil.copytree(checkpoint, tmp_path / "adapter"), {}
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: 3 * tensor if "lora_B" in name else tensor for name, tensor in tensors.items()}, adapter / "adapter_model.safetensors")
    for name in ("bfloat16", "float32"):
        model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=getattr(torch, name))
        merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload().to(torch.bfloat16)
        made[name] = shutil.copytree(folder / "merged", tmp_path / name)
        merged.save_pretrained(tmp_path / "saved")
        shutil.copyfile(tmp_path / "saved" / "model.safetensors", made[name] / "model.safetensors")
    assert len({(made[name] / "model.safetensors").read_bytes() for name in made}) == 2
    bench = measured(adapter, folder / "base", made[dtype], tmp_path / "scratch", merging=True)
    assert bench.check("pytorch", made[dtype]).figures["merge_error"] < rounded.FAITHFUL / 5
    sample = bench.reference.samples[0]
    assert sample.merged is not None and sample.once is not None


def test_an_adapter_that_peft_merges_into_another_model_has_no_rounded_answers(folder: Path, bench: Bench, tmp_path: Path) -> None:
    (checkpoint,) = (folder / "run").iterdir()
    again = measured(checkpoint, folder / "base", folder / "merged", tmp_path / "scratch")
    other = shutil.copytree(checkpoint, tmp_path / "other")
    zoo.edit_json(other / "adapter_config.json", lora_alpha=64)
    _ask(other, folder, again, tmp_path / "scratch")
    assert any("another model" in warning for warning in again.reference.warnings)
    assert all(sample.rounded is None for sample in again.reference.samples)


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({"num_local_experts": 8}, True), ({"num_experts": 16}, True), ({"n_routed_experts": 4}, True),
        ({"text_config": {"num_experts": 4}}, True), ({"num_experts": 1}, False), ({"num_hidden_layers": 8}, False),
        ({"num_experts_per_tok": 2}, False),
    ],
)  # fmt: skip
def test_a_mixture_of_experts_is_known_by_its_configuration(config: dict[str, Any], experts: bool) -> None:
    assert rounded.chooses_experts(config) is experts
