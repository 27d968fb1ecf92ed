"""What trainers write for a step, in the order in which they write it: a dozen layouts, made from their own sources.

Each function names the source that its order is that of. Pieces are written by torch's own writers (`saves`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from safetensors.numpy import save

from tests.saves.saves import (
    ADAPTER,
    CONFIG,
    LORA,
    MODEL,
    REFUSED,
    TOKENIZER,
    Remove,
    Save,
    archive,
    arrays,
    dcp,
    pretrained,
    ranks,
    shards,
    tokenizer,
)


def verl(scratch: Path, *, lora: bool = False, old: bool = False) -> Save:
    """verl/utils/checkpoint/fsdp_checkpoint_manager.py, `save_checkpoint`; up to 0.5 `lora_adapter` comes from workers/fsdp_workers.py."""
    saved, actor = Save(), "global_step_20/actor"
    for folder in ("actor", "critic"):
        place = f"global_step_20/{folder}"
        is_lora = lora and folder == "actor"
        saved.folder(place, ranks(scratch / "ranks", {**MODEL, **LORA} if is_lora else MODEL))
        for kind in ("optim", "extra_state"):
            for rank in range(2):
                saved.write(f"{place}/{kind}_world_size_2_rank_{rank}.pt", archive(scratch))
        saved.write(f"{place}/huggingface/config.json", CONFIG)
        tokenizer(saved, f"{place}/huggingface")
        whole = len(saved.operations)  # a release that wrote no fsdp_config.json is not told from one that was stopped before it
        saved.write(f"{place}/fsdp_config.json", json.dumps({"FSDP_version": 2, "world_size": 2}))
        if is_lora and not old:
            saved.write(f"{place}/lora_train_meta.json", json.dumps({"r": 2, "lora_alpha": 4, "task_type": "CAUSAL_LM"}))
        if is_lora and old:
            pretrained(saved, f"{place}/lora_adapter", adapter=True)
            saved.ends(f"{place}/lora_adapter")
        elif folder == "actor":
            saved.ends(actor)
            saved.whole_after[actor] = saved.whole_after[actor] if is_lora else whole
    saved.write("global_step_20/data.pt", archive(scratch))
    saved.write("latest_checkpointed_iteration.txt", "20")
    return saved


def verl_hf(scratch: Path) -> Save:
    """The same with save_contents = ["hf_model"]: configuration and tokenizer, and then the whole model."""
    saved, place = Save(), "global_step_20/actor/huggingface"
    saved.write(f"{place}/config.json", CONFIG)
    tokenizer(saved, place)
    saved.write("global_step_20/actor/fsdp_config.json", json.dumps({"FSDP_version": 2, "world_size": 2}))
    pretrained(saved, place)
    saved.ends(place)
    return saved


def verl_megatron(scratch: Path, *, old: bool = True) -> Save:
    """verl/utils/checkpoint/megatron_checkpoint_manager.py: `dist_ckpt` by Megatron-Core, `huggingface` with the configuration."""
    saved, place = Save(), "global_step_20/actor/dist_ckpt"
    megatron_files(saved, place, scratch, old=old)
    saved.ends(place, REFUSED)
    saved.write("global_step_20/actor/huggingface/config.json", CONFIG)
    tokenizer(saved, "global_step_20/actor/huggingface")
    saved.write("global_step_20/actor/transformer_config.json", "{}")
    return saved


def openrlhf(scratch: Path) -> Save:
    """openrlhf/trainer/sft_trainer.py, `save_logs_and_checkpoints`: DeepSpeed's state of the step, then the model in `global_stepN_hf`."""
    saved = Save(listed=("_critic",))
    for place in ("_actor", "_critic"):
        saved.write(f"{place}/global_step20/mp_rank_00_model_states.pt", archive(scratch))
        saved.write(f"{place}/global_step20/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", archive(scratch))
        saved.write(f"{place}/zero_to_fp32.py", "")
        saved.write(f"{place}/latest", "global_step20")
    pretrained(saved, "global_step20_hf")
    saved.ends("global_step20_hf")
    tokenizer(saved, "global_step20_hf")
    return saved


