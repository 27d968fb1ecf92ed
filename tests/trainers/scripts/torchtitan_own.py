"""torchtitan's own Qwen3 and checkpoint manager: `step-N` in its own names, and the last one in Hugging Face's, as last_save_in_hf does."""

import shutil

import torch
from safetensors.torch import load_file
from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.qwen3 import _EMBEDDING_SKIP_INIT, _LINEAR_INIT, Qwen3Model, _build_qwen3_layers, _qwen3_norm
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

from tests.trainers.scripts.live import IDS, arguments
from tests.trainers.scripts.torchtitan_dcp import Stateful


def small() -> Qwen3Model.Config:
    """The shape of the base `causal`."""
    return Qwen3Model.Config(
        vocab_size=320, dim=64, norm=_qwen3_norm(64), enable_weight_tying=True,
        tok_embeddings=Embedding.Config(num_embeddings=320, embedding_dim=64, param_init=_EMBEDDING_SKIP_INIT),
        lm_head=Linear.Config(in_features=64, out_features=320, param_init=_LINEAR_INIT),
        layers=_build_qwen3_layers(
            fuse_qkv=True, n_layers=2, dim=64, n_heads=4, n_kv_heads=2, head_dim=16, hidden_dim=128, attn_backend="flex",
            rope=CosSinRoPE.Config(dim=16, max_seq_len=256, theta=1e6),
        ),
    )  # fmt: skip


if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("torchtitan", "torch")
    record.folder.mkdir(exist_ok=True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{record.folder}/rendezvous", rank=0, world_size=1)
    config = small()
    model = config.build()
    model.init_states(buffer_device=torch.device("cpu"))
    for layer in model.layers.values():
        layer.attention.inner_attention = ScaledDotProductAttention(ScaledDotProductAttention.Config())  # flex needs a GPU to train
    adapter = Qwen3StateDictAdapter(config, None)
    print(model.load_state_dict(adapter.from_hf(load_file(bases / "causal" / "model.safetensors")), strict=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    manager = CheckpointManager(
        CheckpointManager.Config(enable=True, interval=2, last_save_model_only=True, last_save_in_hf=True), dataloader=Stateful(),
        model_parts=[model], optimizers=Stateful(torch.zeros(1)), lr_schedulers=Stateful(), states={"train_state": Stateful()},
        sd_adapter=adapter, base_folder=str(run),
    )  # fmt: skip
    ids = torch.tensor([IDS])
    for step in range(1, 5):
        found = model(ids)
        torch.nn.functional.cross_entropy(found[0, :-1].float(), ids[0, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        manager.save(step, last_step=step == 4)
        if step % 2 == 0:
            with torch.no_grad():
                record.add(run / "checkpoint" / f"step-{step}", model(ids).float().numpy())
    manager.close()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):  # as its user has to: torchtitan writes weights alone
        shutil.copy(bases / "causal" / name, run / "checkpoint" / "step-4")
    torch.distributed.destroy_process_group()
