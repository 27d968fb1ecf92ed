"""The export of a model that is larger than the memory it may use: run for real, by `ckptd export`, in a control group.

    python benchmarks/large.py [--json FILE] [--gb 12] [--memory-gb 3] [--variants NAME…] [--samples 3] [--tokens 8] [--folder FOLDER]
    python benchmarks/large.py --stages merge onnx onnx-int4 [--gb 60] [--repeating] [--folder FOLDER]

A Qwen3 with random weights of `--gb` GB in bf16 (vocabulary 151,936, hidden 4096; its files are one random block, over and over) gets a
random LoRA adapter. `limits.memory_fraction` and the group's own limit are `--memory-gb`, so that the kernel ends what takes more. The
variants are `pytorch` and `pytorch-adapter`, if no others are named. Figures: the verdicts, and for each stage its seconds, the largest
resident set of all its processes, its strategy and what was estimated. `group_at_limit`: times that the group had no free page, since the
page cache of the files counts too; `group_oom_kills`: times that it could not be freed. About 40 GB of disk are needed for 12 GB, and 30 GB
more for graphs.

With `--stages`, these run one after the other, each as the daemon starts it, without a group and without checks; products of onnx-int4
are computed at level 4 without a trial. `--repeating`: the weights repeat every 2 KiB, so that a file system that compresses holds a
large model.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _stages
from daemon.contract.jobs.messages import ChildLimits
from daemon.contract.jobs.plan import spec_of
from daemon.system import box
from handlers.onnx.options import OnnxOptions

GB = 10**9
HIDDEN, INNER, HEADS, KEY_VALUE, HEAD, VOCABULARY = 4096, 12288, 32, 8, 128, 151_936
SHARD = 2 * GB
RANK = 16
TOKENIZER = """
import sys
from tests.models import make_tokenizer
make_tokenizer().save_pretrained(sys.argv[1])
"""


def layer(number: int) -> dict[str, list[int]]:
    """Name → shape of the tensors of one layer."""
    wide, narrow, prefix = HEADS * HEAD, KEY_VALUE * HEAD, f"model.layers.{number}"
    return {
        f"{prefix}.input_layernorm.weight": [HIDDEN], f"{prefix}.post_attention_layernorm.weight": [HIDDEN],
        f"{prefix}.self_attn.q_proj.weight": [wide, HIDDEN], f"{prefix}.self_attn.k_proj.weight": [narrow, HIDDEN],
        f"{prefix}.self_attn.v_proj.weight": [narrow, HIDDEN], f"{prefix}.self_attn.o_proj.weight": [HIDDEN, wide],
        f"{prefix}.self_attn.q_norm.weight": [HEAD], f"{prefix}.self_attn.k_norm.weight": [HEAD],
        f"{prefix}.mlp.gate_proj.weight": [INNER, HIDDEN], f"{prefix}.mlp.up_proj.weight": [INNER, HIDDEN],
        f"{prefix}.mlp.down_proj.weight": [HIDDEN, INNER],
    }  # fmt: skip


def size(shape: list[int]) -> int:
    """Elements."""
    count = 1
    for one in shape:
        count *= one
    return count


def block(scale: float, period: int = 2 << 20) -> bytes:
    """16 MiB of random bf16 numbers between -scale and scale, which repeat after `period` bytes."""
    import array
    import struct

    source = random.Random(0)
    halves = array.array("H", (struct.unpack("<I", struct.pack("<f", source.uniform(-scale, scale)))[0] >> 16 for _ in range(period // 2)))
    return halves.tobytes() * ((16 << 20) // period)


def write_safetensors(path: Path, tensors: dict[str, list[int]], values: bytes) -> int:
    """A file of bf16 tensors: norms of ones, all others from `values`, each from another place on; gives the bytes of its data."""
    one, header, place = b"\x80\x3f", dict[str, Any](), 0
    for name, shape in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place := place + 2 * size(shape)]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for number, (name, shape) in enumerate(tensors.items()):
            left = 2 * size(shape)
            if "norm" in name:
                stream.write(one * (left // 2))
                continue
            start = number * 77_778 % len(values) & ~1
            while left:
                piece = values[start : start + left]
                stream.write(piece)
                left, start = left - len(piece), 0
    return place


def make_base(folder: Path, gb: float, *, repeating: bool = False) -> int:
    """The base; gives the bytes of its weights."""
    folder.mkdir(parents=True)
    ends = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN]}
    rest = gb * GB - 2 * sum(map(size, ends.values()))
    layers = max(2, round(rest / (2 * sum(map(size, layer(0).values())))))
    parts: list[dict[str, list[int]]] = [ends]
    for number in range(layers):
        if 2 * sum(map(size, parts[-1].values())) >= SHARD:
            parts.append({})
        parts[-1].update(layer(number))
    values, total, weight_map = block(0.02, 2048 if repeating else 2 << 20), 0, dict[str, str]()
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05}-of-{len(parts):05}.safetensors"
        total += write_safetensors(folder / name, part, values)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KEY_VALUE,
        "head_dim": HEAD, "max_position_embeddings": 4096, "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "dtype": "bfloat16", "pad_token_id": 0, "eos_token_id": 1,
        "attention_bias": False,
    }))  # fmt: skip
    _common.run_child(_common.python("-c", TOKENIZER, str(folder)))
    return total


def make_adapter(folder: Path, base: Path) -> Path:
    """A checkpoint of a LoRA adapter on the queries and values of all layers, as Trainer leaves it."""
    folder.mkdir(parents=True)
    count = json.loads((base / "config.json").read_text())["num_hidden_layers"]
    tensors: dict[str, list[int]] = {}
    for number in range(count):
        for name, rows in (("q_proj", HEADS * HEAD), ("v_proj", KEY_VALUE * HEAD)):
            module = f"base_model.model.model.layers.{number}.self_attn.{name}"
            tensors |= {f"{module}.lora_A.weight": [RANK, HIDDEN], f"{module}.lora_B.weight": [rows, RANK]}
    write_safetensors(folder / "adapter_model.safetensors", tensors, block(0.02))
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "r": RANK, "lora_alpha": 32,
        "target_modules": ["q_proj", "v_proj"], "bias": "none", "lora_dropout": 0.0, "fan_in_fan_out": False, "inference_mode": True,
    }))  # fmt: skip
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 1, "log_history": []}))
    return folder


def group(limit: int) -> AbstractContextManager[Path | None]:
    """A control group whose processes get `limit` bytes; None where none can be made."""
    own = {row.split(":")[1]: row.split(":", 2)[2] for row in Path("/proc/self/cgroup").read_text().splitlines()}
    first = f"/sys/fs/cgroup/memory{own.get('memory', '')}"
    return _common.control_group([(first, "memory.limit_in_bytes", limit), ("/sys/fs/cgroup", "memory.max", limit)])


def counted(path: Path | None) -> dict[str, int]:
    """What the group says: times at its limit, times that the kernel ended a process for it."""
    if path is None:
        return {}
    with suppress(OSError):
        events = dict(row.split() for row in (path / "memory.events").read_text().splitlines())
        return {"group_at_limit": int(events["max"]), "group_oom_kills": int(events["oom_kill"])}
    kills = dict(row.split() for row in (path / "memory.oom_control").read_text().splitlines()).get("oom_kill", "0")
    return {"group_at_limit": int((path / "memory.failcnt").read_text()), "group_oom_kills": int(kills)}


def export(
    folder: Path, base: Path, checkpoint: Path, limit: int, samples: int, tokens: int, variants: list[str]
) -> dict[str, Any]:  # fmt: skip
    """The report of the export, with what the group counted."""
    configuration = folder / "config.toml"
    configuration.write_text(
        f"""
