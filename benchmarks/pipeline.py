"""A checkpoint to merged model, ONNX and int8, each looked at: `ckptd export` beside the commands that people type one after the other.

    python benchmarks/pipeline.py --toolchains STATE [--json FILE] [--layers 28] [--hidden 512] [--tokens 32000] [--rounds 3]

The model is Qwen3-shaped with random weights; a LoRA adapter of all linear layers is trained on it for a few steps. The commands: PEFT's
merge and save, optimum's export of the merged model to ONNX (from the toolchain of that name in STATE), onnxruntime's dynamic
quantization, and for each of the two graphs a process that runs a text through it and through the merged model. `ckptd export` makes and
checks `pytorch`, `onnx` and `onnx-int8` of each checkpoint; `first` is the first one of the architecture, `later` are further ones.
Seconds are of the wall, `cpu_seconds` those of all processes together, `peak_mb` the largest process. Rounds are in turns, one thread
each. Without `--toolchains` only `ckptd export` is measured. `speedup_over_peers` is how many times as fast as the commands a later
checkpoint is, by the wall; `small_export_s` are the seconds of the second checkpoint of a model with 0.85 M parameters.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _stages
from daemon.toolchains.registry import Toolchains

FAILED_CHECK = 3
"""Exit code of an export of which some variant failed its check: with random weights, int8 may."""
RUN = """
import sys
from pathlib import Path
from tests.models import train_run
base, run, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
train_run(base, run, steps=2 * count, save_steps=2, learning_rate=1e-3, lora={"target_modules": "all-linear", "r": 8})
"""
MERGE = """
import sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
base, adapter, out = sys.argv[1:]
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype="auto"), adapter).merge_and_unload()
model.save_pretrained(out)
AutoTokenizer.from_pretrained(base).save_pretrained(out)
"""
QUANTIZE = """
import sys
from onnxruntime.quantization import QuantType, quantize_dynamic
quantize_dynamic(sys.argv[1], sys.argv[2], per_channel=True, weight_type=QuantType.QInt8)
"""
COMPARE = """
import sys, numpy as np, onnxruntime, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model, graph = sys.argv[1:]
tokens = AutoTokenizer.from_pretrained(model)("The daemon watches the directories where trainers write.", return_tensors="pt")
with torch.no_grad():
    wanted = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()(**tokens).logits.numpy()
session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
length = tokens["input_ids"].shape[1]
feeds = {name: value.numpy() for name, value in tokens.items()} | {"position_ids": np.arange(length)[None]}
for port in session.get_inputs():
    if port.name.startswith("past"):
        feeds[port.name] = np.zeros([1, port.shape[1], 0, port.shape[3]], np.float32)
