"""Why a layout that is recognized is not exported, and the commands that make of it one that is.

Used by the table of `daemon.checkpoints.layouts`. The weights of these lie in forms that only their own tools can put together.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from daemon.contract.errors import Fault
from daemon.contract.fault_codes import FaultCode


def _refusal(code: FaultCode, path: Path, cause: str, remedy: str) -> Fault:
    return Fault(code=code, operation="export the checkpoint", path=str(path), cause=cause, remedy=remedy)


def refuse_fsdp(path: Path) -> Fault:
    """FSDP's SHARDED_STATE_DICT: no adapter and no model, only every rank's part."""
    shards = shlex.quote(str(path / "pytorch_model_fsdp_0"))
    return _refusal(
        FaultCode.FSDP_SHARDED, path, "it holds FSDP's sharded state alone, no adapter and no model",
        f"run `accelerate merge-weights {shards} OUTPUT`, which writes OUTPUT/model.safetensors (rename it to adapter_model.safetensors if "
        "an adapter was trained), put its config.json or adapter_config.json and tokenizer beside it and run `ckptd export OUTPUT`; or "
        "train with fsdp_state_dict_type FULL_STATE_DICT, and every checkpoint is exported by itself",
    )  # fmt: skip


def refuse_dcp(path: Path) -> Fault:
    """torch.distributed.checkpoint by itself, as torchtitan writes it: every rank's part of a state whose names only the trainer knows."""
    folder = shlex.quote(str(path))
    return _refusal(
        FaultCode.DCP_SHARDED, path, "it holds the parts of torch.distributed.checkpoint alone, no adapter and no model",
        f"run `python -m torch.distributed.checkpoint.format_utils dcp_to_torch {folder} OUTPUT.pt`, load that into the model with "
        "transformers (torchtitan: `scripts/checkpoint_conversion/convert_to_hf.py`), save it with save_pretrained(OUTPUT) and run "
        "`ckptd export OUTPUT`",
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


def refuse_lightning(path: Path) -> Fault:
    """A pickled training module: only its class can make sense of it, and pickles are never executed here."""
    return _refusal(
        FaultCode.LIGHTNING_CHECKPOINT, path, "a Lightning .ckpt holds a pickled training module that only its own class can read",
        "load it with its LightningModule's load_from_checkpoint, call save_pretrained(OUTPUT) on the model inside and run "
        "`ckptd export OUTPUT`",
    )  # fmt: skip
