"""torchtune's LoRA as its recipe `lora_finetune_single_device` saves it: `epoch_N` with the adapter in PEFT's form and the merged model.

The model, its LoRA and the checkpointer are torchtune's; the loop around them is the recipe's in short (its data and logs are left out).
The scripts `torchtune_llama` and `torchtune_qwen2` call it.
"""

import json
import shutil
from typing import Any

import torch
from torchtune import training
from torchtune.modules.peft import (
    get_adapter_params,
    get_adapter_state_dict,
    get_lora_module_names,
    get_merged_lora_ckpt,
    set_trainable_params,
)

from tests.trainers.scripts.live import IDS, arguments

MODULES = ["q_proj", "v_proj"]
SHAPE = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "tie_word_embeddings": False, "initializer_range": 0.15, "max_position_embeddings": 256}  # fmt: skip
"""Of a configuration of transformers."""


def train(base_model: Any, kind: str, build: Any, **more: Any) -> None:
    """Train two epochs. `base_model`: of transformers. `kind`: torchtune's name of it; `build`, `more`: makes its model with LoRA."""
    bases, run, record = arguments()
    record.versions("torchtune", "torchao", "torch")
    base = bases / f"torchtune-{kind.lower()}"
    base_model.save_pretrained(base)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bases / "causal" / name, base)
    # `tune download` writes it; what stands in it becomes the adapter's base_model_name_or_path.
    (base / "original_repo_id.json").write_text(json.dumps({"repo_id": str(base)}))
    checkpointer = training.FullModelHFCheckpointer(str(base), ["model.safetensors"], kind, str(run))
    loaded = checkpointer.load_checkpoint()
    model = build(
        MODULES, apply_lora_to_mlp=True, vocab_size=320, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=64, intermediate_dim=128,
        max_seq_len=256, lora_rank=4, lora_alpha=8, **more,
    )  # fmt: skip
    set_trainable_params(model, get_adapter_params(model))
    model.load_state_dict(loaded[training.MODEL_KEY], strict=False)
    for module in model.modules():
        if hasattr(module, "initialize_parameters"):
            module.initialize_parameters()
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=2e-2)
    ids = torch.tensor([IDS])
    for epoch in range(2):
        for _ in range(2):
            found = model(ids)
            torch.nn.functional.cross_entropy(found[0, :-1], ids[0, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            answer = model(ids).float().numpy()
        state = {key: value.clone() for key, value in model.state_dict().items()}
        adapter = {"r": 4, "lora_alpha": 8, "target_modules": get_lora_module_names(MODULES, True, False), "peft_type": "LORA"}
        checkpointer.save_checkpoint(
            {
                training.ADAPTER_KEY: get_adapter_state_dict(state), training.MODEL_KEY: get_merged_lora_ckpt(state, rank=4, alpha=8),
                training.ADAPTER_CONFIG: adapter, training.SEED_KEY: 1, training.EPOCHS_KEY: epoch, training.TOTAL_EPOCHS_KEY: 2,
                training.MAX_STEPS_KEY: 2, training.OPT_KEY: optimizer.state_dict(),
            },
            epoch=epoch, intermediate_checkpoint=epoch == 0,
        )  # fmt: skip
        record.add(run / f"epoch_{epoch}", answer)
