"""A checkpoint to merged model, ONNX and int8, each looked at: `ckptd export` beside the commands that people type one after the other.

    python benchmarks/pipeline.py --toolchains STATE [--json FILE] [--layers 28] [--hidden 512] [--tokens 32000] [--rounds 3] [--threads 1]

The model is Qwen3-shaped with random weights; a LoRA adapter of all linear layers is trained on it for a few steps. The commands: PEFT's
merge and save, optimum's export of the merged model to ONNX (from the toolchain of that name in STATE), onnxruntime's dynamic
quantization, and for each of the two graphs a process that runs a text through it and through the merged model. `ckptd export` makes and
checks `pytorch`, `onnx` and `onnx-int8` of each checkpoint; `first` is the first one of the architecture, `later` are further ones.
Seconds are of the wall, `cpu_seconds` those of all processes together, `peak_mb` the largest process. Rounds are in turns, both sides on
the same number of threads: what a library computes in parallel, and for ckptd also the stages that run side by side. Without
`--toolchains` only `ckptd export` is measured.

`speedup_over_peers` is how many times as fast as the commands a later checkpoint is, by the wall. `speedup_over_peers_with_checks` is the
same of commands that compare what ckptd compares, instead of one pass of each graph: the live model, its base, the merged model and both
graphs continue the same texts and are compared at every position, by transformers' and optimum's `generate` and forward. `small_export_s`
are the seconds of the second checkpoint of a model with 0.85 M parameters, and `small_speedup_over_peers` how many times as fast as the
commands that is.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _stages
from daemon.toolchains.registry import Toolchains
from handlers.texts.built_in import BUILT_IN

FAILED_CHECK = 3
"""Exit code of an export of which some variant failed its check: with random weights, int8 may."""
NEW, SAMPLES = 24, 6
"""Tokens that each model continues each text by, and the number of texts: what `[validate]` has."""
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


LIVE = """
import json, sys, numpy as np, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
base, adapter, merged, texts, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(base)
loaded = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
live = PeftModel.from_pretrained(loaded, adapter).eval()
def told(model, ids):
    with torch.no_grad():
        said = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)
        return said, torch.log_softmax(model(said).logits[0], -1)
rows = []
for text in json.loads(texts):
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    rows.append((ids, *told(live, ids)))
    with live.disable_adapter():
        told(live, ids)
np.savez(out, **{f"{name}{number}": row[place] for number, row in enumerate(rows) for place, name in enumerate(("ids", "said", "logits"))})
del live, loaded
model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
for ids, said, logits in rows:
    also, found = told(model, ids)
    with torch.no_grad():
        other = torch.log_softmax(model(said).logits[0], -1)
    print(float((logits.exp() * (logits - other)).sum(-1).mean()), bool(torch.equal(also, said)))
""".replace("NEW", str(NEW))
GRAPH = """
import sys, numpy as np, torch
from optimum.onnxruntime import ORTModelForCausalLM
folder, file, saved = sys.argv[1:]
model, known = ORTModelForCausalLM.from_pretrained(folder, file_name=file), np.load(saved)
for number in range(len(known.files) // 3):
    ids, said, logits = (torch.from_numpy(known[f"{name}{number}"]) for name in ("ids", "said", "logits"))
    also = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)
    other = torch.log_softmax(model(input_ids=said, attention_mask=torch.ones_like(said)).logits[0], -1)
    print(float((logits.exp() * (logits - other)).sum(-1).mean()), bool(torch.equal(also, said)))
