"""What the correction of errors is worth in pytorch-w4a16: its divergence beside that of rounding to nearest, on the same trained model.

    python benchmarks/weights_4bit.py [--json FILE] [--seconds 60] [--steps 60] [--texts 16]

The demo's base learns Python for `--seconds`, a LoRA adapter is trained on it for `--steps` and merged. The merged model is then quantized
by the stage itself: to nearest, with its errors corrected by the texts that an export has by default (`kl_gptq`), and by `--texts` pieces
of Python beside them (`kl_gptq_texts`). `kl_…`: nats a token against the merged model in fp32, over pieces of other Python files, which are
not calibrated with. `kl_gptq_over_rtn` is below 1 where correction helps. Sizes are bytes over the merged model's.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, artifacts
from daemon.contract.jobs.messages import CheckpointRef, StageContext
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from handlers.pytorch.options import PytorchOptions

PIECE = 1200
"""Characters of a text."""
COMPARED = 16


def pieces(count: int, skipped: int) -> list[str]:
    """Pieces of the standard library's files, each from another one; `skipped` of those files are left to others."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    long = [text for text in (path.read_text(errors="replace") for path in files) if len(text) > 3 * PIECE]
    return [text[PIECE : 2 * PIECE] for text in long[skipped : skipped + count]]


def quantize(merged: Path, base: Path, folder: Path, prompts: Path | None, *, corrected: bool) -> tuple[Path, dict[str, Any], float]:
    """The folder that the stage makes, its figures, and the seconds that it took."""
    from handlers.child.progress import Reporter
    from handlers.pytorch.quantize import compressed

    for name in ("staging", "temporary", "cache"):
        (folder / name).mkdir(parents=True)
    options = PytorchOptions(error_correction=corrected, calibration_samples=64)
    validation = ValidateOptions(prompts=str(prompts or ""))
    reference = CheckpointRef(root="r", run="bench", step=1, path=str(merged), layout="trainer-full", digest="0" * 64, method="full")
    context = StageContext(
        job="bench", stage="pytorch-w4a16", attempt=1, checkpoint=reference, pin=str(base), inputs={"merge": str(merged)},
        staging=str(folder / "staging"), result=str(folder / "result.json"), temporary=str(folder / "temporary"),
        cache=str(folder / "cache"), work=Work(export=ExportOptions(), validation=validation).with_options(options),
    )  # fmt: skip
    started = time.monotonic()
    with open(os.devnull, "w") as nobody:
        output = compressed.w4a16(context, Reporter(nobody))
    return folder / "staging", output.figures, time.monotonic() - started


def divergence(reference: Any, folder: Path, rows: Sequence[Sequence[int]]) -> float:
    """Mean KL(reference ‖ folder) in nats a token; the folder is loaded and computes as its users have it."""
    import torch
    from transformers import AutoModelForCausalLM

    model, total = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval(), 0.0
    with torch.inference_mode():
        for row in rows:
            ids = torch.tensor([row])
            wanted, found = (one(ids).logits[0].float().log_softmax(-1) for one in (reference, model))
            total += float((wanted.exp() * (wanted - found)).sum())
    return total / sum(map(len, rows))


def main() -> None:
    """Train, merge, quantize in three ways, print the table, write the JSON file."""
    parser = _common.parser("What the correction of errors is worth in pytorch-w4a16.")
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of the base")
    parser.add_argument("--steps", type=int, default=60, help="training steps of the adapter")
    parser.add_argument("--texts", type=int, default=16, help="texts to calibrate with beside the default ones")
    options = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from handlers.merge import merge_adapter
    from handlers.models.prompts import BUILT_IN

    with _common.scratch("weights_4bit") as folder:
        checkpoint, base, merged = artifacts.train(folder, options.seconds, options.steps), folder / "bases" / "base", folder / "merged"
        merged.mkdir()
        merge_adapter(checkpoint, base, merged)
        tokenizer = AutoTokenizer.from_pretrained(base)
        rows = [tokenizer(text)["input_ids"][:256] for text in pieces(COMPARED, 0)]
        prompts = folder / "prompts.txt"
        more = [" ".join(text.split()) for text in pieces(options.texts, COMPARED)]
        prompts.write_text("\n".join([text.replace("\n", " ") for text in BUILT_IN] + more) + "\n")
        reference = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
        figures: dict[str, Any] = {"parameters": reference.num_parameters(), "compared_tokens": sum(map(len, rows))}
        for name, corrected, texts in (("rtn", False, None), ("gptq", True, None), ("gptq_texts", True, prompts)):
            made, said, seconds = quantize(merged, base, folder / name, texts, corrected=corrected)
            figures[f"kl_{name}"] = divergence(reference, made, rows)
            figures[f"seconds_{name}"] = seconds
            figures["size_ratio"] = said["size_ratio_to_merged"]
            if corrected:
                figures[f"calibration_tokens_{name}"] = said["calibration_tokens"]
        figures["kl_gptq_over_rtn"] = figures["kl_gptq"] / figures["kl_rtn"]
        figures["kl_gptq_texts_over_rtn"] = figures["kl_gptq_texts"] / figures["kl_rtn"]
    _common.write("weights_4bit", figures, options.json, libraries=("torch", "transformers", "compressed-tensors"))


if __name__ == "__main__":
    main()
