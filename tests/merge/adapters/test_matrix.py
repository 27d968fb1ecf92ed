"""Every kind of adapter on every family of models: what the merge gives, held against PEFT, the live adapter and exact arithmetic."""

from __future__ import annotations

import copy
import fnmatch
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers.merge import merge_adapter
from tests.merge import helpers, zoo
from tests.sampling import some

# PEFT translates patterns for fused experts and then warns about those that a single layer has no use for.
pytestmark = pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
BOUNDS = {"float32": 3e-5, "bfloat16": 0.25, "float16": 0.04}
"""Largest error of a logit, in standard deviations of the logits, that the rounding of the weights explains."""
Bases = Callable[[str, str], Path]


@dataclass(frozen=True)
class Case:
    """An adapter. Tensors named in `near` may differ from PEFT's by roundings; those in `wrong` PEFT itself gets wrong."""

    family: str
    options: dict[str, Any] = field(default_factory=dict)
    near: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    method: str = "LoraConfig"

    def __str__(self) -> str:
        said = ",".join(f"{key}={value}" for key, value in self.options.items()).replace("target_modules=", "").replace("'", "")
        return f"{self.family}:{'AdaLoRA,' if self.method == 'AdaLoraConfig' else ''}{said or 'linear'}"


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """Makes each base once. Read only."""
    made: dict[tuple[str, str], Path] = {}

    def get(family: str, dtype: str) -> Path:
        if (family, dtype) not in made:
            made[family, dtype] = zoo.make(family, tmp_path_factory.mktemp("zoo") / f"{family}-{dtype}", dtype)
        return made[family, dtype]

    return get


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def check_case(case: Case, base: Path, dtype: str, folder: Path) -> Any:
    """Merge by streaming and hold the result against all three references."""
    adapter = zoo.adapt(case.family, base, folder / "adapter", method=case.method, **copy.deepcopy(case.options))
    (folder / "out").mkdir()
    report = merge_adapter(adapter, base, folder / "out")
    assert (report.strategy, report.fallbacks) == ("streaming", ())
    live = zoo.logits(case.family, zoo.attached(case.family, base, adapter, "float32"))
    plain = zoo.logits(case.family, zoo.load(case.family, base, "float32"))
    got = zoo.logits(case.family, zoo.load(case.family, folder / "out", "float32"))
    assert (got - live).abs().max() <= BOUNDS[dtype] * live.std()
    assert (plain - live).abs().max() > 2 * BOUNDS[dtype] * live.std() or dtype != "float32"
    hold_against_peft(case, base, adapter, dtype, zoo.load(case.family, folder / "out", dtype).state_dict())
    return report


def hold_against_peft(case: Case, base: Path, adapter: Path, dtype: str, got: dict[str, Any]) -> None:
    """Bit for bit where PEFT is right, and nowhere farther from exact arithmetic than PEFT is."""
    peft = zoo.attached(case.family, base, adapter, dtype).merge_and_unload().state_dict()
    exact = zoo.attached(case.family, base, adapter, "float64").merge_and_unload().state_dict()
    assert got.keys() == peft.keys()
    different = {name for name, tensor in got.items() if not torch.equal(tensor, peft[name]) and not matches(name, case.wrong)}
    assert {name for name in different if not matches(name, case.near)} == set()
    for name in different:
        mine, theirs = ((table[name].double() - exact[name]).abs() for table in (got, peft))
        step = torch.finfo(got[name].dtype).eps * exact[name].abs().max()
        assert mine.sum() <= theirs.sum() * 1.05, name
        assert bool((mine <= theirs + step).all()), name


