"""The streaming merge beside `cp -r` of the base and PEFT's load + merge + save, in turns on the same machine.

    python benchmarks/merge.py [--json FILE] [--size small|0.6b|4b] [--rounds 3] [--threads N] [--axolotl FOLDER]

The model is Qwen3-shaped with random weights in bf16, in shards: about 0.2 G parameters, or the shape of the 0.6B or 4B model. The
adapter has r=16 on all linear layers. Every way is a child process of its own. `wall_…` includes the interpreter and its imports,
`merge_…` is the merge alone, `engine_…` the merge without the check of what it wrote, which none of the others makes. `cold_…` are runs
before which the base's pages were dropped from the page cache. Ratios are taken round by round: median and quartiles. A last step counts
the elements in which our output and PEFT's differ. PEFT is left out, and its figures with it, where its memory is not there.

axolotl's merge, which streams as well, takes part where FOLDER holds it unpacked (`pip download --no-deps axolotl`, `unzip`): the
package itself needs a GPU's libraries, its merge does not.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SHAPES: dict[str, dict[str, Any]] = {
    "small": {"vocab_size": 60000, "hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 18, "num_attention_heads": 16},
    "0.6b": {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4b": {"vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
SHARDS = {"small": 150_000_000, "0.6b": 500_000_000, "4b": 2_000_000_000}
"""Size → bytes of a shard."""
AXOLOTL = "CKPTD_BENCH_AXOLOTL"


def make(folder: Path, size: str) -> None:
    """A base and a random adapter below `folder`, made shard by shard, so that the model never lies in memory as a whole."""
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from safetensors.torch import save_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from handlers.merge.plan.output_format import resharded

    torch.manual_seed(0)
    config = Qwen3Config(**SHAPES[size], num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, dtype="bfloat16")
    config.architectures = ["Qwen3ForCausalLM"]
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    noise = torch.randn(1 << 24).mul_(0.02)

    def values(shape: torch.Size) -> torch.Tensor:
        start = int(torch.randint(0, 1 << 20, ()))
        tile = noise[start : start + (1 << 23)]
        return tile.repeat(-(-shape.numel() // len(tile)))[: shape.numel()].view(shape)

    (folder / "base").mkdir()
    (folder / "adapter").mkdir()
    plan = resharded(((name, 2 * shape.numel()) for name, shape in shapes.items()), SHARDS[size])
    for name, tensors in plan.items():
        table = {tensor: values(shapes[tensor]).bfloat16() for tensor in tensors}
        save_file(table, folder / "base" / name, metadata={"format": "pt"})
    mapping = {tensor: name for name, tensors in plan.items() for tensor in tensors}
    index = {"metadata": {"total_size": sum(2 * shape.numel() for shape in shapes.values())}, "weight_map": mapping}
    (folder / "base" / "model.safetensors.index.json").write_text(json.dumps(index))
    config.save_pretrained(folder / "base")
    with torch.device("meta"):
        tuned = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=ALL_LINEAR, task_type="CAUSAL_LM"))
    factors = {name: values(tensor.shape).clone() for name, tensor in get_peft_model_state_dict(tuned).items()}
    save_file(factors, folder / "adapter" / "adapter_model.safetensors", metadata={"format": "pt"})
    tuned.peft_config["default"].save_pretrained(folder / "adapter")


def ours(adapter: Path, base: Path, output: Path, threads: int, check: bool = True) -> None:
    """Our merge; leaves the seconds of the merge alone beside the output."""
    import torch  # noqa: F401 - so that merge_seconds, here as with PEFT, leaves the import out

    from handlers.merge import Execution, merge_adapter

    output.mkdir()
    started = time.perf_counter()
    report = merge_adapter(adapter, base, output, execution=Execution(threads, check=check))
    output.with_suffix(".seconds").write_text(str(time.perf_counter() - started))
    assert report.strategy == "streaming"


def engine(adapter: Path, base: Path, output: Path, threads: int) -> None:
    """Our merge without its check."""
    ours(adapter, base, output, threads, check=False)


def peft(adapter: Path, base: Path, output: Path, threads: int) -> None:
    """PEFT's way."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    started = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(output)
    output.with_suffix(".seconds").write_text(str(time.perf_counter() - started))