found = session.run(["logits"], {port.name: feeds[port.name] for port in session.get_inputs()})[0]
print(np.abs(found - wanted).max())
"""


def cost(work: Callable[[], list[int]]) -> dict[str, float]:
    """What `work`, which gives the peaks of its processes, takes."""
    before, started = _common.children_cpu(), time.perf_counter()
    peaks = work()
    return {"seconds": time.perf_counter() - started, "cpu_seconds": _common.children_cpu() - before, "peak_mb": max(peaks) / 1e6}


def by_commands(python: str, base: Path, adapter: Path, folder: Path) -> list[int]:
    """The commands in sequence; gives the peak of each."""
    shutil.rmtree(folder, ignore_errors=True)
    merged, onnx = folder / "merged", folder / "onnx"
    commands = [
        _common.python("-c", MERGE, str(base), str(adapter), str(merged)),
        [python, "-m", "optimum.exporters.onnx", "--model", str(merged), "--task", "text-generation-with-past", str(onnx)],
        [python, "-c", QUANTIZE, str(onnx / "model.onnx"), str(onnx / "int8.onnx")],
        *(_common.python("-c", COMPARE, str(merged), str(onnx / name)) for name in ("model.onnx", "int8.onnx")),
    ]
    return [_common.run_child(command, env={"PYTHONPATH": ""})[1] for command in commands]


def by_ckptd(base: Path, checkpoint: Path, folder: Path) -> list[int]:
    """One export; gives its peak. RuntimeError where one of the three was not made."""
    output = folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    configuration = folder / "config.toml"
    configuration.write_text('[validate]\non_failed_check = "publish"\n[limits]\nthreads = 1\npriority = "normal"\n')
    command = _common.python(
        "-m", "daemon", "export", str(checkpoint), "--base", str(base), "-c", str(configuration), "-o", str(output),
        *(word for variant in ("pytorch", "onnx", "onnx-int8") for word in ("--to", variant)),
    )  # fmt: skip
    _, peak = _common.run_child(command, env={"XDG_STATE_HOME": str(folder / "state")}, good=(0, FAILED_CHECK))
    reports = list(output.rglob("report.json"))
    made = {one["variant"] for one in json.loads(reports[0].read_text())["artifacts"]} if reports else set()
    if not {"pytorch", "onnx", "onnx-int8"} <= made:
        raise RuntimeError(f"{checkpoint} gave {sorted(made)}")
    return [peak]


def small_checkpoint(folder: Path, number: int) -> tuple[Path, Path]:
    """Base and a checkpoint of a LoRA of a model with 0.85 M parameters; made when it is first asked for."""
    base, run = folder / "small" / "base", folder / "small" / "run"
    if not base.is_dir():
        _stages.make_base(
            base, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            vocab_size=320, tie_word_embeddings=True,
        )  # fmt: skip
        _common.run_child(_common.python("-c", RUN, str(base), str(run), "2"))
    return base, run / f"checkpoint-{2 * number}"


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: round(statistics.median(row[name] for row in rows), 2) for name in rows[0]}


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = _common.parser("A checkpoint to merged model, ONNX and int8, beside the commands that people type.")
    parser.add_argument("--toolchains", type=Path, metavar="STATE", help="state directory with the toolchain optimum")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=32000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    machine = _common.machine()
    found = Toolchains(options.toolchains).get("optimum") if options.toolchains else None
    if options.toolchains and found is None:
        sys.exit(f"{options.toolchains} holds no toolchain optimum; `ckptd toolchain install optimum` installs it")
    with _common.scratch("pipeline") as folder:
        heads = max(1, options.hidden // 64)
        base = _stages.make_base(
            folder / "base", vocab_size=options.tokens, hidden_size=options.hidden, intermediate_size=3 * options.hidden,
            num_hidden_layers=options.layers, num_attention_heads=heads, num_key_value_heads=max(1, heads // 2), head_dim=64,
        )  # fmt: skip
        run = folder / "run"
        _common.run_child(_common.python("-c", RUN, str(base), str(run), str(options.rounds + 1)))
        checkpoints = [run / f"checkpoint-{2 * number}" for number in range(1, options.rounds + 2)]
        weights = sum(file.stat().st_size for file in base.glob("*.safetensors"))
        first, later, commands = cost(lambda: by_ckptd(base, checkpoints[0], folder)), [], []
        for checkpoint in checkpoints[1:]:
            later.append(cost(lambda: by_ckptd(base, checkpoint, folder)))  # noqa: B023 (called at once)
            if found is not None:
                commands.append(cost(lambda: by_commands(str(found.python), base, checkpoint, folder / "peer")))  # noqa: B023
        by_ckptd(*small_checkpoint(folder, 1), folder / "small")
        small = cost(lambda: by_ckptd(*small_checkpoint(folder, 2), folder / "small"))
    figures: dict[str, Any] = {"base_mb": round(weights / 1e6, 1), "first": medians([first]), "later": medians(later)}
    figures |= {"small_export_s": round(small["seconds"], 1), "small_export_cpu_s": round(small["cpu_seconds"], 1)}
    figures["peak_mb"] = figures["later"]["peak_mb"]
    if commands:
        figures["commands"] = medians(commands)
        figures["peers_peak_mb"] = figures["commands"]["peak_mb"]
        for name, rows in (("first", [first] * len(commands)), ("later", later)):
            figures[f"commands_over_{name}"] = {
                key: round(statistics.median(theirs[key] / ours[key] for ours, theirs in zip(rows, commands, strict=True)), 2)
                for key in ("seconds", "cpu_seconds", "peak_mb")
            }
        figures["speedup_over_peers"] = figures["commands_over_later"]["seconds"]
    _common.write("pipeline", figures, options.json, libraries=("torch", "transformers", "peft", "onnxruntime"), taken_on=machine)


if __name__ == "__main__":
    main()