""".replace("NEW", str(NEW))


def cost(work: Callable[[], list[int]]) -> dict[str, float]:
    """What `work`, which gives the peaks of its processes, takes."""
    before, started = _common.children_cpu(), time.perf_counter()
    peaks = work()
    return {"seconds": time.perf_counter() - started, "cpu_seconds": _common.children_cpu() - before, "peak_mb": max(peaks) / 1e6}


def by_commands(python: str, base: Path, adapter: Path, folder: Path, *, same_checks: bool = False) -> list[int]:
    """The commands in sequence; gives the peak of each. `same_checks`: with what ckptd compares, instead of one pass of each graph."""
    shutil.rmtree(folder, ignore_errors=True)
    merged, onnx = folder / "merged", folder / "onnx"
    commands = [
        _common.python("-c", MERGE, str(base), str(adapter), str(merged)),
        [python, "-m", "optimum.exporters.onnx", "--model", str(merged), "--task", "text-generation-with-past", str(onnx)],
        [python, "-c", QUANTIZE, str(onnx / "model.onnx"), str(onnx / "int8.onnx")],
    ]
    names = ("model.onnx", "int8.onnx")
    if same_checks:
        saved = folder / "live.npz"
        commands.append(_common.python("-c", LIVE, str(base), str(adapter), str(merged), json.dumps(BUILT_IN[:SAMPLES]), str(saved)))
        commands += [[python, "-c", GRAPH, str(onnx), name, str(saved)] for name in names]
    else:
        commands += [_common.python("-c", COMPARE, str(merged), str(onnx / name)) for name in names]
    return [_common.run_child(command, env={"PYTHONPATH": ""})[1] for command in commands]


def by_ckptd(base: Path, checkpoint: Path, folder: Path, threads: int, environment: Mapping[str, str] | None = None) -> list[int]:
    """One export; gives its peak. RuntimeError where one of the three was not made. `environment`: further variables."""
    output = folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    configuration = folder / "config.toml"
    configuration.write_text(f'[validate]\non_failed_check = "publish"\n[limits]\nthreads = {threads}\npriority = "normal"\n')
    command = _common.python(
        "-m", "daemon", "export", str(checkpoint), "--base", str(base), "-c", str(configuration), "-o", str(output),
        *(word for variant in ("pytorch", "onnx", "onnx-int8") for word in ("--to", variant)),
    )  # fmt: skip
    _, peak = _common.run_child(command, env={**(environment or {}), "XDG_STATE_HOME": str(folder / "state")}, good=(0, FAILED_CHECK))
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


def ratios(theirs: list[dict[str, float]], ours: list[dict[str, float]]) -> dict[str, float]:
    """The median over the rounds of what they take over what ckptd takes."""
    pairs = list(zip(theirs, ours, strict=True))
    return {name: round(statistics.median(one[name] / other[name] for one, other in pairs), 2) for name in theirs[0]}


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = _common.parser("A checkpoint to merged model, ONNX and int8, beside the commands that people type.")
    parser.add_argument("--toolchains", type=Path, metavar="STATE", help="state directory with the toolchain optimum")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=32000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    threads = options.threads
    os.environ["OMP_NUM_THREADS"] = str(threads)
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
        first, later, commands = cost(lambda: by_ckptd(base, checkpoints[0], folder, threads)), [], []
        same, small, small_commands = list[dict[str, float]](), list[dict[str, float]](), list[dict[str, float]]()
        for checkpoint in checkpoints[1:]:
            later.append(cost(lambda: by_ckptd(base, checkpoint, folder, threads)))  # noqa: B023 (called at once)
            if found is not None:
                python = str(found.python)
                commands.append(cost(lambda: by_commands(python, base, checkpoint, folder / "peer")))  # noqa: B023
                same.append(cost(lambda: by_commands(python, base, checkpoint, folder / "peer", same_checks=True)))  # noqa: B023
        by_ckptd(*small_checkpoint(folder, 1), folder / "small", threads)
        second = small_checkpoint(folder, 2)
        for _ in range(options.rounds):
            small.append(cost(lambda: by_ckptd(*second, folder / "small", threads)))
            if found is not None:
                small_commands.append(cost(lambda: by_commands(str(found.python), *second, folder / "peer")))
    figures: dict[str, Any] = {"base_mb": round(weights / 1e6, 1), "threads": threads, "first": medians([first]), "later": medians(later)}
    figures |= {"small_export_s": medians(small)["seconds"], "small_export_cpu_s": medians(small)["cpu_seconds"]}
    figures["peak_mb"] = figures["later"]["peak_mb"]
    if commands:
        figures["commands"] = medians(commands)
        figures["peers_peak_mb"] = figures["commands"]["peak_mb"]
        figures["commands_with_checks"] = medians(same)
        for name, rows in (("first", [first] * len(commands)), ("later", later)):
            figures[f"commands_over_{name}"] = ratios(commands, rows)
            figures[f"commands_with_checks_over_{name}"] = ratios(same, rows)
        figures["speedup_over_peers"] = figures["commands_over_later"]["seconds"]
        figures["small_speedup_over_peers"] = ratios(small_commands, small)["seconds"]
        figures["speedup_over_peers_with_checks"] = figures["commands_with_checks_over_later"]["seconds"]
    _common.write("pipeline", figures, options.json, libraries=("torch", "transformers", "peft", "onnxruntime"))


if __name__ == "__main__":
    main()
