"""The miniature run as its users would: `python -m handlers.validate.miniature.stock SPEC OUT`, the file SPEC holding an EngineSpec.

Started by `proof.py`. It makes the miniature in the folder OUT (`small.py`), loads base and adapters by transformers and PEFT alone, with
the whole model in memory, and writes what they answer. Nothing of the engines that read a model layer by layer is imported here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LIVE, BARE = "live.npy", "bare.npy"


def main(words: list[str]) -> int:
    """Write LIVE and BARE, logits (tokens, vocabulary) with the adapters and without; say on which tokens, or why there is no miniature."""
    import numpy as np
    import torch
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer
    from transformers import AutoModelForCausalLM

    from handlers.validate.miniature import small

    spec, out = json.loads(Path(words[0]).read_text(encoding="utf-8")), Path(words[1])
    torch.set_num_threads(spec["threads"])
    mixture = [(spec["folder"], spec["weight"]), *spec["additions"]]
    try:
        tokens = small.make(Path(spec["base"]), [Path(folder) for folder, _ in mixture], out)
    except Exception as error:  # whatever a configuration holds that nobody has thought of: there is no miniature
        why = str(error) if isinstance(error, small.Unlike) else f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(json.dumps({"unlike": why}))
        return 0
    model = AutoModelForCausalLM.from_pretrained(out / "base", dtype=torch.float32, local_files_only=True)
    wrapped: Any = PeftModel.from_pretrained(model, str(out / "adapter-0"))
    names = ["default"]
    for number in range(1, len(mixture)):
        names.append(f"adapter-{number}")
        wrapped.load_adapter(str(out / names[-1]), names[-1])
    if names[1:]:
        wrapped.base_model.set_adapter(names)
    layers: list[Any] = [module for module in wrapped.modules() if isinstance(module, LoraLayer)]
    for module in layers:
        for name, (_, weight) in zip(names, mixture, strict=True):
            if name in module.scaling and weight != 1:
                module.set_scale(name, weight)
    wrapped.eval()
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        np.save(out / LIVE, wrapped(input_ids=ids).logits[0].float().numpy())
        with wrapped.disable_adapter():
            np.save(out / BARE, wrapped(input_ids=ids).logits[0].float().numpy())
    print(json.dumps({"tokens": tokens}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
