"""The real toolchain `optimum`: it exports what torch computes, and reads what our stage exports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.config.settings import Settings
from daemon.operating.diagnosis import doctor
from handlers.onnx.export import stage as onnx_stage
from handlers.onnx.options import OnnxOptions
from handlers.toolchains import use
from handlers.toolchains.optimum_export import Exported as OptimumExported
from handlers.toolchains.optimum_reader import Reading
from tests import models
from tests.merge import helpers
from tests.onnx import qwen
from tests.onnx.conftest import Exported, make_model, prompts, torch_logits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COUNT = 8
NAMES = {"model_type": "bert", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
BERT: dict[str, Any] = {**NAMES, "num_attention_heads": 4, "max_position_embeddings": 128, "pad_token_id": 0, "initializer_range": 0.15}


def greedy(source: Path, auto: str, ids: np.ndarray, mask: np.ndarray, **feeds: Any) -> np.ndarray:
    """What transformers generates in fp32, end tokens ignored: (batch, COUNT)."""
    import torch
    import transformers

    model = getattr(transformers, auto).from_pretrained(source, dtype=torch.float32).eval()
    made = model.generate(
        torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), max_new_tokens=COUNT, do_sample=False, num_beams=1, eos_token_id=None,
        forced_eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return made[:, -COUNT:].numpy()


def read(optimum: Path, folder: Path, task: str, scratch: Path, new_tokens: int = 0, **inputs: np.ndarray) -> tuple[Reading, Any]:
    """What the foreign reader says and computes."""
    np.savez(scratch / "in.npz", **inputs)
    options = {
        "folder": folder, "task": task, "inputs": scratch / "in.npz", "outputs": scratch / "out.npz", "new_tokens": new_tokens,
    }  # fmt: skip
    said = use.run_module(optimum, "handlers.toolchains.optimum_reader", options, scratch, Reading)
    return said, np.load(scratch / "out.npz")


def exported(optimum: Path, source: Path, task: str, scratch: Path, opset: int = 18) -> tuple[OptimumExported, Path]:
    """The model as optimum exports it, with the configuration beside it as our stages copy it."""
    (scratch / "scratch").mkdir()
    options = {"source": source, "target": scratch / "graphs", "scratch": scratch / "scratch", "task": task, "opset": opset}
    said = use.run_module(optimum, "handlers.toolchains.optimum_export", options, scratch, OptimumExported)
    shutil.copy(source / "config.json", scratch / "graphs")
    return said, scratch / "graphs"


def agree(optimum: Path, export: Callable[..., Exported], source: Path, scratch: Path) -> Reading:
    """Compare what our stage makes of a causal model, read by optimum, with torch: logits, and greedy tokens with left padding."""
    folder = export(source).folder
    ids, mask = prompts(3, 9, 4)
    said, made = read(optimum, folder, "text-generation", scratch, COUNT, input_ids=ids, attention_mask=mask)
    wanted, kept = torch_logits(source, ids, mask), mask[..., None].astype(bool)
    np.testing.assert_allclose(np.where(kept, made["logits"], 0), np.where(kept, wanted, 0), atol=2e-4)
    np.testing.assert_array_equal(made["tokens"], greedy(source, "AutoModelForCausalLM", ids, mask))
    return said


def test_our_qwen3_generates_the_same_in_optimum(optimum: Path, export: Callable[..., Exported], trained: Path, tmp_path: Path) -> None:
    said = agree(optimum, export, trained, tmp_path)
    assert said.reader == "ORTModelForCausalLM" and said.files == ["model.onnx"]


def test_our_qwen3_with_wide_heads_needs_optimum_put_right(
    optimum: Path, export: Callable[..., Exported], million: Path, tmp_path: Path
) -> None:
    assert agree(optimum, export, million, tmp_path).adjusted != []


def test_our_gpt2_generates_the_same_in_optimum(optimum: Path, export: Callable[..., Exported], tmp_path: Path) -> None:
    gpt2 = {"vocab_size": 320, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "bos_token_id": 2, "eos_token_id": 1}
    source = make_model(tmp_path / "gpt2", "GPT2LMHead", initializer_range=0.15, **gpt2)
    assert agree(optimum, export, source, tmp_path).adjusted == []


def bert(folder: Path, head: str, **options: Any) -> Path:
    import torch
    import transformers

    torch.manual_seed(5)
    config = transformers.BertConfig(**{**BERT, **options})
    getattr(transformers, f"Bert{head}")(config).save_pretrained(folder)
    return folder


HEADS = {
    "feature-extraction": ("Model", ("last_hidden_state",)),
    "text-classification": ("ForSequenceClassification", ("logits",)),
    "token-classification": ("ForTokenClassification", ("logits",)),
    "question-answering": ("ForQuestionAnswering", ("start_logits", "end_logits")),
    "fill-mask": ("ForMaskedLM", ("logits",)),
}


@pytest.mark.parametrize("task", list(HEADS))
def test_our_bert_heads_say_the_same_in_optimum(optimum: Path, export: Callable[..., Exported], tmp_path: Path, task: str) -> None:
    import torch
    import transformers

    from handlers.models.tasks import BY_NAME

    head, outputs = HEADS[task]
    source = bert(tmp_path / "bert", head)
    ids, mask = prompts(3, 9, 0)
    mask[1, 5:] = 0
    _, made = read(optimum, export(source).folder, task, tmp_path, input_ids=ids, attention_mask=mask, token_type_ids=np.zeros_like(ids))
    model = getattr(transformers, BY_NAME[task].auto).from_pretrained(source).eval()
    with torch.inference_mode():
        wanted = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
    for name in outputs:
        kept = mask.reshape(mask.shape + (1,) * (made[name].ndim - 2)).astype(bool) if made[name].shape[:2] == mask.shape else True
        np.testing.assert_allclose(np.where(kept, made[name], 0), np.where(kept, wanted[name].numpy(), 0), atol=2e-4)


def test_optimum_exports_what_torch_computes_in_spite_of_the_older_configuration(optimum: Path, million: Path, tmp_path: Path) -> None:
    said, folder = exported(optimum, million, "text-generation", tmp_path)
    assert said.opset == 18 and said.files == ["model.onnx"] and said.versions["transformers"] == "4.57.6"
    ids, mask = prompts(2, 40, 3)
    _, made = read(optimum, folder, "text-generation", tmp_path, COUNT, input_ids=ids, attention_mask=mask)
    wanted, kept = torch_logits(million, ids, mask), mask[..., None].astype(bool)
    np.testing.assert_allclose(np.where(kept, made["logits"], 0), np.where(kept, wanted, 0), atol=2e-4)
    np.testing.assert_array_equal(made["tokens"], greedy(million, "AutoModelForCausalLM", ids, mask))


def test_optimum_translates_an_encoder_decoder(optimum: Path, marian: Path, tmp_path: Path) -> None:
    said, folder = exported(optimum, marian, "text2text-generation", tmp_path)
    assert said.files == ["decoder_model.onnx", "decoder_with_past_model.onnx", "encoder_model.onnx"]
    ids, mask = prompts(2, 7, 0)
    start = np.full((2, 1), 319)
    _, made = read(
        optimum, folder, "text2text-generation", tmp_path, COUNT, input_ids=ids, attention_mask=mask, decoder_input_ids=start
    )  # fmt: skip
    np.testing.assert_array_equal(made["tokens"], greedy(marian, "AutoModelForSeq2SeqLM", ids, mask))


def test_what_optimum_can_not_do_is_said_in_one_line(optimum: Path, million: Path, tmp_path: Path) -> None:
    with pytest.raises(use.ToolchainFailedError, match=r"^\w+: ") as caught:
        exported(optimum, million, "text-generation", tmp_path, opset=99)
    assert "99" in str(caught.value)


def test_a_model_whose_configuration_can_not_be_told_is_refused(optimum: Path, million: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(million, source)
    config = models.read_json(source / "config.json")
    config["rope_parameters"] = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(use.ToolchainFailedError, match="UntranslatableError: the layers of qwen3 differ"):
        exported(optimum, source, "text-generation", tmp_path)


def test_our_encoder_decoder_translates_the_same_in_optimum(
    optimum: Path, export: Callable[..., Exported], marian: Path, tmp_path: Path
) -> None:
    folder = export(marian).folder
    ids, mask = prompts(2, 7, 0)
    said, made = read(
        optimum, folder, "text2text-generation", tmp_path, COUNT, input_ids=ids, attention_mask=mask, decoder_input_ids=np.full((2, 1), 319)
    )  # fmt: skip
    assert said.reader == "ORTModelForSeq2SeqLM"
    np.testing.assert_array_equal(made["tokens"], greedy(marian, "AutoModelForSeq2SeqLM", ids, mask))


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_optimum_is_the_exporter_where_it_is_asked_for(kind: str, optimum: Path, tmp_path: Path) -> None:
    source = qwen.make(tmp_path / "model", "Llama") if kind == "llama" else tmp_path / "bert"
    if kind == "bert":
        import torch
        import transformers

        torch.manual_seed(1)
        transformers.BertForSequenceClassification(
            transformers.BertConfig(**{k: v for k, v in BERT.items() if k != "model_type"})
        ).save_pretrained(source)
    context = helpers.context(tmp_path / "work", source, None, method="full", merge=source)
    (Path(context.cache) / "toolchains").mkdir(parents=True)
    (Path(context.cache) / "toolchains" / "optimum").symlink_to(optimum)
    work = context.work.with_options(OnnxOptions(exporter="optimum"))
    output = onnx_stage.run(context.model_copy(update={"work": work}), helpers.reporter())
    assert output.strategy == "optimum" and not output.fallbacks and not output.warnings[:-1]
    assert output.figures["attempts"] == [
        {"strategy": "optimum", "outcome": "succeeded", "seconds": output.figures["attempts"][0]["seconds"]}
    ]
    assert output.figures["relative_error"] < 1e-4


def test_without_the_toolchain_the_check_says_so_and_the_export_does_without(tmp_path: Path) -> None:
    settings = Settings(
        state={"directory": tmp_path / "state"},
        output={"directory": tmp_path / "out"},
        export={"variants": ["onnx-int8"]},
        onnx={"exporter": "optimum"},
    )
    warnings = [line for line in doctor.examine(settings).warnings if "onnx.exporter" in line]
    assert warnings == [
        "onnx.exporter = 'optimum': the toolchain optimum is not installed, and onnx would be made without it;"
        " run `ckptd toolchain install optimum`"
    ]
    assert not [line for line in doctor.examine(settings.model_copy(update={"onnx": OnnxOptions()})).warnings if "onnx.exporter" in line]
    source = qwen.make(tmp_path / "model", "Llama")
    context = helpers.context(tmp_path / "work", source, None, method="full", merge=source)
    output = onnx_stage.run(
        context.model_copy(update={"work": context.work.with_options(OnnxOptions(exporter="optimum"))}), helpers.reporter()
    )
    assert output.strategy == "dynamo-eager" and output.fallbacks[0].wanted == "optimum" and "not installed" in output.fallbacks[0].reason
