"""Why a layout that is recognized is not exported, and the commands that make of it one that is.

Used by the table of `daemon.checkpoints.layouts`. The weights of these lie in forms that only their own tools can put together.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from daemon.checkpoints.names import COMPOSER
from daemon.contract.faults.advice import quoted
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.sharded.accelerate import is_state
from daemon.contract.sharded.deepspeed import tag_in
from daemon.contract.sharded.forms import FSDP, newest_module

DIFFUSERS_LORA = ("pytorch_lora_weights.safetensors", "pytorch_lora_weights.bin")
"""What `save_lora_weights` of diffusers writes (diffusers/loaders/lora_base.py)."""


def _refusal(code: FaultCode, path: Path, cause: str, remedy: str) -> Fault:
    return Fault(code=code, operation="export the checkpoint", path=str(path), cause=cause, remedy=remedy)


def refuse_unsafe(path: Path, name: str) -> Fault:
    """A pickle that names code: reading it as others do would run that code."""
    return _refusal(
        FaultCode.UNSAFE_PICKLE, path, f"its pickle wants to run {ascii(name)[1:-1]}, which does not belong in a checkpoint",
        "find out who wrote this file before anything else opens it, and save the checkpoint again from the trainer; pickled code is never "
        "executed here",
    )  # fmt: skip


def refuse_outside(path: Path, index: str, name: str) -> Fault:
    """An index that names what is no file beside it."""
    return _refusal(
        FaultCode.CHECKPOINT_DAMAGED, path, f"{index} names {quoted(name)}, which can't be the name of a file beside it",
        "save the checkpoint again from the trainer; files outside of its directory are never read",
    )  # fmt: skip


def refuse_no_tensors(path: Path) -> Fault:
    """A sharded form without a model: the folder of an optimizer, for example."""
    return _refusal(
        FaultCode.DCP_SHARDED, path, "it contains parts of torch.distributed.checkpoint, but no tensor of a model",
        "use the directory that contains the model, or save the model's state_dict too",
    )  # fmt: skip


def refuse_no_adapter_config(path: Path, run: Path) -> Fault:
    """An adapter in pieces: which method, rank and base it has, only adapter_config.json says."""
    code = next(code for code, holds in (
        (FaultCode.DEEPSPEED_SHARDED, tag_in(path) is not None), (FaultCode.FSDP_SHARDED, (path / FSDP).is_dir()),
        (FaultCode.LIGHTNING_CHECKPOINT, newest_module(path) is not None), (FaultCode.ACCELERATE_STATE, is_state(os.listdir(path))),
        (FaultCode.DCP_SHARDED, True),
    ) if holds)  # fmt: skip
    what = {
        FaultCode.LIGHTNING_CHECKPOINT: "Lightning's .ckpt files of an adapter",
        FaultCode.ACCELERATE_STATE: "an adapter's training state",
    }
    return _refusal(
        code, path,
        f"it contains {what.get(code, 'a sharded adapter')}, but no adapter_config.json with its method and base",
        f"put the adapter_config.json of this training into {path if path == run else f'{path} or {run}'} (in the trainer: "
        f"`model.peft_config['default'].save_pretrained({str(run)!r})`, once at the start); the checkpoint is then exported automatically",
    )  # fmt: skip


def refuse_unconfigured(path: Path, run: Path) -> Fault:
    """A model's training state without anything that says which model it is."""
    return _refusal(
        FaultCode.ACCELERATE_STATE, path, "it contains a model's training state, but no config.json, and accelerate writes none",
        f"put the config.json and tokenizer of this training into {path if path == run else run} (in the trainer: "
        f"`model.config.save_pretrained({str(run)!r})`, once at the start), and it is exported automatically; or set "
        'base.map."" = "/folder/of/the/base" and run `ckptd reload`',
    )  # fmt: skip


def refuse_several(path: Path, files: Sequence[str]) -> Fault:
    """A training's state with several models."""
    return _refusal(
        FaultCode.ACCELERATE_STATE, path, f"it contains several models ({', '.join(files[:4])}), and nothing says which is meant",
        "in the trainer, call save_pretrained(OUTPUT) on the model that you want and run `ckptd export OUTPUT`",
    )  # fmt: skip


def refuse_deepspeed(path: Path, cause: str) -> Fault:
    """A state of ZeRO's that is not put together here: of experts, pipelines, tensor parallelism, or with objects of other classes."""
    return _refusal(
        FaultCode.DEEPSPEED_SHARDED, path, f"it contains only DeepSpeed's sharded state, which ckptd can't merge: {cause}",
        "train with stage3_gather_16bit_weights_on_model_save, and every checkpoint is exported automatically; or let whoever trained it"
        " put the weights together with DeepSpeed's zero_to_fp32 and its --safe_serialization, copy config.json and the tokenizer beside"
        " them, and run `ckptd export OUTPUT` on that folder",
    )  # fmt: skip


def refuse_verl(path: Path, cause: str) -> Fault:
    """Refuse pieces of verl's in which FSDP's older tensors lie, or such as are divided along more than one dimension."""
    folder = shlex.quote(str(path))
    return _refusal(
        FaultCode.CONVERT_FIRST, path, f"it is complete, but ckptd can't put verl's pieces together: {cause}",
        f"run `python -m verl.model_merger merge --backend fsdp --local_dir {folder} --target_dir OUTPUT` and `ckptd export OUTPUT`, or"
        " add hf_model to verl's checkpoint.save_contents, and every checkpoint is exported automatically",
    )  # fmt: skip


