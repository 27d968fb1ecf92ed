"""Why a layout that is recognized is not exported, and the commands that make of it one that is.

Used by the table of `daemon.checkpoints.layouts`. The weights of these lie in forms that only their own tools can put together.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from daemon.contract.errors import Fault
from daemon.contract.fault_codes import FaultCode
from daemon.contract.sharded.forms import FSDP


def _refusal(code: FaultCode, path: Path, cause: str, remedy: str) -> Fault:
    return Fault(code=code, operation="export the checkpoint", path=str(path), cause=cause, remedy=remedy)


def refuse_unsafe(path: Path, name: str) -> Fault:
    """A pickle that names code: reading it as others do would run that code."""
    return _refusal(
        FaultCode.UNSAFE_PICKLE, path, f"its pickle asks to run {ascii(name)[1:-1]}, which is no part of a checkpoint",
        "find out who wrote this file before anything else opens it, and save the checkpoint again from the trainer; pickled code is never "
        "executed here",
    )  # fmt: skip


def refuse_no_tensors(path: Path) -> Fault:
    """A sharded form without a model: the folder of an optimizer, for example."""
    return _refusal(
        FaultCode.DCP_SHARDED, path, "it holds parts of torch.distributed.checkpoint, and none of them is a model's tensor",
        "name the directory that holds the model, or save the model's state_dict too",
    )  # fmt: skip


def refuse_no_adapter_config(path: Path, run: Path) -> Fault:
    """An adapter in pieces: which method, rank and base it has, only adapter_config.json says."""
    places = f"{path} or {run}" if run != path else f"{path}"
    return _refusal(
        FaultCode.FSDP_SHARDED if (path / FSDP).is_dir() else FaultCode.DCP_SHARDED, path,
        "it holds an adapter in pieces, and no adapter_config.json says which method and base it is for",
        f"put the adapter_config.json of this training into {places} (in the trainer: "
        f"`model.peft_config['default'].save_pretrained({str(run)!r})`, once at the start), and it is exported by itself",
    )  # fmt: skip


def refuse_deepspeed(path: Path) -> Fault:
    """ZeRO-3 without stage3_gather_16bit_weights_on_model_save: optimizer shards that hold the weights."""
    folder = shlex.quote(str(path))
    return _refusal(
        FaultCode.DEEPSPEED_SHARDED, path, "it holds DeepSpeed's sharded state alone, no adapter and no model",
        f"run `python {shlex.quote(str(path / 'zero_to_fp32.py'))} {folder} OUTPUT --safe_serialization`, put config.json and tokenizer "
        "beside the result and run `ckptd export OUTPUT`; or train with stage3_gather_16bit_weights_on_model_save, and every checkpoint is "
        "exported by itself",
    )  # fmt: skip


def refuse_litgpt(path: Path) -> Fault:
    """litgpt names and fuses weights its own way."""
    folder = shlex.quote(str(path))
    merge = f"`litgpt merge_lora {folder}`, then " if (path / "lit_model.pth.lora").exists() else ""
    return _refusal(
        FaultCode.LITGPT_CHECKPOINT, path, "litgpt's weights have names and shapes of their own",
        f"run {merge}`litgpt convert_from_litgpt {folder} OUTPUT`, load OUTPUT/model.pth into the base with transformers, save that with "
        "save_pretrained and run `ckptd export` on it",
    )  # fmt: skip


def refuse_lightning(path: Path, cause: str) -> Fault:
    """A module's file whose pickle holds objects of classes, hyperparameters for example, or a folder of another tool's."""
    return _refusal(
        FaultCode.LIGHTNING_CHECKPOINT, path, cause,
        "load it with its LightningModule's load_from_checkpoint, call save_pretrained(OUTPUT) on the model inside and run "
        "`ckptd export OUTPUT`; or keep objects out of the checkpoint (save_hyperparameters(ignore=[...]))",
    )  # fmt: skip
