"""What an ONNX export costs, and what its variants are worth: beside torch eager, optimum's export and onnxruntime-genai's own graph.

    python benchmarks/onnx.py [--json FILE] [--layers 4 12 28] [--hidden 512] [--tokens 64] [--rounds 5] [--toolchains STATE]
        [--exports [--forms]] [--refill] [--decoding]

The model is Qwen3-shaped with random weights. `export_…_L` is the stage onnx for L layers as a child process, imports, checks and
optimization included, `export_…_wide` the same for few, wide layers, `chain_export_…_L` for the most layers as a chain of graphs with four
each, `export_…_seq2seq` for an encoder-decoder of the shape of opus-mt; `later_…` is that of a later checkpoint, whose template is there,
`traced_export_…` without templates (`--traced`). `imports_peak_mb` is what the libraries take before any model is there. The variants are
made of the middle size and decode in turns, one thread each. Optimum takes part where STATE (a state directory) holds its toolchain; its
export is measured the same way, as a process of its own: `export_over_optimum` is the processor time of the first export of 28 layers over
that of optimum's, which checks nothing: the median of three rounds in turns. `forked_…` is the first export as the daemon runs it: forked
from a process that has PyTorch and transformers loaded, without their imports, which optimum's time holds.

`--refill` (two minutes): a later checkpoint of the shape of Qwen3-0.6B to fp32, int8 and int4, two threads: `refill_s_06b` their seconds,
`refill_peak_over_fp32` the largest process over the fp32 graph, the comparison with torch included. `--decoding` (ten minutes, 20 GB of
memory) adds the figures of `benchmarks/decoding.py` under the names `decode_…`. `--exports` leaves out the race of the variants.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _stages
from daemon.contract.jobs.messages import ChildLimits
from daemon.contract.jobs.plan import spec_of
from daemon.running.workers import warm
from daemon.toolchains.registry import Toolchains
from handlers.onnx.options import OnnxOptions
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import Time

LIMITS = ChildLimits(threads=1, nice=0, idle=False, oom_score_adj=0)
VARIANTS = (
    "onnx-fp16", "onnx-int8", "onnx-int8-static", "onnx-int8-weight", "onnx-int4", "onnx-genai-fp32", "onnx-genai-fp16", "onnx-genai-int4",
)  # fmt: skip
PROMPT = 64
WIDE = (4, 2048)
"""Layers and hidden size of a model whose weights outweigh what the libraries and the graph's nodes take."""
DEEP = (28, 512)
"""Layers and hidden size of the model whose first export is measured beside optimum's in several rounds."""
TRANSLATION = """
import sys, torch
from transformers import MarianConfig, MarianMTModel
torch.manual_seed(0)
sizes = {f"{half}_{name}": value for half in ("encoder", "decoder") for name, value in
         {"layers": 6, "attention_heads": 8, "ffn_dim": 2048}.items()}
MarianMTModel(MarianConfig(vocab_size=58101, d_model=512, max_position_embeddings=512, pad_token_id=58100, eos_token_id=0,
                           decoder_start_token_id=58100, **sizes)).save_pretrained(sys.argv[1])
"""
IMPORTS = "import torch, transformers, onnx, onnxscript, onnxruntime"


def stage(
    folder: Path,
    name: str,
    inputs: dict[str, Path],
    pin: Path,
    onnx: OnnxOptions | None = None,
    cache: Path | None = None,
    limits: ChildLimits = LIMITS,
) -> tuple[Path, dict[str, Any], float, int]:
    """Run one stage: (its folder, its figures, wall seconds, peak bytes)."""
    job = _stages.job_file(folder, name, inputs, pin, limits=limits, onnx=onnx, cache=cache)
    seconds, peak = _common.run_child(_common.python("-m", "handlers", str(job)), env=_stages.ENVIRONMENT)
    result = json.loads((folder / "result.json").read_text())
    if result["outcome"] != "succeeded":
        raise RuntimeError(f"{name}: {result['fault']}")
    return folder / "staging", result["figures"], seconds, max(peak, result["peak_rss"])