def nemo(scratch: Path, *, adapter: bool = False, consolidated: bool = True) -> Save:
    """nemo_automodel/recipes/base_recipe.py, `save_checkpoint`, and components/checkpoint/checkpointing.py, `save_model`."""
    saved, step = Save(), "epoch_0_step_20"
    saved.write(f"{step}/.incomplete", "")
    saved.write(f"{step}/losses.json", "{}")
    if adapter:
        saved.write(f"{step}/model/adapter_config.json", ADAPTER)
        saved.write(f"{step}/model/automodel_peft_config.json", "{}")
        tokenizer(saved, f"{step}/model")
        saved.write(f"{step}/model/adapter_model.safetensors", save(arrays(LORA)))
    else:
        meta = {"config.json": CONFIG.encode(), **TOKENIZER, "fqn_to_file_index_mapping.json": b"{}"}
        saved.folder(f"{step}/model/.hf_metadata", meta)
        saved.folder(f"{step}/model", shards(scratch / "shards", MODEL))
        if consolidated:
            saved.folder(f"{step}/model/consolidated", {"config.json": CONFIG.encode(), **TOKENIZER})
            saved.write(f"{step}/model/consolidated/model-00001-of-00001.safetensors", save(arrays(MODEL)))
            index = {"metadata": {}, "weight_map": dict.fromkeys(MODEL, "model-00001-of-00001.safetensors")}
            saved.write(f"{step}/model/consolidated/model.safetensors.index.json", json.dumps(index))
    saved.folder(f"{step}/optim", dcp(scratch / "dcp", {"w": (4,)}))
    saved.write(f"{step}/config.yaml", "a: 1")
    saved.write("LATEST.txt", step)
    saved.operations.append(Remove(f"{step}/.incomplete"))
    saved.ends(f"{step}/model/consolidated" if consolidated and not adapter else f"{step}/model")
    return saved


def prime_rl(scratch: Path) -> Save:
    """prime_rl/trainer/ckpt.py, weights.py: the step before has its mark, and this one's comes last."""
    saved = Save(listed=("broadcasts",))
    pretrained(saved, "weights/step_10")
    saved.write("weights/step_10/STABLE", "", whole=True)
    saved.ends("weights/step_10")
    saved.whole_after["weights/step_10"] = 2  # nothing was there to compare it with
    for file in ("model.safetensors", "STABLE"):
        saved.write(f"broadcasts/step_20/{file}", save(arrays(MODEL)) if "." in file else b"", whole=True)
    saved.folder("checkpoints/step_20/trainer", dcp(scratch / "dcp", MODEL), ".metadata")
    pretrained(saved, "weights/step_20")
    tokenizer(saved, "weights/step_20")
    saved.write("weights/step_20/STABLE", "", whole=True)
    saved.ends("weights/step_20")
    return saved


def prime_rl_pieces(scratch: Path) -> Save:
    """The same with the trainer's own state alone."""
    saved = Save()
    saved.write("config.json", CONFIG)
    saved.write("checkpoints/step_20/trainer/dataloader/rank_0.pt", archive(scratch))
    saved.folder("checkpoints/step_20/trainer", dcp(scratch / "dcp", MODEL), ".metadata")
    saved.ends("checkpoints/step_20/trainer")
    return saved


def veomni(scratch: Path) -> Save:
    """veomni/trainer/callbacks/checkpoint_callback.py and checkpoint/dcp_checkpointer.py: the model's assets, extra state, pieces."""
    saved = Save()
    saved.folder("model_assets", {"config.json": CONFIG.encode(), **TOKENIZER})
    saved.write("checkpoints/global_step_20/extra_state/extra_state_rank_0.pt", archive(scratch))
    saved.folder("checkpoints/global_step_20", dcp(scratch / "dcp", MODEL), ".metadata")
    saved.ends("checkpoints/global_step_20")
    return saved


def veomni_hf(scratch: Path) -> Save:
    """The same at the end of a training, where the model follows in `hf_ckpt`, without assets to read the pieces by.

    veomni/utils/save_safetensor_utils.py, `save_hf_safetensor`: the weights, and then configuration and tokenizer.
    """
    saved, place = Save(), "checkpoints/global_step_20/hf_ckpt"
    saved.write("checkpoints/global_step_20/extra_state/extra_state_rank_0.pt", archive(scratch))
    saved.folder("checkpoints/global_step_20", dcp(scratch / "dcp", MODEL), ".metadata")
    saved.ends("checkpoints/global_step_20")
    saved.write(f"{place}/model.safetensors", save(arrays(MODEL)))
    saved.write(f"{place}/config.json", CONFIG)
    saved.ends(place)
    tokenizer(saved, place)
    return saved


def torchtitan(scratch: Path) -> Save:
    """torchtitan/components/checkpoint.py: torch.distributed.checkpoint alone; its user has put configuration and tokenizer beside it."""
    saved = Save()
    saved.folder("checkpoint", {"config.json": CONFIG.encode(), **TOKENIZER})
    saved.folder("checkpoint/step-20", dcp(scratch / "dcp", MODEL), ".metadata")
    saved.ends("checkpoint/step-20")
    return saved


def megatron_files(saved: Save, place: str, scratch: Path, *, old: bool = True) -> None:
    """megatron/core/dist_checkpointing/serialization.py, `save`: pieces and their description, metadata.json at last.

    Before them common.pt, up to 0.18; from 0.19 on that is a piece too.
    """
    if old:
        saved.write(f"{place}/common.pt", archive(scratch))
    common = {} if old else {"common_state/shard_0_1": ["args"]}
    saved.folder(place, dcp(scratch / "dcp", MODEL, **common), ".metadata")
    saved.write(f"{place}/metadata.json", json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))


