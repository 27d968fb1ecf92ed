"""A merge is the one that PEFT makes of base and adapter, each weight rounded once: sound ones are, hardly damaged ones are not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from daemon.contract.jobs.options import MergeOptions
from daemon.running.workers import warm
from handlers.merge.api import merge_adapter
from handlers.validate import findings, record
from handlers.validate.checks.examination import Examination
from handlers.validate.checks.live.reference import Reference
from handlers.validate.checks.live.rounded import FAITHFUL, OfPeft
from handlers.validate.engines.registry import EngineSpec
from tests import models
from tests.merge import helpers
from tests.sharing import shared
from tests.validate import sabotage, zoo
from tests.validate.bench import beside_live
from tests.validate.conftest import Validated, attempt, context_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of the methods' own
UNLIKE = "the merge is not the one that PEFT makes of this base and adapter"


def _lora(base: Path, pin: Path, **options: Any) -> Path:
    return helpers.make_adapter(base, pin, **options)


def _other(base: Path, pin: Path, **options: Any) -> Path:
    """An adapter of another method than LoRA, which PEFT merges in the base's dtype."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(2)
    config = getattr(peft, options.pop("method"))(task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(pin)
    return pin


Make = Callable[..., Path]
KINDS: dict[str, tuple[Make, dict[str, Any], dict[str, Any], str]] = {
    "LoRA": (_lora, {}, {}, "base"),
    "a factor that is no power of two": (_lora, {}, {"lora_alpha": 13}, "base"),
    "rsLoRA in fp16": (_lora, {"dtype": "float16"}, {"use_rslora": True}, "base"),
    "DoRA": (_lora, {}, {"use_dora": True}, "base"),
    "DoRA of a base in fp32": (_lora, {"dtype": "float32"}, {"use_dora": True}, "bfloat16"),
    "written in fp32": (_lora, {}, {}, "float32"),
    "from bf16 to fp16": (_lora, {}, {}, "float16"),
    "an embedding": (_lora, {"tie_word_embeddings": False}, {"target_modules": ["q_proj", "embed_tokens"]}, "base"),
    "an embedding from bf16 to fp16": (
        _lora, {"tie_word_embeddings": False}, {"target_modules": ["q_proj", "embed_tokens"], "copies": False}, "float16",
    ),
    "an embedding of a base in fp32": (
        _lora, {"tie_word_embeddings": False, "dtype": "float32"}, {"target_modules": ["q_proj", "embed_tokens"]}, "bfloat16",
    ),
    "saved tied modules": (_lora, {}, {"modules_to_save": ["embed_tokens", "lm_head"]}, "base"),
    "trained tokens": (_lora, {}, {"trainable_token_indices": [5, 6]}, "base"),
    "PiSSA": (_lora, {}, {"init_lora_weights": "pissa"}, "base"),
    "IA3": (_other, {}, {"method": "IA3Config", "target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}, "base"),
    "OFT": (_other, {}, {"method": "OFTConfig", "oft_block_size": 8, "r": 0, "target_modules": ["q_proj"]}, "base"),
    "VeRA": (_other, {}, {"method": "VeraConfig", "r": 8, "target_modules": ["q_proj", "v_proj"]}, "base"),
}  # fmt: skip


def _beside_peft(base: Path, pin: Path, merged: Path, scratch: Path) -> tuple[ArtifactCheck, Reference]:
    return beside_live(EngineSpec(engine="live", folder=str(pin), base=str(base)), merged, scratch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_merge_is_the_one_that_peft_makes(kind: str, tmp_path: Path) -> None:
    make, settings, options, dtype = KINDS[kind]
    base = models.make_base(tmp_path / "base", **settings)
    pin = make(base, tmp_path / "pin", **options)
    (tmp_path / "merged").mkdir()
    merge_adapter(pin, base, tmp_path / "merged", MergeOptions(dtype=dtype))
    check, reference = _beside_peft(base, pin, tmp_path / "merged", tmp_path / "scratch")
    assert all(sample.merged is not None for sample in reference.samples)
    assert check.figures["merge_error"] < FAITHFUL / 5, "sound ones must have room below the limit"
    assert not any(UNLIKE in reason for reason in check.reasons)


@pytest.mark.parametrize(("table", "rest", "written"), [
    ("float32", "bfloat16", "base"), ("bfloat16", "float32", "base"), ("float32", "bfloat16", "bfloat16"),
])  # fmt: skip
def test_an_embedding_in_another_dtype_than_the_rest_of_the_base_is_rounded_as_peft_does(
    table: str, rest: str, written: str, tmp_path: Path
) -> None:
    import torch

    def other(tensors: dict[str, Any]) -> None:
        mine = tensors[name := "model.embed_tokens.weight"].float()
        tensors[name] = (mine * (1 + 1e-3 * torch.rand(mine.shape))).to(getattr(torch, table))  # which 16 bits do not hold

    base = models.make_base(tmp_path / "base", dtype=rest, tie_word_embeddings=False)
    pin = helpers.make_adapter(base, tmp_path / "pin", target_modules=["q_proj", "embed_tokens"], copies=False)
    sabotage.edit_tensors(base, other)
    (tmp_path / "merged").mkdir()
    merge_adapter(pin, base, tmp_path / "merged", MergeOptions(dtype=written))
    check, reference = _beside_peft(base, pin, tmp_path / "merged", tmp_path / "scratch")
    assert all(sample.merged is not None for sample in reference.samples)
    assert check.figures["merge_error"] < FAITHFUL / 5


@pytest.mark.parametrize("auto", ["AutoModelForSequenceClassification", "AutoModelForSeq2SeqLM"])
def test_classifiers_and_encoder_decoders_too(auto: str, tmp_path: Path) -> None:
    import transformers

    pair = "Seq2Seq" in auto
    base = zoo.make_seq2seq_base(tmp_path / "base", "t5") if pair else zoo.make_encoder_base(tmp_path / "base", auto, num_labels=3)
    options = {"target_modules": ["q", "v"], "task_type": "SEQ_2_SEQ_LM"} if pair else {
        "target_modules": ["query", "value"], "task_type": "SEQ_CLS", "modules_to_save": ["classifier"]}  # fmt: skip
    pin = helpers.make_adapter(base, tmp_path / "pin", cls=getattr(transformers, auto), **options)
    (tmp_path / "merged").mkdir()
    merge_adapter(pin, base, tmp_path / "merged", MergeOptions(dtype="bfloat16"))
    zoo.copy_texts(base, tmp_path / "merged")
    check, _ = _beside_peft(base, pin, tmp_path / "merged", tmp_path / "scratch")
    assert check.figures["merge_error"] < FAITHFUL / 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base in bf16, an adapter and their merge. Read only."""

    def make(folder: Path) -> Path:
        base = models.make_base(folder / "base")
        helpers.make_adapter(base, folder / "pin")
        (folder / "merged").mkdir()
        merge_adapter(folder / "pin", base, folder / "merged")
        return folder

    return shared(tmp_path_factory, "faithful-merge", make)


def _noise(tensors: dict[str, Any]) -> None:
    import torch

    chosen = torch.Generator().manual_seed(0)
    name = "model.layers.0.mlp.up_proj.weight"
    mine = tensors[name].float()
    tensors[name] = (mine + 0.02 * mine.std() * torch.randn(mine.shape, generator=chosen)).to(tensors[name].dtype)


def _twice(tensors: dict[str, Any]) -> None:
    """Round to fewer bits before the dtype's own rounding, as fp8 would."""
    for name in [name for name in tensors if "mlp" in name]:
        tensors[name] = tensors[name].mul(32).round().div(32)


def _scaled(tensors: dict[str, Any]) -> None:
    tensors["model.layers.1.self_attn.o_proj.weight"] *= 1.02


@pytest.mark.parametrize("change", [_noise, _twice, _scaled])
def test_a_fault_within_all_other_limits_is_told(change: Callable[[dict[str, Any]], None], made: Path, tmp_path: Path) -> None:
    target = shutil.copytree(made / "merged", tmp_path / "damaged")
    sabotage.edit_tensors(target, change)
    told, _ = _beside_peft(made / "base", made / "pin", target, tmp_path / "scratch")
    assert told.verdict is Verdict.FAILED
    assert told.reasons[0].startswith(UNLIKE) and "merge_and_unload" in (told.remedy or ""), told.reasons


def test_where_peft_would_change_a_shared_weight_nothing_is_compared(tmp_path: Path) -> None:
    base = models.make_base(tmp_path / "base")
    pin = helpers.make_adapter(base, tmp_path / "pin", target_modules=["q_proj", "embed_tokens"])
    (tmp_path / "merged").mkdir()
    merge_adapter(pin, base, tmp_path / "merged")
    told, reference = _beside_peft(base, pin, tmp_path / "merged", tmp_path / "scratch")
    assert all(sample.merged is None for sample in reference.samples) and "merge_error" not in told.figures
    assert reference.warnings == []


def test_few_positions_may_be_ties(made: Path) -> None:
    beside = OfPeft(1.0)
    rows = np.zeros((48, 4))
    apart = rows.copy()
    apart[3], apart[30] = 1.0, 0.5
    beside.add(rows, apart)
    assert beside.error == 0.0 and beside.finding() is None
    apart[40] = 0.5
    beside.add(rows, apart)
    assert beside.error == 0.5 and beside.finding() is not None


def test_whatever_is_made_of_another_merge_fails_for_that_reason(
    validated: Validated, pico_base: Path, pico_checkpoint: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    merged = shutil.copytree(validated.folders["merged"], tmp_path / "merged")
    assert (read := record.read_merged(str(merged))) is not None and read.unlike is None
    known = Examination(findings=[findings.merge(f"{UNLIKE}: so")])
    record.mark_comparable(merged, known)
    (tmp_path / "job").mkdir()
    inputs = {"merge": folders["pytorch"], **folders, "reference": validated.folders["reference"], "merged": merged}
    context = context_of(tmp_path / "job", "check-onnx", pico_checkpoint, pico_base, inputs, samples=4, new_tokens=12)
    (told,) = attempt(context).checks
    warm.end_all()
    assert told.verdict is Verdict.FAILED and told.reasons == (f"{UNLIKE}: so",)
