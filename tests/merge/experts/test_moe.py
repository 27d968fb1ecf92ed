"""Mixtures of experts: every family, way to name experts, format of the base and dtype, held against stock PEFT in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from daemon.contract.faults.errors import Permanent
from handlers.merge import merge_adapter
from tests.merge import helpers
from tests.merge.experts import moe_zoo

pytestmark = pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
IDS = torch.arange(3, 19)[None]


def stock_peft(jobs: list[dict[str, Any]], folder: Path) -> None:
    """Run `stock_peft.py`: a process that has nothing of this project on its path."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    script = Path(__file__).with_name("stock_peft.py")
    command = [sys.executable, str(script), "jobs.json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def load(folder: Path, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    return model


def differences(folder: Path, dtype: str) -> list[str]:
    """What of the merge in `folder/out` is not stock PEFT's in `folder/peft`, as sentences."""
    if (error := folder / "peft" / "error.txt").exists():
        return ["stock PEFT fails: " + error.read_text().splitlines()[-1]]
    stock, exact = (load_file(folder / "peft" / f"{name}.safetensors") for name in ("merged", "exact"))
    model = load(folder / "out", dtype)
    mine = model.state_dict()
    found = [f"{name} is in one of the two alone" for name in mine.keys() ^ stock.keys()]
    for name in mine.keys() & stock.keys():
        # PEFT rounds the delta of experts to 16 bits before it adds it; the merge rounds once, which the exact sum shows.
        unit = torch.finfo(mine[name].dtype).eps / 2 * 1.001
        once = (mine[name].float() - exact[name]).abs() <= unit * exact[name].abs() + 1e-6 * exact[name].abs().max() + 1e-30
        if not torch.equal(mine[name], stock[name]) and not bool(once.all()):
            found.append(f"{name} is not base + delta, rounded once")
    if dtype == "float32":  # in 16 bits a rounded router may choose another expert
        table = load_file(folder / "peft" / "logits.safetensors")
        with torch.no_grad():
            logits = model.eval()(input_ids=IDS).logits
        unit, own = table["live"].std(), (table["merged"] - table["live"]).abs().max()
        if (error_max := (logits - table["live"]).abs().max()) > max(1e-5 * unit, 1.5 * own):
            found.append(f"a logit is {error_max / unit:.3g} standard deviations from the live model's")
    return found


def check(cases: list[tuple[str, str, str]], dtype: str, folder: Path) -> None:
    """Merge each (family, form of the base, way), and compare all with what stock PEFT makes of them in one process."""
    jobs, places = [], {}
    for family, form, way in cases:
        base, plain = (made(family, kind, dtype, folder) for kind in (form, "safetensors"))
        place = places[family, form, way] = folder / f"{family}-{form}-{way}"
        legacy = moe_zoo.legacy_ways(family)
        if way in legacy:
            adapter = moe_zoo.legacy(plain, place / "adapter", **legacy[way])
        else:
            adapter = moe_zoo.adapt(family, base, place / "adapter", **moe_zoo.ways(family)[way])
        (place / "out").mkdir()
        merge_adapter(adapter, base, place / "out")
        jobs.append({
            "base": str(base), "adapter": str(adapter), "output": str(place / "peft"), "dtype": dtype, "auto": "AutoModelForCausalLM",
            "example": "ids",
        })  # fmt: skip
    stock_peft(jobs, folder)
    assert {case: differences(place, dtype) for case, place in places.items()} == {case: [] for case in cases}


def made(family: str, form: str, dtype: str, folder: Path) -> Path:
    base = folder / f"{family}-{form}"
    return base if base.is_dir() else moe_zoo.make(family, base, dtype, form)


SAMPLE = [
    ("mixtral", "safetensors", "all-linear"), ("mixtral", "bin", "alpha of experts"), ("granite-moe", "safetensors", "expressions"),
    ("qwen3-moe", "safetensors", "router by its module"), ("olmoe", "fused", "each expert and router"),
]  # fmt: skip


def test_adapters_of_experts_merge_as_stock_peft_merges_them(tmp_path: Path) -> None:
    check(SAMPLE, "float32", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["safetensors", "fused", "bin"])
@pytest.mark.parametrize("family", moe_zoo.FAMILIES)
def test_every_way_to_name_experts_merges_as_stock_peft_merges_it(family: str, form: str, dtype: str, tmp_path: Path) -> None:
    ways = list(moe_zoo.ways(family))
    if family in ("qwen3-moe", "olmoe", "mixtral"):
        ways += moe_zoo.legacy_ways(family)
    check([(family, form, way) for way in ways], dtype, tmp_path)


REFUSED = [
    ("qwen3-moe", {"use_rslora": True}, r"would give .*experts\.0\.gate_proj rank 4 and the factor 4.243 instead of 4 and 3"),
    ("qwen3-moe", {"alpha_pattern": {"up_proj": 20}}, r"would give .*\.up_proj rank 4 and the factor 1.5 instead of 4 and 5"),
    ("mixtral", {"rank_pattern": {"w2": 2}}, r"would give .*\.w2 rank 4 and the factor 1.5 instead of 2 and 3"),
    ("mixtral", {"target_modules": ["q_proj", "w1", "w2"]}, "can't load one for w1 without w3"),
    ("qwen2-moe", {}, "does not convert adapters of qwen2_moe: it would leave out the experts' part"),
    ("deepseek-v3", {}, r"would leave out model\.layers\.0\.mlp\.down_proj, which is called as a layer of an expert"),
]


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize(("family", "settings", "why"), REFUSED)
def test_an_adapter_of_single_experts_that_peft_reads_otherwise_than_it_was_trained_is_refused(
    family: str, settings: dict[str, Any], why: str, form: str, tmp_path: Path
) -> None:
    plain = moe_zoo.make(family, tmp_path / "plain", "float32")
    base = plain if form == "safetensors" else moe_zoo.make(family, tmp_path / "base", "float32", form)
    every = moe_zoo.legacy_ways(family)["each expert"]
    adapter = moe_zoo.legacy(plain, tmp_path / "adapter", **{**every, **settings})
    (tmp_path / "out").mkdir()
    with pytest.raises(Permanent, match=why) as caught:
        merge_adapter(adapter, base, tmp_path / "out")
    assert "export the result as a full fine-tune" in str(caught.value)


def of_older_peft(adapter: Path, version: str = "0.18.1") -> None:
    """Lay the factors of experts out as PEFT did it before 0.19: A over the outputs, B over the inputs."""
    table = load_file(adapter / "adapter_model.safetensors")
    for a in [key for key in table if key.endswith("lora_A.weight") and ".experts." in key]:
        b = a.replace("lora_A", "lora_B")
        first, second = table[a].reshape(moe_zoo.EXPERTS, -1, table[a].shape[1]), table[b].reshape(len(table[b]), -1, moe_zoo.EXPERTS)
        table[a] = second.permute(2, 1, 0).reshape(-1, len(table[b])).contiguous()
        table[b] = first.permute(2, 1, 0).reshape(first.shape[2], -1).contiguous()
    save_file(table, adapter / "adapter_model.safetensors")
    helpers.edit_config(adapter, peft_version=version)


def test_factors_of_experts_that_peft_saved_before_release_19_are_merged_as_they_were_trained(tmp_path: Path) -> None:
    base = moe_zoo.make("qwen3-moe", tmp_path / "base", "float32")
    adapter = moe_zoo.adapt("qwen3-moe", base, tmp_path / "adapter", **moe_zoo.ways("qwen3-moe")["expressions"])
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        merge_adapter(adapter, base, tmp_path / name)
        of_older_peft(adapter)
    new, old = helpers.stored(tmp_path / "new"), helpers.stored(tmp_path / "old")
    assert new.keys() == old.keys() and all(torch.allclose(new[name], old[name], rtol=1e-5, atol=1e-6) for name in new)


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_square_experts_with_factors_of_older_peft_are_refused_since_todays_would_transpose_them(form: str, tmp_path: Path) -> None:
    base = moe_zoo.make("qwen3-moe", tmp_path / "base", "float32", form, moe_intermediate_size=moe_zoo.WIDTH // 2)
    adapter = moe_zoo.adapt("qwen3-moe", base, tmp_path / "adapter", target_modules=[], target_parameters=["experts.gate_up_proj"])
    (tmp_path / "out").mkdir()
    merge_adapter(adapter, base, tmp_path / "out")
    of_older_peft(adapter)
    (tmp_path / "old").mkdir()
    with pytest.raises(Permanent, match=r"PEFT 0\.18\.1, which laid out the factors of .*\.experts\.gate_up_proj the other way round"):
        merge_adapter(adapter, base, tmp_path / "old")


def test_factors_of_older_peft_that_only_peft_could_merge_are_refused_with_the_reason(tmp_path: Path) -> None:
    base = moe_zoo.make("qwen3-moe", tmp_path / "base", "float32", "bin")
    adapter = moe_zoo.adapt("qwen3-moe", base, tmp_path / "adapter", target_modules=[], target_parameters=["experts.gate_up_proj"])
    of_older_peft(adapter)
    (tmp_path / "out").mkdir()
    with pytest.raises(Permanent, match=r"PEFT 0\.18\.1, which laid out the factors of stacked experts"):
        merge_adapter(adapter, base, tmp_path / "out")


def test_dropout_of_single_experts_does_not_keep_peft_from_merging_them(tmp_path: Path) -> None:
    base, plain = (moe_zoo.make("qwen3-moe", tmp_path / form, "float32", form) for form in ("bin", "safetensors"))
    settings = moe_zoo.legacy_ways("qwen3-moe")["each expert"]
    adapter = moe_zoo.legacy(plain, tmp_path / "adapter", lora_dropout=0.1, **settings)
    for name, folder in (("out", base), ("streamed", plain)):
        (tmp_path / name).mkdir()
        merge_adapter(adapter, folder, tmp_path / name)
    merged, streamed = helpers.stored(tmp_path / "out"), helpers.stored(tmp_path / "streamed")
    assert merged.keys() == streamed.keys() and all(torch.allclose(merged[name], streamed[name], atol=1e-6) for name in merged)