def refuse_megatron(path: Path) -> Fault:
    """Refuse Megatron-Core's checkpoints, by the tool that has the training: verl, ms-swift, or Megatron-Bridge for all others."""
    folder, above = shlex.quote(str(path)), shlex.quote(str(path.parent))
    if path.name == "dist_ckpt":
        way = (
            f"run `python -m verl.model_merger merge --backend megatron --local_dir {above} --target_dir OUTPUT` and `ckptd export OUTPUT`"
        )
    elif (path / "args.json").is_file() or (path.parent / "args.json").is_file():
        place = folder if (path / "args.json").is_file() else above
        way = f"run `swift export --mcore_model {place} --to_hf true --output_dir OUTPUT` and `ckptd export OUTPUT`"
    else:
        code = (
            f'from megatron.bridge import AutoBridge; AutoBridge.from_hf_pretrained("BASE").export_ckpt({json.dumps(str(path))}, "OUTPUT")'
        )
        first = (
            ""
            if (path / "run_config.yaml").is_file()
            else (" (it has no run_config.yaml: write that first, as the page megatron-lm-to-megatron-bridge of Megatron-Bridge says)")
        )
        way = f"run `python -c {shlex.quote(code)}`, where BASE is the model that was trained, and `ckptd export OUTPUT`{first}"
    return _refusal(
        FaultCode.CONVERT_FIRST, path, "it is complete, but Megatron's weights have other names and shapes than transformers uses", way
    )


def refuse_orbax(path: Path) -> Fault:
    """Refuse Orbax's checkpoints (MaxText): arrays of JAX, under names of the model's own code."""
    items = shlex.quote(str(path / "items"))
    return _refusal(
        FaultCode.CONVERT_FIRST, path, "it is complete, but Orbax's weights have other names and shapes than transformers uses",
        f"for MaxText run `python3 -m maxtext.checkpoint_conversion.to_huggingface model_name=MODEL load_parameters_path={items} "
        "base_output_directory=OUTPUT hardware=cpu skip_jax_distributed_system=true scan_layers=false` (scan_layers as in the training) and"
        " `ckptd export OUTPUT`",
    )  # fmt: skip


def refuse_composer(path: Path) -> Fault:
    """Refuse Composer's files, by the function with which it makes a model's folder of the newest."""
    names = [match for name in os.listdir(path) if (match := COMPOSER.fullmatch(name))]
    newest = max(names, key=lambda match: (int(match[1]), int(match[2])))[0]
    code = (
        "from composer.models import write_huggingface_pretrained_from_composer_checkpoint as write; "
        f'write({json.dumps(str(path / newest))}, "OUTPUT")'
    )
    return _refusal(
        FaultCode.CONVERT_FIRST, path, "it is complete, but only Composer reads its files of a whole training",
        f"run `python -c {shlex.quote(code)}` and `ckptd export OUTPUT`",
    )  # fmt: skip


def refuse_litgpt(path: Path) -> Fault:
    """Refuse litgpt's checkpoints: it names and fuses weights its own way."""
    folder = shlex.quote(str(path))
    merge = f"`litgpt merge_lora {folder}`, then " if (path / "lit_model.pth.lora").exists() else ""
    return _refusal(
        FaultCode.LITGPT_CHECKPOINT, path, "litgpt's weights have other names and shapes than transformers uses",
        f"run {merge}`litgpt convert_from_litgpt {folder} OUTPUT`, load OUTPUT/model.pth into the base with transformers, save that with "
        "save_pretrained and run `ckptd export` on it",
    )  # fmt: skip


def refuse_mlx(path: Path, cause: str) -> Fault:
    """What mlx-lm trained otherwise than by a LoRA of linear layers."""
    return _refusal(
        FaultCode.CONVERT_FIRST, path, f"it is mlx-lm's, and not an adapter that ckptd merges: {cause}",
        f"on a Mac, run `mlx_lm.fuse --model BASE --adapter-path {shlex.quote(str(path))} --save-path OUTPUT` and `ckptd export OUTPUT`",
    )  # fmt: skip


def refuse_diffusers(path: Path) -> Fault:
    """An image model's LoRA, parts or pipeline: nothing here exports these."""
    if (path / "model_index.json").exists():
        fuse = ""
    elif any((path / name).exists() for name in DIFFUSERS_LORA):
        load = f"in diffusers, `pipeline.load_lora_weights({str(path)!r})`, `pipeline.fuse_lora()`"
        fuse = f"{load} and `pipeline.save_pretrained(OUTPUT)`, then "
    else:
        fuse = "in diffusers, put the trained part into its pipeline and save that as OUTPUT, then "
    pipeline = "OUTPUT" if fuse else shlex.quote(str(path))
    return _refusal(
        FaultCode.CONVERT_FIRST, path, "it is complete, but a model of diffusers, which ckptd does not export",
        f"{fuse}`optimum-cli export onnx --model {pipeline} ONNX_FOLDER`",
    )  # fmt: skip


def refuse_lightning(path: Path, cause: str) -> Fault:
    """A module's file whose pickle holds objects of classes, hyperparameters for example, or a folder of another tool's."""
    return _refusal(
        FaultCode.LIGHTNING_CHECKPOINT, path, cause,
        "load it with its LightningModule's load_from_checkpoint, call save_pretrained(OUTPUT) on the model inside and run "
        "`ckptd export OUTPUT`; or keep objects out of the checkpoint (save_hyperparameters(ignore=[...]))",
    )  # fmt: skip