[export]
variants = {json.dumps(variants)}
[validate]
samples = {samples}
new_tokens = {tokens}
speed_tokens = 0
[limits]
memory_fraction = {limit / box.memory()[0]:.6f}
"""
    )
    output = folder / "export"
    command = _common.python(
        "-m", "daemon", "export", str(checkpoint), "--base", str(base), "-c", str(configuration), "-o", str(output), "--json"
    )
    with group(limit) as inside:
        environment = {**os.environ, "PYTHONPATH": str(_common.ROOT), "XDG_STATE_HOME": str(folder / "state")}
        done = subprocess.run(
            _common.within(inside, command), cwd=_common.ROOT, env=environment, capture_output=True, text=True, check=False
        )
        told = counted(inside)
    reports = sorted(output.rglob("report.json"))
    if not reports:
        raise RuntimeError(f"the export ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return {"limited_by_kernel": inside is not None, **told, "report": json.loads(reports[0].read_text())}


def alone(folder: Path, base: Path, checkpoint: Path, names: list[str]) -> dict[str, Any]:
    """Run stages by themselves: their seconds, processor seconds, and largest resident sets."""
    made, found = dict[str, Path](), dict[str, dict[str, Any]]()
    for name in names:
        inputs = {need: made[need] for need in spec_of(name).needs if need in made}
        job = _stages.job_file(
            folder / name, name, inputs, checkpoint, base=base, limits=ChildLimits(threads=2, nice=0, idle=False, oom_score_adj=0),
            onnx=OnnxOptions(accuracy_level=4), cache=folder / "cache",
        )  # fmt: skip
        seconds, _ = _common.run_child(_common.python("-m", "handlers", str(job)), env=_stages.ENVIRONMENT)
        result = json.loads((folder / name / "result.json").read_text())
        if result["outcome"] != "succeeded":
            raise RuntimeError(f"{name}: {result['fault']['cause']}")
        made[name] = folder / name / "staging"
        found[name] = {"seconds": round(seconds, 1), "cpu_seconds": result["cpu_seconds"], "peak_rss_bytes": result["peak_rss"]}
    return found


def main() -> None:
    """Make the model, export it, write the figures."""
    arguments = _common.parser(__doc__ or "")
    arguments.add_argument("--gb", type=float, default=12.0, metavar="GB", help="size of the base's weights")
    arguments.add_argument("--memory-gb", type=float, default=3.0, metavar="GB", help="memory that the export may use")
    arguments.add_argument("--variants", nargs="+", default=["pytorch", "pytorch-adapter"], metavar="NAME")
    arguments.add_argument("--stages", nargs="+", metavar="NAME", help="run these alone, without checks")
    arguments.add_argument("--repeating", action="store_true", help="weights that a file system can compress")
    arguments.add_argument("--samples", type=int, default=3)
    arguments.add_argument("--tokens", type=int, default=8)
    arguments.add_argument("--folder", type=Path, metavar="FOLDER", help="where it works, and keeps what it made")
    given = arguments.parse_args()
    limit = int(given.memory_gb * GB)

    def measure(folder: Path) -> dict[str, Any]:
        base, checkpoint = folder / "bases" / "large", folder / "runs" / "bench" / "checkpoint-1"
        if not base.is_dir():
            make_base(base, given.gb, repeating=given.repeating)
            make_adapter(checkpoint, base)
        stored = sum(file.stat().st_size for file in base.glob("*.safetensors"))
        if given.stages:
            return {"stored_bytes": stored, **alone(folder, base, checkpoint, given.stages)}
        started = time.perf_counter()
        found = export(folder, base, checkpoint, limit, given.samples, given.tokens, given.variants)
        report = found.pop("report")
        stages = {stage["name"]: stage for stage in report["stages"]}
        return {
            "stored_bytes": stored, "memory_limit_bytes": limit, "seconds": time.perf_counter() - started, **found,
            "verdicts": {one["variant"]: one["verdict"] for one in report["artifacts"]},
            "seconds of": {name: one["seconds"] for name, one in stages.items()},
            "peak_rss_bytes of": {name: one["peak_rss_bytes"] for name, one in stages.items()},
            "estimated_bytes of": {name: one.get("estimated_bytes") for name, one in stages.items()},
            "strategy of": {name: one["strategy"] for name, one in stages.items()},
        }  # fmt: skip

    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        figures = measure(given.folder)
    else:
        with _common.scratch("large") as folder:
            figures = measure(folder)
    _common.write("large", figures, given.json)


if __name__ == "__main__":
    main()
