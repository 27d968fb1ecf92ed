"""What libraries of training loops write: accelerate, Lightning, diffusers' examples and mlx-lm, in the order of their own sources.

Each function names the source that its order is that of: accelerate 1.15.0, lightning 2.6.6, diffusers 0.42.1, mlx-lm 0.32.2.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from tests.saves.saves import (
    ADAPTER,
    CONFIG,
    LORA,
    MODEL,
    REFUSED,
    Remove,
    Save,
    archive,
    arrays,
    dcp,
    module,
    pretrained,
    tokenizer,
)

WRAPPED = {f"base_model.model.{name.replace('q_proj', 'q_proj.base_layer')}": shape for name, shape in MODEL.items()} | LORA
"""The state of a PEFT model: base and adapter, under the wrapper's names."""


def state(
    saved: Save, place: str, scratch: Path, *, weights: str = "model.safetensors", shapes: dict[str, tuple[int, ...]] = MODEL
) -> None:
    """accelerate/checkpointing.py, `save_accelerator_state`: weights, optimizer, scheduler, sampler, scaler, and last the random states."""
    if weights.endswith(".safetensors"):
        saved.write(f"{place}/{weights}", save(arrays(shapes)))
    elif weights:
        saved.write(f"{place}/{weights}", archive(scratch, shapes))
    for name in ("optimizer.bin", "scheduler.bin", "sampler.bin", "scaler.pt", "random_states_0.pkl"):
        saved.write(f"{place}/{name}", archive(scratch))


def accelerate(scratch: Path, *, weights: str = "model.safetensors", step: str = "step_20") -> Save:
    """transformers' examples/pytorch/language-modeling/run_clm_no_trainer.py: `step_N`, then the model into the run's own directory."""
    saved = Save()
    state(saved, step, scratch, weights=weights)
    saved.ends(step)
    pretrained(saved, ".")
    saved.ends(".")
    tokenizer(saved, ".")
    saved.write("all_results.json", json.dumps({"perplexity": 2.0}))
    return saved


def accelerate_peft(scratch: Path) -> Save:
    """The same with a PEFT model, whose configuration the loop has written when training began."""
    saved = Save()
    saved.write("adapter_config.json", ADAPTER)
    state(saved, "step_20", scratch, shapes=WRAPPED)
    saved.ends("step_20")
    saved.write("adapter_model.safetensors", save(arrays(LORA)))
    saved.ends(".")
    tokenizer(saved, ".")
    return saved


def accelerate_named(scratch: Path) -> Save:
    """accelerate/accelerator.py, `save_state` with automatic_checkpoint_naming: `checkpoints/checkpoint_N`."""
    saved = Save()
    saved.write("checkpoints/config.json", CONFIG)
    state(saved, "checkpoints/checkpoint_20", scratch)
    saved.ends("checkpoints/checkpoint_20")
    saved.write("checkpoints/checkpoint_20/custom_checkpoint_0.pkl", archive(scratch))
    return saved


def accelerate_several(scratch: Path) -> Save:
    """Two prepared models: `model.safetensors` and `model_1.safetensors`."""
    saved = Save()
    saved.write("step_20/model.safetensors", save(arrays(MODEL)))
    state(saved, "step_20", scratch, weights="model_1.safetensors")
    saved.ends("step_20", REFUSED)
    return saved


def accelerate_fsdp(scratch: Path, *, whole: bool = False) -> Save:
    """accelerate/utils/fsdp_utils.py, `save_fsdp_model` and `save_fsdp_optimizer`: one file of rank 0, or pieces."""
    saved = Save()
    saved.write("config.json", CONFIG)
    if whole:
        saved.write("step_20/pytorch_model_fsdp.bin", archive(scratch, MODEL))
    else:
        saved.folder("step_20/pytorch_model_fsdp_0", dcp(scratch / "dcp", MODEL), ".metadata")
        saved.ends("step_20")
        saved.waits = "step_20"  # for the optimizer, which no export reads, once it is begun
        saved.folder("step_20/optimizer_0", dcp(scratch / "dcp", {"w": (4,)}), ".metadata")
    state(saved, "step_20", scratch, weights="")
    if whole:
        saved.ends("step_20")
    return saved


def lightning(scratch: Path, *, rest: Any = None, outcome: str = "taken") -> Save:
    """lightning/pytorch/callbacks/model_checkpoint.py: a file for each epoch, `last.ckpt`, and then the earlier one is removed.

    lightning/fabric/utilities/cloud_io.py, `_atomic_save`: the file is moved from the folder for temporary files, which is a copy where
    that is another file system. `rest`: what the module's file holds beside the weights.
    """
    saved, place = Save(), "lightning_logs/version_0/checkpoints"
    saved.write("lightning_logs/version_0/hparams.yaml", "a: 1")
    saved.write(f"{place}/epoch=0-step=10.ckpt", module(scratch, MODEL, rest))
    saved.ends(place, outcome)
    saved.write(f"{place}/epoch=1-step=20.ckpt", module(scratch, MODEL, rest), breaks=place)
    saved.write(f"{place}/last.ckpt", module(scratch, MODEL, rest), breaks=place)
    saved.operations.append(Remove(f"{place}/epoch=0-step=10.ckpt"))
    return saved


