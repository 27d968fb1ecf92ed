"""The streaming merge beside `cp -r` of the base and PEFT's load + merge + save, in turns on the same machine.

    python benchmarks/merge.py [--json FILE] [--large] [--rounds 3] [--threads N]

The model is Qwen3-shaped with random weights in bf16, in shards, about 0.2 G parameters; `--large` takes the shape of the 0.6B
model. The adapter has r=16 on all linear layers. Every way is a child process of its own; its time includes the interpreter and
imports, and `merge_seconds` is the merge alone. A last step counts the elements in which our output and PEFT's differ.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LARGE = {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
SMALL = {"vocab_size": 60000, "hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 18}


def make(folder: Path, large: bool) -> None:
    """A base and a random adapter below `folder`."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape = LARGE if large else SMALL
    config = Qwen3Config(**shape, num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    model.tie_weights()
    model.save_pretrained(folder / "base", max_shard_size="500MB" if large else "150MB")
    tuned = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=ALL_LINEAR, task_type="CAUSAL_LM"))
    for name, parameter in tuned.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    tuned.save_pretrained(folder / "adapter")


def ours(adapter: Path, base: Path, output: Path, threads: int) -> None:
    """Our merge; leaves the seconds of the merge alone beside the output."""
    import torch  # noqa: F401 - so that merge_seconds, here as with PEFT, leaves the import out

    from handlers.merge import merge_adapter

    output.mkdir()
    started = time.perf_counter()
    report = merge_adapter(adapter, base, output, threads=threads)
    output.with_suffix(".seconds").write_text(str(time.perf_counter() - started))
    assert report.strategy == "streaming"


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


def measure(folder: Path, rounds: int, threads: int) -> dict[str, Any]:
    """The three ways in turns; figures as the table shows them."""
    base, adapter = folder / "base", folder / "adapter"
    script = str(Path(__file__).resolve())
    alone: dict[str, list[float]] = {"ours": [], "peft": []}
    ways = {
        "cp": ["cp", "-r", str(base), str(folder / "out-cp")],
        **{
            way: _common.python(script, "--way", way, str(adapter), str(base), str(folder / f"out-{way}"), str(threads)) for way in alone
        },
    }  # fmt: skip

    def before(name: str) -> None:
        collect(name)
        shutil.rmtree(folder / f"out-{name}", ignore_errors=True)
        os.sync()  # what the last way left to be written must not slow the next one

    def collect(name: str) -> None:
        seconds = folder / f"out-{name}.seconds"
        if seconds.exists():
            alone[name].append(float(seconds.read_text()))
            seconds.unlink()

    found = _common.interleaved(ways, rounds, before=before)
    for way in alone:
        collect(way)
    _common.run_child(
        _common.python(script, "--compare", str(folder / "out-ours"), str(folder / "out-peft"), str(folder / "compared.json"))
    )
    merge_seconds, peft_seconds = (sorted(alone[way])[len(alone[way]) // 2] for way in ("ours", "peft"))
    return {
        "threads": threads,
        "rounds": rounds,
        "cp_seconds": found["cp"]["seconds"],
        "wall_seconds": found["ours"]["seconds"],
        "merge_seconds": merge_seconds,
        "peft_wall_seconds": found["peft"]["seconds"],
        "peft_merge_seconds": peft_seconds,
        "wall_over_cp": found["ours"]["seconds"] / found["cp"]["seconds"],
        "merge_over_cp": merge_seconds / found["cp"]["seconds"],
        "speedup_over_peft": found["peft"]["seconds"] / found["ours"]["seconds"],
        "merge_speedup_over_peft": peft_seconds / merge_seconds,
        "peak_mb": found["ours"]["peak_mb"],
        "peft_peak_mb": found["peft"]["peak_mb"],
        **json.loads((folder / "compared.json").read_text()),
    }


def main() -> None:
    if sys.argv[1:2] == ["--way"]:
        way, adapter, base, output, threads = sys.argv[2:7]
        {"ours": ours, "peft": peft}[way](Path(adapter), Path(base), Path(output), int(threads))
        return
    if sys.argv[1:2] == ["--make"]:
        make(Path(sys.argv[2]), sys.argv[3] == "large")
        return
    if sys.argv[1:2] == ["--compare"]:
        compare(*(Path(one) for one in sys.argv[2:5]))
        return
    parser = _common.parser("streaming merge against cp -r and PEFT")
    parser.add_argument("--large", action="store_true", help="the shape of Qwen3-0.6B")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="torch threads; the daemon gives a child one by default")
    options = parser.parse_args()
    taken_on = _common.machine()
    with _common.scratch("merge") as folder:
        # In a child too: a process's peak counts from its parent's size at the fork, so this one stays small.
        _common.run_child(_common.python(str(Path(__file__).resolve()), "--make", str(folder), "large" if options.large else "small"))
        figures = measure(folder, options.rounds, options.threads)
    _common.write("merge", figures, options.json, taken_on=taken_on)


if __name__ == "__main__":
    main()