def axolotl(adapter: Path, base: Path, output: Path, threads: int) -> None:
    """The streaming merge of axolotl, whose one module is loaded by itself."""
    import importlib.util
    import logging
    import types

    import torch

    torch.set_num_threads(threads)
    stub = types.ModuleType("axolotl.utils.logging")
    stub.get_logger = logging.getLogger  # type: ignore[attr-defined]
    sys.modules |= {"axolotl": types.ModuleType("axolotl"), "axolotl.utils": types.ModuleType("axolotl.utils"), stub.__name__: stub}
    place = Path(os.environ[AXOLOTL]) / "axolotl" / "cli" / "utils" / "lora_merge.py"
    spec = importlib.util.spec_from_file_location("lora_merge", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    started = time.perf_counter()
    module.merge_lora_sharded_efficient(base, adapter, output)
    output.with_suffix(".seconds").write_text(str(time.perf_counter() - started))


def compare(one: Path, other: Path, result: Path) -> None:
    """Write into `result`, as JSON, how many elements two model folders hold and in how many they differ."""
    from safetensors import safe_open

    handles = {name: safe_open(path, "pt") for path in other.glob("*.safetensors") for name in _names(path)}
    different = total = 0
    for path in one.glob("*.safetensors"):
        with safe_open(path, "pt") as mine:
            for name in mine.keys():  # noqa: SIM118 - safe_open is no mapping
                tensor = mine.get_tensor(name)
                total += tensor.numel()
                different += int((tensor != handles[name].get_tensor(name)).sum())
    result.write_text(json.dumps({"elements_compared": total, "elements_different_from_peft": different}))


def _names(path: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(path, "pt") as handle:
        return list(handle.keys())


def drop_cached(folder: Path) -> None:
    """Ask the kernel to forget a folder's pages, as far as they are written."""
    os.sync()
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


WAYS = {"ours": ours, "engine": engine, "peft": peft, "axolotl": axolotl}


class Runs:
    """Runs of the ways, and the seconds of the merge alone that they left."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder, self.base = folder, folder / "base"
        self.alone: dict[str, list[float]] = {}
        script, adapter = str(Path(__file__).resolve()), str(folder / "adapter")
        self.ways = {"cp": ["cp", "-r", str(self.base), str(folder / "out-cp")]}
        for way in WAYS:
            # Our merge uses one thread more than it is given, since threads wait for the disk.
            given = str(threads if way in ("ours", "engine") else threads + 1)
            self.ways[way] = _common.python(script, "--way", way, adapter, str(self.base), str(folder / f"out-{way}"), given)

    def collect(self, name: str) -> None:
        """Take what the last run of a way left."""
        seconds = self.folder / f"out-{name}.seconds"
        if seconds.exists():
            self.alone.setdefault(name, []).append(float(seconds.read_text()))
            seconds.unlink()

    def take(self, names: list[str], rounds: int, *, cold: bool) -> dict[str, Measured]:
        """What each way took, round by round."""

        def before(name: str) -> None:
            self.collect(name)
            shutil.rmtree(self.folder / f"out-{name}", ignore_errors=True)
            if cold:
                drop_cached(self.base)
            os.sync()  # what the last way left to be written must not slow the next one

        self.alone = {}
        found = _common.in_turns({name: self.ways[name] for name in names}, rounds, before=before)
        for name in names:
            self.collect(name)
        return {name: Measured(found[name], self.alone.get(name)) for name in names}


class Measured:
    """One way: seconds of the whole command and of the merge `alone`, round by round (`cp`: the same), and its peak in MB."""

    def __init__(self, samples: list[tuple[float, int]], alone: list[float] | None) -> None:
        self.whole = [seconds for seconds, _ in samples]
        self.alone = alone or self.whole
        self.peak = median(peak for _, peak in samples) / 1e6


def ratios(above: list[float], below: list[float]) -> dict[str, float]:
    """Of the rounds' ratios the median and the quartiles: in each round both ways met the same minute."""
    found = [one / other for one, other in zip(above, below, strict=True)]
    low, middle, high = quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return {"median": middle, "quartile_1": low, "quartile_3": high}


def measure(folder: Path, rounds: int, threads: int) -> dict[str, Any]:
    """The ways in turns; figures as the table shows them."""
    import psutil

    runs = Runs(folder, threads)
    size = sum(path.stat().st_size for path in runs.base.iterdir())
    with_peft = psutil.virtual_memory().available > 1.4 * size + (1 << 30)
    peers = [*(["peft"] if with_peft else []), *(["axolotl"] if AXOLOTL in os.environ else [])]
    with _common.settled_memory(5 * size) as settled:
        warm = runs.take(["cp", "ours", "engine", *peers], rounds, cold=False)
    figures: dict[str, Any] = {"threads": threads, "rounds": rounds, "base_mb": size / 1e6, "memory_settled": settled}
    if with_peft:
        script = str(Path(__file__).resolve())
        compared = folder / "compared.json"
        _common.run_child(_common.python(script, "--compare", str(folder / "out-ours"), str(folder / "out-peft"), str(compared)))
        figures |= json.loads(compared.read_text())
        shutil.rmtree(folder / "out-peft")
    cold = runs.take(["cp", "ours", "engine"], rounds, cold=True)
    for prefix, found in (("", warm), ("cold_", cold)):
        cp, ours, bare = found["cp"], found["ours"], found["engine"]
        figures |= {
            f"{prefix}cp_seconds": median(cp.whole),
            f"{prefix}wall_seconds": median(ours.whole),
            f"{prefix}merge_seconds": median(ours.alone),
            f"{prefix}engine_seconds": median(bare.alone),
            f"{prefix}wall_over_cp": ratios(ours.whole, cp.whole),
            f"{prefix}merge_over_cp": ratios(ours.alone, cp.whole),
            f"{prefix}engine_over_cp": ratios(bare.alone, cp.whole),
        }
    figures["peak_mb"] = warm["ours"].peak
    for name in peers:
        theirs, ours = warm[name], warm["ours"]
        figures |= {
            f"{name}_wall_seconds": median(theirs.whole),
            f"{name}_merge_seconds": median(theirs.alone),
            f"speedup_over_{name}": ratios(theirs.whole, ours.whole),
            f"merge_speedup_over_{name}": ratios(theirs.alone, ours.alone),
            f"engine_speedup_over_{name}": ratios(theirs.alone, warm["engine"].alone),
            f"{name}_peak_mb": theirs.peak,
        }
    return figures


def main() -> None:
    if sys.argv[1:2] == ["--way"]:
        way, adapter, base, output, threads = sys.argv[2:7]
        WAYS[way](Path(adapter), Path(base), Path(output), int(threads))
        return
    if sys.argv[1:2] == ["--make"]:
        make(Path(sys.argv[2]), sys.argv[3])
        return
    if sys.argv[1:2] == ["--compare"]:
        compare(*(Path(one) for one in sys.argv[2:5]))
        return
    parser = _common.parser("streaming merge against cp -r and PEFT")
    parser.add_argument("--size", choices=list(SHAPES), default="small", help="whose shape the model has")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="as the daemon gives a child; the merge and its peers use one more")
    parser.add_argument("--axolotl", type=Path, metavar="FOLDER", help="an unpacked wheel of axolotl")
    options = parser.parse_args()
    if options.axolotl is not None:
        os.environ[AXOLOTL] = str(options.axolotl.resolve())
    with _common.scratch("merge") as folder:
        # In a child too: a process's peak counts from its parent's size at the fork, so this one stays small.
        _common.run_child(_common.python(str(Path(__file__).resolve()), "--make", str(folder), options.size))
        figures = {"size": options.size, **measure(folder, options.rounds, options.threads)}
    _common.write("merge", figures, options.json)


if __name__ == "__main__":
    main()
