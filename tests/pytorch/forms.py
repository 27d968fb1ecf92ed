"""The stages of the smaller PyTorch forms, run in the test's process on models that are made here."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.options import MergeOptions
from handlers.child.progress import StageOutput
from handlers.pytorch.options import PytorchOptions
from tests.merge import helpers


def make(variant: str, model: Path, work: Path, *, shard: int | None = None, prompts: str = "", **options: Any) -> tuple[Path, StageOutput]:
    """The folder that a stage makes of a model, taken for a merged one, and what it says."""
    context = helpers.context(work, model, None, method="full", merge=model)
    chosen = context.work.with_options(PytorchOptions(**options))
    validation = chosen.validation.model_copy(update={"prompts": prompts})
    chosen = chosen.model_copy(update={"merge": MergeOptions(max_shard_size=shard), "validation": validation})
    run = pkgutil.resolve_name(catalog().variants[variant].entry)
    return work / "staging", run(context.model_copy(update={"work": chosen, "stage": variant}), helpers.reporter())


def gpt2(folder: Path) -> Path:
    """A model whose linear layers are Conv1D."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(2)
    config = GPT2Config(vocab_size=320, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def loaded(folder: Path, auto: str = "AutoModelForCausalLM", **settings: Any) -> Any:
    """The model of a folder by transformers' own loading, and nothing may be missing or left over."""
    import transformers

    model, info = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True, **{"dtype": "auto", **settings})
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model
