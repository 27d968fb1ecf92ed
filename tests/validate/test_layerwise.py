"""A model that is read layer by layer answers as the model that is held whole, bit for bit, in a few passes over its weights."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.formats.stages import LAYER_BY_LAYER
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.options import ValidateOptions
from handlers.layerwise import parts
from handlers.tensors.sources import StoredSource
from handlers.texts.built_in import BUILT_IN
from handlers.validate.checks.live.reference import LiveModel, measure
from handlers.validate.engines.adapters import packed_base
from handlers.validate.engines.registry import LAYERWISE, EngineSpec, engine_for
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Ahead, Greedy, LongPass, PaddedBatch, Padding, Rebase, Request, Teacher
from tests import models
from tests.sampling import some
from tests.validate.bench import Direct

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [100, 101, 102], [7] * 20]
LLAMA = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.15, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {"vocab_size": 320, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "initializer_range": 0.15}
GEMMA = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.15, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip


def make(kind: str, settings: dict[str, Any], folder: Path, *, bias: bool = False) -> Path:
    import torch
    import transformers

    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**settings, pad_token_id=0, eos_token_id=1, bos_token_id=2)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if bias and name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.0, 0.1)
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="100KB")
    models.make_tokenizer().save_pretrained(folder)
    return folder


BASES: dict[str, Callable[[Path], Path]] = {
    "qwen3, tied": models.make_base,
    "llama, untied": functools.partial(make, "Llama", LLAMA),
    "gpt2": functools.partial(make, "GPT2", GPT2, bias=True),
    "llama, wide": functools.partial(make, "Llama", LLAMA | {"hidden_size": 256, "vocab_size": 5000, "initializer_range": 0.05}),
    "gemma3, sliding, scaled": functools.partial(make, "Gemma3Text", GEMMA),
}
ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": {},
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True},
    "head saved": {"modules_to_save": ["lm_head"]},
    "embedding saved": {"modules_to_save": ["embed_tokens"]},
    "tokens trained": {"trainable_token_indices": [3, 5, 100]},
    "embedding and head": {"target_modules": ["embed_tokens", "q_proj", "lm_head"]},
    "dora on the embedding": {"target_modules": ["embed_tokens", "q_proj"], "use_dora": True},
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return functools.cache(lambda name: BASES[name](tmp_path_factory.mktemp("base") / "model"))


def adapt(base: Path, folder: Path, **options: Any) -> Path:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    targets = ["c_attn", "c_proj"] if model.config.model_type == "gpt2" else ["q_proj", "v_proj", "down_proj"]
    wrapped = get_peft_model(model, LoraConfig(**{"r": 4, "target_modules": targets, **options}))
    for name, parameter in wrapped.named_parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter.data, 1.5 if "magnitude" in name else 0.0, 0.2)
    wrapped.save_pretrained(folder)
    return folder


def answers(engine: str, folder: Path, base: Path | None, scratch: Path, *, told: bool = True) -> tuple[list[Any], int]:
    """What an engine says to all kinds of requests, and how often the requests that it was told of made it read the weights."""
    worker = Direct(engine, EngineSpec(engine=engine, folder=str(folder), base=str(base) if base else None))
    about = worker.load()
    assert about.adapted == (base is not None)
    requests: list[Request[Any]] = []
    for ids in PROMPTS:
        for bare in [False, True] if about.adapted else [False]:
            requests.append(Greedy(ids=ids, tokens=6, least=2, stop=True, verify=True, bare=bare))
            requests.append(Teacher(ids=ids, targets=[3, 4], keep=[0, len(ids)], out=str(scratch / "rows.npy"), bare=bare))
    long = [token for ids in PROMPTS for token in ids] * 2
    pieces = [len(long) // 2, len(long) - len(long) // 2 - 2, 1, 1]
    requests.append(LongPass(ids=long, pieces=pieces, keep=[0, 5, len(long) - 2, len(long) - 1], out=str(scratch / "rows.npy")))
    requests.append(Padding(batch=PaddedBatch(prompts=PROMPTS, continuations=[[1, 2, 3]] * 3)))
    passes = 0
    if engine.endswith(LAYERWISE) and told:  # others would be run in one batch, and differ by rounding
        going = worker.ask(Ahead(requests=[one.line for one in requests]))
        while going.more:
            going = worker.ask(Ahead())
        passes = going.passes
    found = []
    for request in requests:
        answer = worker.ask(request)
        found.append(np.load(scratch / "rows.npy") if isinstance(request, Teacher | LongPass) else answer)
    return found, passes


def assert_same(whole: list[Any], layerwise: list[Any]) -> None:
    for mine, theirs in zip(whole, layerwise, strict=True):
        if isinstance(mine, np.ndarray):
            assert np.ptp(mine) > 0.5
            np.testing.assert_array_equal(mine, theirs)
        else:
            assert mine == theirs


@pytest.mark.parametrize("name", BASES)
def test_a_full_model_answers_the_same_bit_for_bit(
    name: str, bases: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "BLOCK", 1 << 16)  # the head in blocks, the last of them smaller
    folder = bases(name)
    whole, _ = answers("torch", folder, None, tmp_path)
    layerwise, passes = answers("torch-layerwise", folder, None, tmp_path)
    assert_same(whole, layerwise)
    assert passes <= 8  # 6 tokens and the pass that verifies them; not one for each of 3 prompts


@pytest.mark.parametrize("name", some(list(ADAPTERS), 3))
def test_a_live_model_answers_the_same_bit_for_bit_with_and_without_its_adapter(
    name: str, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    base = bases("qwen3, tied")
    adapter = adapt(base, tmp_path / "adapter", **ADAPTERS[name])
    whole, _ = answers("live", adapter, base, tmp_path)
    layerwise, passes = answers("live-layerwise", adapter, base, tmp_path)
    assert_same(whole, layerwise)
    assert passes <= 8


def test_a_whole_reference_reads_the_weights_once_for_each_token_of_its_longest_text(bases: Callable[[str], Path], tmp_path: Path) -> None:
    base = bases("qwen3, tied")
    spec = EngineSpec(engine="live-layerwise", folder=str(adapt(base, tmp_path / "adapter")), base=str(base))
    live, options = Direct("live", spec), ValidateOptions(new_tokens=12)
    reference = measure(LiveModel(cast(EngineWorker, live)), list(BUILT_IN[:5]), options, tmp_path, lambda share, what: None)
    assert reference.adapter is not None and all(sample.tokens for sample in reference.samples)
    # The decoding, the passes over what was decoded, of each of which the head is read when its rows are asked for, and this question.
    assert live.ask(Ahead()).passes <= 12 + 1 + 2 * 5 + 1


def test_what_was_not_told_is_answered_too_by_passes_of_its_own(bases: Callable[[str], Path], tmp_path: Path) -> None:
    folder = bases("qwen3, tied")
    assert_same(answers("torch", folder, None, tmp_path)[0], answers("torch-layerwise", folder, None, tmp_path, told=False)[0])


@pytest.mark.parametrize("name", ["qwen3, tied", "gpt2"])
def test_an_adapter_on_the_base_as_it_was_trained_in_4_bits_answers_the_same(
    name: str, bases: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_base, "CHUNK", 1 << 10)
    base = bases(name)
    adapter = adapt(base, tmp_path / "adapter")
    rows = []
    for engine in ("live", "live-layerwise"):
        worker = Direct(engine, EngineSpec(engine=engine, folder=str(adapter), base=str(base)))
        worker.load()
        found = []
        for values in ("dequantized", "dequantized-double", "original"):
            worker.ask(Rebase(values=values))
            worker.ask(Teacher(ids=PROMPTS[0], keep=[0, 3, 6], out=str(tmp_path / "rows.npy")))
            found.append(np.load(tmp_path / "rows.npy"))
        assert np.abs(found[0] - found[2]).max() > 1e-3
        rows.append(found)
    np.testing.assert_array_equal(rows[0], rows[1])


def test_two_adapters_act_together(bases: Callable[[str], Path], tmp_path: Path) -> None:
    base = bases("llama, untied")
    first, second = adapt(base, tmp_path / "first"), adapt(base, tmp_path / "second", r=2)
    rows = []
    for engine in ("live", "live-layerwise"):
        spec = EngineSpec(engine=engine, folder=str(first), base=str(base), weight=0.7, additions=((str(second), 0.4),))
        worker = Direct(engine, spec)
        worker.load()
        worker.ask(Teacher(ids=PROMPTS[0], keep=[0, 6], out=str(tmp_path / "rows.npy")))
        rows.append(np.load(tmp_path / "rows.npy"))
    np.testing.assert_array_equal(rows[0], rows[1])


def test_no_more_than_one_layer_and_one_block_of_the_head_is_ever_held(
    bases: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(parts, "BLOCK", 64 * 32)  # 32 rows of the head
    held: list[int] = []
    blocks: list[int] = []
    inside = StoredSource.rows

    def rows(self: StoredSource, first: int, count: int, out: Any) -> None:
        if (engine := worker._commands._engine) is not None:
            held.append(sum(value.numel() for value in engine._model.parameters() if value.device.type != "meta"))
            blocks.append(count if self.name == "model.embed_tokens.weight" and count > 1 else 0)
        inside(self, first, count, out)

    monkeypatch.setattr(StoredSource, "rows", rows)
    worker = Direct("torch-layerwise", EngineSpec(engine="torch-layerwise", folder=str(bases("qwen3, tied"))))
    worker.load()
    worker.ask(Teacher(ids=PROMPTS[0], keep=[1], out=str(tmp_path / "rows.npy")))
    layer = 64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 128 + 2 * 64 + 2 * 16
    assert layer // 2 < max(held) < layer + 64, "one layer as it is read, and the last norm"
    assert [count for count in blocks if count] == [32] * 10
    assert held[-10:] == [64] * 10, "no layer is left while the head is read"


def refused(worker: Direct) -> WorkerFailed:
    with pytest.raises(WorkerFailed) as error:
        worker.load()
    assert error.value.code == "memory-never" and "can't be run layer by layer" in error.value.cause
    return error.value


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        ({"init_lora_weights": "olora"}, "init_lora_weights = 'olora'"),
    ],
)
def test_an_adapter_that_computes_with_the_base_when_it_is_loaded_is_refused(
    options: dict[str, Any], why: str, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    base = bases("qwen3, tied")
    folder = adapt(base, tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **options}))
    assert why in refused(Direct("live", EngineSpec(engine="live-layerwise", folder=str(folder), base=str(base)))).cause


def test_a_mixture_of_experts_is_refused_and_not_run_with_made_up_weights(tmp_path: Path) -> None:
    settings = {**LLAMA, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "decoder_sparse_step": 1}
    folder = make("Qwen3Moe", settings, tmp_path / "moe")
    assert "mixtures of experts" in refused(Direct("torch", EngineSpec(engine="torch-layerwise", folder=str(folder)))).cause


@pytest.mark.parametrize("options", [{}, {"target_modules": ["q_proj", "embed_tokens"]}, {"trainable_token_indices": [320, 327]}], ids=str)
def test_an_adapter_that_changes_the_vocabulary_is_refused(options: dict[str, Any], bases: Callable[[str], Path], tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = bases("qwen3, tied")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.resize_token_embeddings(328, mean_resizing=False)
    config = LoraConfig(**{"r": 2, "target_modules": ["q_proj"], **options})
    get_peft_model(model, config).save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    spec = EngineSpec(engine="live-layerwise", folder=str(tmp_path / "adapter"), base=str(base))
    assert "weight from [320, 64] to [328, 64]" in refused(Direct("live", spec)).cause


@pytest.mark.parametrize("factor", [1.0, -0.5])
def test_tied_weights_that_are_stored_twice_are_those_that_transformers_takes(
    factor: float, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(bases("qwen3, tied"), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * factor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert_same(answers("torch", folder, None, tmp_path)[0], answers("torch-layerwise", folder, None, tmp_path)[0])


def test_a_tensor_that_is_missing_is_refused(bases: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(bases("qwen3, tied"), folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "model.layers.1.mlp.up_proj.weight" in refused(Direct("torch", EngineSpec(engine="torch-layerwise", folder=str(folder)))).cause


@pytest.mark.slow
def test_the_stages_give_the_same_outputs_in_both_ways_and_say_which(
    start_stage: Any, pico_base: Path, pico_checkpoint: Path, folders: dict[str, Path]
) -> None:
    options = {"samples": 3, "new_tokens": 6, "speed_tokens": 0}
    inputs = {"merge": folders["pytorch"], "pytorch": folders["pytorch"]}
    stages: dict[str, dict[str, Any]] = {}
    for way in ("default", LAYER_BY_LAYER):
        reference = start_stage("reference", pico_checkpoint, pico_base, inputs, strategy=way, **options)
        result = reference.result()
        assert result.outcome == "succeeded", result.fault
        folder = Path(reference.context.staging)
        merged = start_stage("merged", pico_checkpoint, pico_base, {**inputs, "reference": folder}, strategy=way, **options)
        stages[way] = {"reference": result, "merged": merged.result(), "folders": (folder, Path(merged.context.staging))}
    mine = stages[LAYER_BY_LAYER]
    assert not stages["default"]["reference"].fallbacks and "way" not in stages["default"]["reference"].figures["reference"]
    told = [(one.wanted, one.taken) for stage in ("reference", "merged") for one in mine[stage].fallbacks]
    assert told == [("the model in one piece", "layer by layer")] * 2
    assert mine["reference"].figures["reference"]["way"] == mine["merged"].checks[0].figures["way"] == "layer by layer"
    assert mine["reference"].strategy == mine["merged"].strategy == LAYER_BY_LAYER and mine["reference"].reusable
    for whole, layerwise in zip(stages["default"]["folders"], mine["folders"], strict=True):
        names = sorted(path.name for path in (whole / "logits").iterdir())
        assert names and names == sorted(path.name for path in (layerwise / "logits").iterdir())
        for name in names:
            np.testing.assert_array_equal(np.load(whole / "logits" / name), np.load(layerwise / "logits" / name))
    samples = [json.loads((stages[way]["folders"][0] / "reference.json").read_text())["samples"] for way in stages]
    assert samples[0] == samples[1], "tokens and texts are the same, those of the base without its adapter too"


def test_a_weight_that_is_read_by_rows_can_not_be_computed_with_otherwise(bases: Callable[[str], Path]) -> None:
    import torch

    worker = Direct("torch-layerwise", EngineSpec(engine="torch-layerwise", folder=str(bases("qwen3, tied"))))
    worker.load()
    weight = worker._commands._engine._model.lm_head.weight
    assert tuple(weight.shape) == (320, 64) and weight.dtype == torch.float32
    for use in (lambda: weight + 1, lambda: weight.norm(), lambda: torch.ones(1, 320) @ weight, lambda: weight.clone()):
        with pytest.raises(RuntimeError, match="read row by row alone"):
            use()
    with pytest.raises(RuntimeError, match="outside of its lockstep"):
        torch.nn.functional.linear(torch.ones(1, 64), weight)


def test_a_stage_refuses_a_model_that_its_adapter_made_into_another_kind() -> None:
    context = StageContext.model_construct(strategy=LAYER_BY_LAYER, stage="reference", base="/base")
    assert engine_for("live", context, "causal") == "live-layerwise"
    assert engine_for("live", context.model_copy(update={"strategy": "default"}), "encoder") == "live"
    for name, kind in (("live", "encoder"), ("torch", "seq2seq"), ("onnx", "causal")):
        with pytest.raises(Permanent) as error:
            engine_for(name, context, kind)
        assert error.value.fault.code == "memory-never"