TWO = ["q_proj", "v_proj"]
CONVOLUTIONS = ("resnet.*convolution.weight",)
EXPERTS = ("*.experts.*", "*.mlp.gate.weight")
LINEAR = [Case(name) for name in zoo.FAMILIES if name != "resnet"] + [Case("resnet", near=CONVOLUTIONS)]
KINDS = [
    Case("llama", {"use_rslora": True, "lora_alpha": 5}),
    Case("llama", {"rank_pattern": {"q_proj": 3, r"layers\.1\.mlp\..*": 7}, "alpha_pattern": {"layers.0.self_attn.o_proj": 11}}),
    Case("llama", {"use_dora": True}),
    Case("llama", {"layers_to_transform": [1]}),
    Case("llama", {"init_lora_weights": "orthogonal"}),
    Case("llama", {"target_modules": [*TWO, "embed_tokens", "lm_head"]}),
    Case("llama", {"target_modules": [*TWO, "embed_tokens", "lm_head"], "use_dora": True}, near=("*embed_tokens.weight",)),
    Case("llama", {"target_modules": TWO, "modules_to_save": ["embed_tokens", "lm_head"]}),
    Case("llama", {"target_modules": TWO, "modules_to_save": ["norm", "mlp"]}),
    Case("llama", {"target_modules": TWO, "trainable_token_indices": [5, 6, 7]}),
    Case("llama", {"target_modules": TWO, "trainable_token_indices": {"embed_tokens": [5, 6], "lm_head": [4]}}),
    Case("llama", {"init_r": 6, "target_r": 3, "total_step": 10}, method="AdaLoraConfig"),
    Case("gpt2", {"use_dora": True}, near=("*.weight",)),
    Case("gpt2", {"bias": "all"}),
    Case("gpt2", {"lora_bias": True}),
    Case("gpt2", {"init_r": 6, "target_r": 3, "total_step": 10}, method="AdaLoraConfig"),
    Case("bert", {"bias": "all"}),
    Case("bert", {"bias": "lora_only", "lora_bias": True}),
    Case("bert", {"modules_to_save": ["pooler", "LayerNorm"]}),
    Case("phi", {"bias": "lora_only"}),
    Case("resnet", {"use_dora": True}, near=CONVOLUTIONS),
    Case("resnet", {"modules_to_save": ["classifier"]}, near=CONVOLUTIONS),
    Case("resnet", {"init_r": 6, "target_r": 3, "total_step": 10}, method="AdaLoraConfig"),
    Case("wav2vec2", {"use_dora": True, "modules_to_save": ["lm_head"]}),
    Case("qwen3-moe", {"target_modules": TWO, "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}, near=EXPERTS),
    Case("qwen3-moe", {"target_modules": TWO, "target_parameters": ["experts.gate_up_proj"]}, near=EXPERTS),
    Case("qwen3-moe", {"target_modules": TWO, "target_parameters": ["experts.down_proj", "mlp.gate.weight"]}, near=EXPERTS),
    Case("qwen3-moe", {"target_modules": [*TWO, "gate_proj", "up_proj", "down_proj"]}, near=EXPERTS),
    Case("mixtral", {"target_modules": TWO, "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}, near=EXPERTS),
    Case("gpt-oss", {"target_modules": TWO, "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}, near=EXPERTS),
]
TIED = [
    Case("qwen3", {"target_modules": [*TWO, "embed_tokens"]}, wrong=("lm_head.weight",)),
    Case("qwen3", {"target_modules": [*TWO, "lm_head"]}, wrong=("model.embed_tokens.weight",)),
    Case("qwen3", {"target_modules": ["embed_tokens", "lm_head"]}, wrong=("model.embed_tokens.weight", "lm_head.weight")),
    Case("qwen3", {"target_modules": [*TWO, "embed_tokens"], "use_dora": True}, ("model.embed_tokens.weight",), ("lm_head.weight",)),
    Case("qwen3", {"target_modules": TWO, "modules_to_save": ["embed_tokens"]}),
    Case("qwen3", {"target_modules": TWO, "modules_to_save": ["lm_head"]}),
    Case("qwen3", {"target_modules": TWO, "modules_to_save": ["embed_tokens", "lm_head"]}),
    Case("gemma", {"target_modules": [*TWO, "embed_tokens"]}, wrong=("lm_head.weight",)),
    Case("gpt2", {"target_modules": ["c_attn", "wte"]}, wrong=("lm_head.weight",)),
    Case("gpt2", {"target_modules": ["c_attn", "lm_head"]}, wrong=("transformer.wte.weight",)),
    Case("bert", {"target_modules": ["query", "word_embeddings"]}, wrong=("cls.predictions.decoder.weight",)),
    Case("bert", {"target_modules": ["query", "decoder"]}, wrong=("bert.embeddings.word_embeddings.weight",)),
    Case("bert", {"target_modules": ["query"], "modules_to_save": ["cls"]}),
    Case("t5", {"target_modules": ["q", "shared"]}, wrong=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")),
    Case("t5", {"target_modules": ["q", "lm_head"]}, wrong=("*shared.weight", "*embed_tokens.weight")),
    Case("marian", {"target_modules": ["q_proj", "shared"]}, wrong=("*embed_tokens.weight", "lm_head.weight")),
    Case("marian", {"target_modules": ["q_proj", "lm_head"]}, wrong=("*shared.weight", "*embed_tokens.weight")),
    Case("marian", {"target_modules": ["q_proj", "embed_tokens"]}, wrong=("*shared.weight", "*embed_tokens.weight", "lm_head.weight")),
]
KEPT = [
    Case(
        "qwen3", {"target_modules": [*TWO, "embed_tokens"], "ensure_weight_tying": True}, wrong=("*embed_tokens.weight", "lm_head.weight")
    ),
    Case("qwen3", {"target_modules": TWO, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    Case("qwen3", {"target_modules": TWO, "trainable_token_indices": [5, 6, 7]}),
    Case("gpt2", {"target_modules": ["c_attn"], "trainable_token_indices": {"wte": [5, 95]}}),
]
BOTH = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
PAIRS = [
    pytest.param(case, dtype, marks=[pytest.mark.slow] if (place + half) % 2 else [])
    for place, case in enumerate([*LINEAR, *KINDS]) for half, dtype in enumerate(("float32", "bfloat16"))
]  # fmt: skip
"""Every case for every run of the tests, in one of the two types; the other is a slow test."""


@pytest.mark.parametrize(("case", "dtype"), some(PAIRS, of=8), ids=str)
def test_the_merge_equals_peft_the_live_adapter_and_exact_arithmetic(case: Case, dtype: str, bases: Bases, tmp_path: Path) -> None:  # R1.2
    base = bases(case.family, dtype)
    check_case(case, base, dtype, tmp_path)
    assert (tmp_path / "out/config.json").read_bytes() == (base / "config.json").read_bytes()


@BOTH
@pytest.mark.parametrize("case", some(TIED, of=6), ids=str)
def test_a_tied_weight_of_which_one_end_changed_is_parted(case: Case, dtype: str, bases: Bases, tmp_path: Path) -> None:  # R1.2
    base = bases(case.family, dtype)
    report = check_case(case, base, dtype, tmp_path)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (base, tmp_path / "out"))
    assert {key: value for key, value in after.items() if before.get(key) != value} == {"tie_word_embeddings": False}
    assert [warning for warning in report.warnings if "no longer tied" in warning]
    assert len(helpers.stored(tmp_path / "out")) > len(helpers.stored(base))


@pytest.mark.parametrize(("case", "dtype"), list(zip(KEPT, ("bfloat16", "float32") * 2, strict=True)), ids=str)
def test_a_tied_weight_whose_ends_changed_alike_stays_tied(case: Case, dtype: str, bases: Bases, tmp_path: Path) -> None:
    base = bases(case.family, dtype)
    report = check_case(case, base, dtype, tmp_path)
    assert report.warnings == ()
    assert (tmp_path / "out/config.json").read_bytes() == (base / "config.json").read_bytes()
    assert helpers.stored(tmp_path / "out").keys() == helpers.stored(base).keys()


GENERAL: list[tuple[dict[str, Any], str]] = [
    ({}, "LoraConfig"), ({"use_rslora": True}, "LoraConfig"), ({"use_dora": True}, "LoraConfig"), ({"bias": "all"}, "LoraConfig"),
    ({"bias": "lora_only"}, "LoraConfig"), ({"r": 1, "lora_alpha": 1}, "LoraConfig"), ({"r": 33, "lora_alpha": 7}, "LoraConfig"),
    ({"init_lora_weights": "orthogonal"}, "LoraConfig"), ({"init_r": 5, "target_r": 2, "total_step": 9}, "AdaLoraConfig"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("options", "method"), GENERAL, ids=lambda value: str(value))
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_every_family_takes_every_general_option(
    family: str, options: dict[str, Any], method: str, dtype: str, bases: Bases, tmp_path: Path
) -> None:  # R1.2
    if family in ("wav2vec2", "resnet") and (method == "AdaLoraConfig" or "init_lora_weights" in options):
        # PEFT knows these for linear layers alone.
        options = {**options, "target_modules": TWO if family == "wav2vec2" else ["classifier.1"]}
    near = ("*.weight",) if family in ("gpt2", "resnet") else ()
    # transformers widens these to fp32 on loading, so that PEFT never rounds them to the base's dtype.
    wider = ("*.wo.weight",) if (family, dtype) == ("t5", "float16") else ()
    check_case(Case(family, options, near, wider, method), bases(family, dtype), dtype, tmp_path)
