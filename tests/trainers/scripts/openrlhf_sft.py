"""OpenRLHF's own `save_model` on a small model: `global_stepN_hf`, as its trainers call it with `--ckpt.save_hf`.

Its trainers need GPUs, and its package flash-attn, which no step of this touches: it gets empty modules of that name. DeepSpeed's state
beside it, which comes first, is what `save_ckpt` leaves of the files that tell it.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch

from tests.trainers.scripts.live import arguments, causal, logits, train_step


class _Anything(ModuleType):
    """A module that has every name."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **more: None


for _name in ("flash_attn", "flash_attn.bert_padding", "flash_attn.utils", "flash_attn.utils.distributed"):
    sys.modules[_name] = _Anything(_name)
    sys.modules[_name].__spec__ = ModuleSpec(_name, None)

if __name__ == "__main__":
    from openrlhf.utils.deepspeed import deepspeed

    bases, run, record = arguments()
    record.versions("openrlhf", "transformers")
    deepspeed.torch_dist_barrier_and_cuda_sync = lambda: None
    model, tokenizer = causal(bases / "causal")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    strategy: Any = object.__new__(deepspeed.DeepspeedStrategy)
    strategy.args = SimpleNamespace(ds=SimpleNamespace(zero_stage=2, tensor_parallel_size=1))
    strategy.stage, strategy.ds_tensor_parallel_size = 2, 1
    strategy.is_rank_0, strategy._unwrap_model = (lambda: True), (lambda wrapped: wrapped)
    for step in range(1, 5):
        train_step(model, optimizer)
        if step % 2 == 0:
            tag = run / f"global_step{step}"
            tag.mkdir(parents=True)
            torch.save({"module": model.state_dict()}, tag / "mp_rank_00_model_states.pt")
            (run / "zero_to_fp32.py").touch()
            (run / "latest").write_text(tag.name)
            strategy.save_model(model, tokenizer, str(run / f"{tag.name}_hf"))
            record.add(run / f"{tag.name}_hf", logits(model))
