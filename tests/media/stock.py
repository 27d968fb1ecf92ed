"""Makes a base and an adapter with random factors by stock transformers and PEFT: `python -m tests.media.stock FAMILY FOLDER [DTYPE]`.

Nothing of ckptd is imported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.media.families import FAMILIES


def make(name: str, folder: Path, dtype: str = "float32") -> Path:
    """The checkpoint, beside its base `base`."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    family, base = FAMILIES[name], folder / "base"
    torch.manual_seed(0)
    model = family.make(transformers).eval()
    for key, parameter in model.named_parameters():
        if "norm" in key and key.endswith("weight"):
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(base)
    family.processor(base)
    loaded = getattr(transformers, family.auto).from_pretrained(base, dtype=getattr(torch, dtype))
    wrapped = get_peft_model(
        loaded, LoraConfig(r=4, lora_alpha=8, target_modules=_present(loaded, family.targets), init_lora_weights=False)
    )
    checkpoint = folder / "run" / "checkpoint-4"
    wrapped.save_pretrained(checkpoint)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    return checkpoint


def _present(model: Any, targets: tuple[str, ...]) -> list[str]:
    import torch

    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    return [target for target in targets if any(name.endswith(f".{target}") or name == target for name in linear)]


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
    assert not {"daemon", "handlers"} & sys.modules.keys()
