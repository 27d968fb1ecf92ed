"""Megatron-Core's own `dist_checkpointing` on its own GPT on the CPU: `iter_N` in the form torch_dist.

Its trainer needs GPUs; the order of what is written is that of `save_checkpoint` (megatron/training/checkpointing.py).
"""

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer.transformer_config import TransformerConfig

from tests.trainers.scripts.live import IDS, arguments

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("megatron-core", "torch")
    initialize_rng_tracker(inference_rng_tracker=True)  # the other asks for a GPU's state
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda: None  # type: ignore[assignment]
    torch.distributed.init_process_group("gloo", init_method=f"file://{record.folder}/rendezvous", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True, hidden_dropout=0.0,
                               attention_dropout=0.0)  # fmt: skip
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=320, max_sequence_length=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    ids = torch.tensor([IDS])
    places = torch.arange(ids.shape[1])[None]
    mask = torch.ones(1, 1, ids.shape[1], ids.shape[1]).tril() < 0.5
    for step in range(1, 5):
        model(ids, places, mask, labels=ids).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2:
            continue
        folder = run / f"iter_{step:07d}"
        folder.mkdir(parents=True)
        state = {"model": model.sharded_state_dict(), "iteration": step, "checkpoint_version": 3.0}
        dist_checkpointing.save(state, str(folder))
        (run / "latest_checkpointed_iteration.txt").write_text(str(step))
        with torch.no_grad():
            record.add(folder, model(ids, places, mask).float().numpy())
    torch.distributed.destroy_process_group()