def chain(base: Path, folder: Path, layers: int) -> dict[str, Any]:
    """The model as a chain of graphs with four layers each, for its first checkpoint and a later one."""
    figures: dict[str, Any] = {}
    for whose, cache in (("", None), ("later_", folder / "chain" / "cache")):
        before = _common.children_cpu()
        made, _, seconds, peak = stage(
            folder / f"{whose}chain", "onnx", {"merge": base}, base, OnnxOptions(layers_per_graph=4), cache
        )  # fmt: skip
        figures |= {
            f"{whose}chain_export_seconds_{layers}": round(seconds, 1), f"{whose}chain_export_peak_mb_{layers}": round(peak / 1e6),
            f"{whose}chain_export_cpu_seconds_{layers}": round(_common.children_cpu() - before, 1),
        }  # fmt: skip
        shutil.rmtree(made)
    return figures


def forked_stage(folder: Path, name: str, inputs: dict[str, Path], pin: Path) -> tuple[float, float]:
    """One stage as the daemon runs it, forked from a process that has its libraries loaded: (processor seconds, wall seconds)."""
    job = _stages.job_file(folder, name, inputs, pin, limits=LIMITS)
    environment = {**os.environ, "PYTHONPATH": str(_common.ROOT), **_stages.ENVIRONMENT}
    source = warm.Loaded(warm.kind_of("torch", LIMITS, environment), idle=60.0)
    try:
        while not source.ready:
            time.sleep(0.05)
        ours, theirs = os.pipe()
        with open(os.devnull, "wb") as nowhere:
            attempt = source.fork(warm.order_of(job, folder, name, {}, None), [theirs, nowhere.fileno()], ours)
        os.close(theirs)
        attempt.wait()
    finally:
        source.end()
    result = json.loads((folder / "result.json").read_text())
    if result["outcome"] != "succeeded":
        raise RuntimeError(f"{name}: {result['fault']}")
    return result["cpu_seconds"], result["seconds"]


def size(folder: Path) -> int:
    """Bytes of the graphs in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir() if ".onnx" in path.name)


def optimum(toolchain: Path, base: Path, folder: Path, task: str = "text-generation") -> tuple[Path, float, int]:
    """Optimum's own export of the model: (folder, seconds, peak bytes)."""
    for name in ("scratch", "answer"):
        (folder / name).mkdir(parents=True)
    program = (
        "import sys; from pathlib import Path; from handlers.onnx.tracing.optimum import Exported;"
        "from handlers.toolchains.use import run_module;"
        "run_module(Path(sys.argv[1]), 'handlers.toolchains.optimum_export', dict(source=sys.argv[2], target=sys.argv[3],"
        " scratch=sys.argv[4], task=sys.argv[6], opset=18), Path(sys.argv[5]), Exported)"
    )
    target = folder / "onnx"
    arguments = [str(toolchain), str(base), str(target), str(folder / "scratch"), str(folder / "answer"), task]
    seconds, peak = _common.run_child(_common.python("-c", program, *arguments))  # that of the toolchain's process, which it waits for
    return target, seconds, peak


def model(folder: Path, layers: int, hidden: int) -> Path:
    """A Qwen3 of this size with random weights."""
    return _stages.make_base(
        folder, num_hidden_layers=layers, hidden_size=hidden, intermediate_size=3 * hidden, head_dim=64,
        num_attention_heads=hidden // 64, num_key_value_heads=max(1, hidden // 128),
    )  # fmt: skip