def lightning_adapter(scratch: Path) -> Save:
    """A callback that calls PEFT's `save_pretrained` (peft/peft_model.py: card, weights, configuration) beside Lightning's own files."""
    saved = Save()
    for epoch, step in ((0, 10), (1, 20)):
        place = f"epoch={epoch}-step={step}"
        saved.write(f"{place}/README.md", "---\n---\n")
        saved.write(f"{place}/adapter_model.safetensors", save(arrays(LORA)))
        saved.write(f"{place}/adapter_config.json", ADAPTER)
        saved.ends(place)
    saved.write("lightning_logs/version_0/checkpoints/epoch=1-step=20.ckpt", module(scratch, LORA))
    saved.ends("lightning_logs/version_0/checkpoints", REFUSED)
    return saved


def lightning_fsdp(scratch: Path) -> Save:
    """lightning/pytorch/strategies/fsdp.py, `save_checkpoint` with state_dict_type = "sharded": a directory, and last `meta.pt`."""
    saved, place = Save(), "lightning_logs/version_0/checkpoints/epoch=1-step=20.ckpt"
    saved.folder(place, dcp(scratch / "dcp", MODEL), ".metadata")
    saved.ends(place)
    saved.write(f"{place}/meta.pt", archive(scratch))
    return saved


def diffusers(scratch: Path, *, lora: bool = True) -> Save:
    """diffusers' examples/text_to_image/train_text_to_image{,_lora}.py: `save_model_hook` before accelerate's own files, then the end.

    At the end the LoRA alone, or the pipeline: diffusers/pipelines/pipeline_utils.py, `save_pretrained`, has its list of parts come last.
    """
    saved, step = Save(), "checkpoint-20"
    if lora:
        saved.write(f"{step}/pytorch_lora_weights.safetensors", save(arrays(LORA)))
    else:
        part(saved, f"{step}/unet", "diffusion_pytorch_model.safetensors")
    state(saved, step, scratch, weights="")
    saved.ends(step, REFUSED)
    saved.whole_after[step] = 1 if lora else 3  # refused whatever follows
    if lora:
        saved.write("pytorch_lora_weights.safetensors", save(arrays(LORA)))
        saved.ends(".", REFUSED)
        return saved
    for name in ("vae", "unet"):
        part(saved, name, "diffusion_pytorch_model.safetensors")
    part(saved, "text_encoder", "model.safetensors")
    saved.write("tokenizer/vocab.json", "{}")
    saved.write("model_index.json", json.dumps({"_class_name": "StableDiffusionPipeline"}))
    saved.ends(".", REFUSED)
    return saved


def part(saved: Save, place: str, weights: str) -> None:
    """A part of a pipeline: configuration, weights."""
    saved.write(f"{place}/config.json", json.dumps({"_class_name": place}))
    saved.write(f"{place}/{weights}", save(arrays(MODEL)))


def mlx(scratch: Path) -> Save:
    """mlx_lm/lora.py and tuner/trainer.py: the configuration when training begins; at each save the adapter in place, then a copy of it."""
    config = {"fine_tune_type": "lora", "model": "org/base", "num_layers": 1, "iters": 20,
              "lora_parameters": {"rank": 2, "scale": 2.0, "dropout": 0.0}}  # fmt: skip
    tensors = {"model.layers.0.self_attn.q_proj.lora_a": (4, 2), "model.layers.0.self_attn.q_proj.lora_b": (2, 4)}
    saved, place = Save(), "adapters"
    saved.write(f"{place}/adapter_config.json", json.dumps(config))
    saved.write(f"{place}/adapters.safetensors", save(arrays(tensors)))
    saved.ends(place)
    saved.write(f"{place}/0000010_adapters.safetensors", save(arrays(tensors)))
    saved.write(f"{place}/adapters.safetensors", save(arrays(tensors)), breaks=place)
    saved.write(f"{place}/0000020_adapters.safetensors", save(arrays(tensors)))
    saved.write(f"{place}/adapters.safetensors", save(arrays(tensors)), breaks=place)
    return saved


LAYOUTS: dict[str, Callable[[Path], Save]] = {
    "accelerate": accelerate, "accelerate .bin": lambda scratch: accelerate(scratch, weights="pytorch_model.bin"),
    "accelerate checkpoint-N": lambda scratch: accelerate(scratch, step="checkpoint-20"), "accelerate PEFT": accelerate_peft,
    "accelerate checkpoint_N": accelerate_named, "accelerate, two models": accelerate_several,
    "accelerate FSDP": accelerate_fsdp, "accelerate FSDP, whole": lambda scratch: accelerate_fsdp(scratch, whole=True),
    "Lightning": lightning, "Lightning, objects": lambda scratch: lightning(scratch, rest=Path("x").stat, outcome=REFUSED),
    "Lightning adapter": lightning_adapter, "Lightning FSDP": lightning_fsdp,
    "diffusers LoRA": diffusers, "diffusers pipeline": lambda scratch: diffusers(scratch, lora=False), "mlx-lm": mlx,
}  # fmt: skip
