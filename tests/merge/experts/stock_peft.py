"""What stock PEFT makes of a base and an adapter, in a process that imports nothing of this project.

Run as `python stock_peft.py JOBS`, where JOBS is a JSON file with a list of `{"base", "adapter", "output", "dtype", "auto", "example"}`:
`auto` is the auto class, `example` names the inputs in `EXAMPLES`. For each job `output` gets `merged.safetensors` (the state dict of
`merge_and_unload()` with the base in `dtype`), `exact.safetensors` (the same in fp32) and `logits.safetensors` with `live` (of base and
adapter) and `merged`, both computed in fp32; or `error.txt` with the error of loading or merging. The tests compare them with the merge's.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import save_file


def _examples() -> dict[str, dict[str, Any]]:
    ids = torch.arange(3, 19)[None]
    pixels = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
    return {"ids": {"input_ids": ids}, "pair": {"input_ids": ids, "decoder_input_ids": ids[:, :7]}, "pixels": {"pixel_values": pixels}}


def _logits(model: Any, example: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.float().eval()(**example).logits
    return found


def _load(job: dict[str, Any], dtype: str) -> Any:
    cls = getattr(transformers, job["auto"])
    base = cls.from_pretrained(job["base"], dtype=getattr(torch, dtype)).eval()
    return peft.PeftModel.from_pretrained(base, job["adapter"]).eval()


def _save(model: Any, path: Path) -> None:
    save_file({name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}, path)


def _do(job: dict[str, Any]) -> None:
    output, example = Path(job["output"]), _examples()[job["example"]]
    output.mkdir(parents=True)
    try:
        merged, wide = _load(job, job["dtype"]).merge_and_unload(), _load(job, "float32")
        live = _logits(wide, example)
        exact = wide.merge_and_unload()
    except Exception:
        (output / "error.txt").write_text(traceback.format_exc())
        return
    _save(merged, output / "merged.safetensors")
    _save(exact, output / "exact.safetensors")
    save_file({"live": live, "merged": _logits(merged, example)}, output / "logits.safetensors")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for one in json.loads(Path(sys.argv[1]).read_text()):
        _do(one)