def megatron(scratch: Path, *, old: bool = True) -> Save:
    """megatron/training/checkpointing.py, `save_checkpoint`."""
    saved = Save()
    megatron_files(saved, "iter_0000020", scratch, old=old)
    saved.ends("iter_0000020", REFUSED)
    saved.write("latest_checkpointed_iteration.txt", "20")
    return saved


def megatron_fsdp(scratch: Path) -> Save:
    """The same with ckpt_format = fsdp_dtensor, by torch alone; then what Megatron-Bridge adds (training/checkpointing.py)."""
    saved = Save()
    saved.folder("iter_0000020", dcp(scratch / "dcp", MODEL, iteration=20), ".metadata")
    saved.ends("iter_0000020", REFUSED)
    saved.write("iter_0000020/train_state.pt", archive(scratch))
    saved.write("latest_checkpointed_iteration.txt", "20")
    saved.write("iter_0000020/run_config.yaml", "a: 1")
    return saved


def megatron_old(scratch: Path) -> Save:
    """The same with ckpt_format = torch: one file for each rank."""
    saved = Save()
    for rank in range(2):
        saved.write(f"iter_0000020/mp_rank_{rank:02}/model_optim_rng.pt", archive(scratch))
    saved.ends("iter_0000020", REFUSED)
    saved.whole_after["iter_0000020"] = 1  # how many ranks there are, nothing says: it is only refused
    saved.write("latest_checkpointed_iteration.txt", "20")
    return saved


def swift(scratch: Path, *, fsdp: bool = False) -> Save:
    """ms-swift's swift/megatron/trainers/base.py: a `checkpoint-N` with Megatron's folder in it; utils/megatron_fsdp_checkpoint.py."""
    saved = Save()
    saved.write("v0/checkpoint-20/args.json", "{}")
    if fsdp:
        saved.folder("v0/checkpoint-20/iter_0000020", dcp(scratch / "dcp", MODEL, iteration=20), ".metadata")
    else:
        megatron_files(saved, "v0/checkpoint-20/iter_0000020", scratch)
    saved.ends("v0/checkpoint-20", REFUSED)
    saved.write("v0/checkpoint-20/latest_checkpointed_iteration.txt", "20")
    return saved


def swift_safetensors(scratch: Path) -> Save:
    """The same with save_safetensors and no_save_optim: what is the same in all ranks, and then the model."""
    saved = Save()
    saved.write("v0/checkpoint-20/args.json", "{}")
    saved.write("v0/checkpoint-20/iter_0000020/common.pt", archive(scratch))
    saved.write("v0/checkpoint-20/latest_checkpointed_iteration.txt", "20")
    pretrained(saved, "v0/checkpoint-20")
    saved.ends("v0/checkpoint-20")
    return saved


def maxtext(scratch: Path) -> Save:
    """Orbax on a file system without atomic renames (orbax/checkpoint/_src/path/atomicity.py, `CommitFileTemporaryPath`)."""
    saved, step = Save(), "checkpoints/20"
    saved.write(f"{step}/_CHECKPOINT_METADATA", json.dumps({"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": None}))
    saved.write(f"{step}/items/d/0001", b"array")
    saved.write(f"{step}/items/_METADATA", "{}")
    saved.write(f"{step}/items/manifest.ocdbt", b"index")
    saved.write(f"{step}/_CHECKPOINT_METADATA", json.dumps({"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": 2}), whole=True)
    saved.ends(step, REFUSED)
    saved.write(f"{step}/commit_success.txt", "x")
    return saved


LAYOUTS: dict[str, Callable[[Path], Save]] = {
    "verl": verl, "verl LoRA": lambda scratch: verl(scratch, lora=True),
    "verl LoRA, old": lambda scratch: verl(scratch, lora=True, old=True),
    "verl hf_model": verl_hf, "verl Megatron": verl_megatron,
    "verl Megatron 0.19": lambda scratch: verl_megatron(scratch, old=False), "OpenRLHF": openrlhf, "NeMo": nemo,
    "NeMo adapter": lambda scratch: nemo(scratch, adapter=True), "NeMo pieces": lambda scratch: nemo(scratch, consolidated=False),
    "prime-rl": prime_rl, "prime-rl pieces": prime_rl_pieces, "VeOmni": veomni, "VeOmni hf_ckpt": veomni_hf, "torchtitan": torchtitan,
    "Megatron": megatron, "Megatron 0.19": lambda scratch: megatron(scratch, old=False), "Megatron-FSDP": megatron_fsdp,
    "Megatron, old": megatron_old, "ms-swift": swift, "ms-swift Megatron-FSDP": lambda scratch: swift(scratch, fsdp=True),
    "ms-swift save_safetensors": swift_safetensors, "MaxText": maxtext,
}  # fmt: skip