def exported(
    base: Path, folder: Path, toolchain: Path | None, label: str, *, traced: bool = False, task: str = "text-generation"
) -> tuple[dict[str, Any], Path, Path | None]:
    """Both exports of a model: (figures whose names end in `label`, our folder, optimum's). `traced`: ours without a template too."""

    spent = [_common.children_cpu()]

    def cost(whose: str, made: Path, seconds: float, peak: int) -> dict[str, Any]:
        spent.append(_common.children_cpu())
        return {
            f"{whose}export_seconds_{label}": round(seconds, 1), f"{whose}export_peak_mb_{label}": round(peak / 1e6),
            f"{whose}export_cpu_seconds_{label}": round(spent[-1] - spent[-2], 1),
            f"{whose}export_peak_over_graph_{label}": round(peak / size(made), 2), f"{whose}graph_mb_{label}": round(size(made) / 1e6, 1),
        }  # fmt: skip

    ours, told, seconds, peak = stage(folder / f"onnx-{label}", "onnx", {"merge": base}, base)
    figures = cost("", ours, seconds, peak)
    figures |= {f"export_tracing_seconds_{label}": told["export_seconds"], f"nodes_{label}": told["nodes"]}
    figures |= {f"template_{label}": told["template"]}
    processor, wall = forked_stage(folder / f"forked-{label}", "onnx", {"merge": base}, base)
    figures |= {f"forked_export_cpu_seconds_{label}": round(processor, 1), f"forked_export_seconds_{label}": round(wall, 1)}
    shutil.rmtree(folder / f"forked-{label}")
    spent[-1] = _common.children_cpu()
    later, _, seconds, peak = stage(folder / f"later-{label}", "onnx", {"merge": base}, base, cache=folder / f"onnx-{label}" / "cache")
    figures |= cost("later_", later, seconds, peak)
    shutil.rmtree(later)
    if traced:
        made, _, seconds, peak = stage(folder / f"traced-{label}", "onnx", {"merge": base}, base, OnnxOptions(templates=False))
        figures |= cost("traced_", made, seconds, peak)
        shutil.rmtree(made)
    if toolchain is None:
        return figures, ours, None
    theirs, seconds, peak = optimum(toolchain, base, folder / f"optimum-{label}", task)
    return figures | cost("optimum_", theirs, seconds, peak), ours, theirs


def beside_optimum(base: Path, folder: Path, toolchain: Path, rounds: int = 3) -> dict[str, float]:
    """Processor time of a first export over that of optimum's, in turns: medians of so many rounds."""
    ratios: dict[str, list[float]] = {"": [], "forked_": []}
    for number in range(rounds):
        home = folder / f"beside-{number}"
        home.mkdir()
        before = _common.children_cpu()
        stage(home / "cold", "onnx", {"merge": base}, base)
        cold = _common.children_cpu() - before
        forked, _ = forked_stage(home / "forked", "onnx", {"merge": base}, base)
        before = _common.children_cpu()
        optimum(toolchain, base, home / "optimum")
        theirs = _common.children_cpu() - before
        ratios[""].append(cold / theirs)
        ratios["forked_"].append(forked / theirs)
        shutil.rmtree(home)
    return {f"{whose}export_over_optimum": round(statistics.median(found), 2) for whose, found in ratios.items()}


def refill(folder: Path) -> dict[str, Any]:
    """What a later checkpoint of the shape of Qwen3-0.6B costs."""
    base = _stages.make_base(
        folder / "base-06b", num_hidden_layers=28, hidden_size=1024, intermediate_size=3072, head_dim=128, num_attention_heads=16,
        num_key_value_heads=8, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=40960,
    )  # fmt: skip
    two = LIMITS.model_copy(update={"threads": 2})
    first, _, seconds, peak = stage(folder / "first-06b", "onnx", {"merge": base}, base, limits=two)
    figures: dict[str, Any] = {"first_s_06b": round(seconds, 1), "first_peak_over_fp32": round(peak / size(first), 2)}
    whole, spent, largest = size(first), 0.0, 0
    shutil.rmtree(first)
    made = folder
    for name in ("onnx", "onnx-int8", "onnx-int4"):
        given, cache = {"merge": base, "onnx": made}, folder / "first-06b" / "cache"
        inputs = {need: given[need] for need in spec_of(name).needs}
        target, _, seconds, peak = stage(folder / f"later-06b-{name}", name, inputs, base, cache=cache, limits=two)
        made = target if name == "onnx" else made
        spent, largest = spent + seconds, max(largest, peak)
        figures |= {f"refill_s_06b_{name}": round(seconds, 1), f"refill_peak_mb_06b_{name}": round(peak / 1e6)}
    return figures | {"refill_s_06b": round(spent, 1), "refill_peak_over_fp32": round(largest / whole, 2)}


def decoding(folder: Path) -> dict[str, Any]:
    """What `benchmarks/decoding.py` measures, in a process of its own, since it loads PyTorch."""
    file = folder / "decoding.json"
    _common.run_child(_common.python(str(Path(__file__).with_name("decoding.py")), "--json", str(file)))
    return {name: value for name, value in json.loads(file.read_text())["figures"].items() if name.startswith("decode_")}


