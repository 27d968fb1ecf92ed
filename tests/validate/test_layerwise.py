"""A model that is read layer by layer answers as the model that is held whole, bit for bit, in a few passes over its weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.protocol import Ahead, Greedy, PaddedBatch, Padding, Request, Teacher
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
    requests.append(Padding(batch=PaddedBatch(prompts=PROMPTS, continuations=[[1, 2, 3]] * 3)))
    passes = 0
    if about.together and told:
        going = worker.ask(Ahead(requests=[one.line for one in requests]))
        while going.more:
            going = worker.ask(Ahead())
        passes = going.passes
    found = []
    for request in requests:
        answer = worker.ask(request)
        found.append(np.load(scratch / "rows.npy") if isinstance(request, Teacher) else answer)
    return found, passes


def assert_same(whole: list[Any], layerwise: list[Any]) -> None:
    for mine, theirs in zip(whole, layerwise, strict=True):
        if isinstance(mine, np.ndarray):
            assert np.ptp(mine) > 0.5
            np.testing.assert_array_equal(mine, theirs)
        else:
            assert mine == theirs


@pytest.mark.parametrize("name", BASES)
def test_a_full_model_answers_the_same_bit_for_bit(name: str, bases: Callable[[str], Path], tmp_path: Path) -> None:
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
