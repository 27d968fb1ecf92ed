"""NeMo AutoModel's own checkpointer on a small model: `epoch_E_step_S/model`, in pieces, and at the end consolidated.

Its recipes need a configuration and data; what is called here, and in which order, is `save_checkpoint` of
nemo_automodel/recipes/base_recipe.py.
"""

import torch
from nemo_automodel.components.checkpoint.checkpointing import Checkpointer
from nemo_automodel.components.checkpoint.config import CheckpointingConfig

from tests.trainers.scripts.live import arguments, causal, logits, train_step

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("nemo-automodel", "torch")
    torch.distributed.init_process_group("gloo", init_method=f"file://{record.folder}/rendezvous", rank=0, world_size=1)
    model, tokenizer = causal(bases / "causal")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    config = CheckpointingConfig(
        checkpoint_dir=str(run), model_repo_id=str(bases / "causal"), model_cache_dir=str(record.folder), save_consolidated="final"
    )
    checkpointer = Checkpointer(config, dp_rank=0, tp_rank=0, pp_rank=0)
    for step in range(1, 5):
        train_step(model, optimizer)
        if step % 2 == 0:
            place = run / f"epoch_0_step_{step}"
            checkpointer.lifecycle.reserve(str(place))
            checkpointer.save_model(model, str(place), tokenizer=tokenizer, is_final_checkpoint=step == 4)
            checkpointer.save_optimizer(optimizer, model, str(place))
            checkpointer.lifecycle.publish(str(place), best_val_metric=None, metric_key="default")
            record.add(place / "model" / ("consolidated" if step == 4 else ""), logits(model))
    checkpointer.finalize()
    torch.distributed.destroy_process_group()