def race(engines: dict[str, EngineSpec], folder: Path, rounds: int, tokens: int) -> dict[str, tuple[float, float]]:
    """Name → (prefill seconds, tokens a second), medians of turns; each engine in a process of its own."""
    ids = [2 + number % 200 for number in range(PROMPT)]
    workers = {name: EngineWorker(name, spec, folder, LIMITS) for name, spec in engines.items()}
    try:
        for worker in workers.values():
            worker.load()
            worker.ask(Time(rows=[ids], tokens=4))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in workers}
        for _ in range(rounds):
            for name, worker in workers.items():
                answer = worker.ask(Time(rows=[ids], tokens=tokens))
                found[name].append((answer.prefill_seconds, tokens / answer.decode_seconds))
    finally:
        for worker in workers.values():
            worker.close()
    return {name: (statistics.median(a for a, _ in rows), statistics.median(b for _, b in rows)) for name, rows in found.items()}


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = _common.parser("What an ONNX export costs, and what its variants are worth.")
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 12, 28])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--traced", action="store_true", help="export without templates too")
    parser.add_argument("--exports", action="store_true", help="the exports alone")
    parser.add_argument("--forms", action="store_true", help="with --exports: a chain and an encoder-decoder too")
    parser.add_argument("--refill", action="store_true", help="a later checkpoint of the shape of Qwen3-0.6B too")
    parser.add_argument("--decoding", action="store_true", help="decoding on top of long pasts too")
    parser.add_argument("--wide", type=int, nargs=2, default=WIDE, metavar=("LAYERS", "HIDDEN"))
    parser.add_argument("--toolchains", type=Path, help="state directory in which toolchains are installed")
    options = parser.parse_args()
    figures: dict[str, Any] = {"imports_peak_mb": round(_common.run_child(_common.python("-c", IMPORTS))[1] / 1e6)}
    middle = sorted(options.layers)[len(options.layers) // 2]
    installed = Toolchains(options.toolchains).get("optimum") if options.toolchains else None
    toolchain = installed.folder if installed else None
    with _common.scratch("onnx") as folder:
        engines: dict[str, EngineSpec] = {}
        wide, _, _ = exported(model(folder / "base-wide", *options.wide), folder, toolchain, "wide", traced=options.traced)
        figures |= wide
        for layers in options.layers:
            base = model(folder / f"base-{layers}", layers, options.hidden)
            told, made, theirs = exported(base, folder, toolchain, str(layers), traced=options.traced)
            figures |= told
            if (layers, options.hidden) == DEEP and toolchain is not None:
                figures |= beside_optimum(base, folder, toolchain)
            if layers == max(options.layers) and (options.forms or not options.exports):
                figures |= chain(base, folder, layers)
            if layers != middle or options.exports:
                continue
            engines = {
                "eager": EngineSpec(engine="torch", folder=str(base)), "onnx": EngineSpec(engine="onnx", folder=str(made)),
            }  # fmt: skip
            if theirs is not None:
                engines["optimum"] = EngineSpec(engine="onnx", folder=str(theirs))
            for name in VARIANTS:
                inputs = {"merge": base, "onnx": made}
                variant, told, _, _ = stage(folder / name, name, {need: inputs[need] for need in spec_of(name).needs}, base)
                engine = "onnx-genai" if "genai" in name else "onnx"
                engines[name] = EngineSpec(engine=engine, folder=str(variant))
                figures |= {f"{name}_nodes": told.get("nodes"), f"{name}_mb": round(size(variant) / 1e6, 2)}
                figures[f"{name}_size_over_onnx"] = round(size(variant) / size(made), 3)
        (folder / "race").mkdir()
        speeds = {} if options.exports else race(engines, folder / "race", options.rounds, options.tokens)
        if options.forms or not options.exports:
            _common.run_child(_common.python("-c", TRANSLATION, str(folder / "translation")))
            figures |= exported(folder / "translation", folder, toolchain, "seq2seq", task="text2text-generation", traced=options.traced)[0]
        figures |= refill(folder) if options.refill else {}
        figures |= decoding(folder) if options.decoding else {}
    for name, (prefill, speed) in speeds.items():
        figures |= {
            f"{name}_tokens_per_second": round(speed, 1), f"{name}_speed_over_eager": round(speed / speeds["eager"][1], 2),
            f"{name}_prefill_over_eager": round(speeds["eager"][0] / prefill, 2),
        }  # fmt: skip
    _common.write("onnx", figures, options.json, libraries=("torch", "transformers", "onnxruntime", "onnxruntime-genai"))


if __name__ == "__main__":
    main()
