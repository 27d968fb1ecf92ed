"""How much a real training slows down while an export runs beside it, on all cores of this box: the worst case there is.

One Trainer (transformers + PEFT, LoRA) trains without a pause and writes down when each step ends. Meanwhile phases of some
seconds alternate, in a random order each round: nothing beside it; our export (the merge and ONNX stages as the daemon starts
them, in the idle classes); the same export at normal priority. The first seconds of a phase do not count.
"""

from __future__ import annotations

import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common
from daemon.contract import CheckpointRef, ChildLimits, ExportOptions, StageContext, ValidateOptions, Work

SETTLE_SECONDS = 4.0
"""Of the beginning of a phase that do not count: the child imports its libraries, the one before is gone."""
PRIORITIES = {"ours": ChildLimits(threads=1), "normal": ChildLimits(threads=1, nice=0, idle=False, oom_score_adj=0)}
SIZE = {
    "vocab_size": 320, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
TRAINING = """
import sys, time
from pathlib import Path
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
base, folder, steps = sys.argv[1:4]
torch.set_num_threads(int(sys.argv[4]))
model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), LoraConfig(r=8, target_modules="all-linear"))
ids = torch.randint(2, 320, (96,)).tolist()
class Log(TrainerCallback):
    def on_step_end(self, *rest, **more):
        stream.write(f"{time.monotonic()}\\n")
        stream.flush()
stream = open(steps, "a")
arguments = TrainingArguments(folder, max_steps=10**6, per_device_train_batch_size=2, save_strategy="no", report_to=[], logging_steps=10**6,
                              disable_tqdm=True, dataloader_pin_memory=False, use_cpu=True)
Trainer(model, arguments, train_dataset=[{"input_ids": ids, "labels": ids}] * 64, callbacks=[Log()]).train()
"""
CHECKPOINT = """
import sys
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
model = get_peft_model(AutoModelForCausalLM.from_pretrained(sys.argv[1]), LoraConfig(r=8, target_modules="all-linear"))
for name, parameter in model.named_parameters():
    if "lora_B" in name:
        torch.nn.init.normal_(parameter, 0, 0.01)
model.save_pretrained(sys.argv[2])
"""
BASE = """
import json, sys
from pathlib import Path
from tests.models import make_base
make_base(Path(sys.argv[1]), **json.loads(sys.argv[2]))
"""


def job_file(folder: Path, base: Path, checkpoint: Path, stage: str, limits: ChildLimits, inputs: dict[str, str]) -> Path:
    """A job file as the daemon writes it."""
    folder.mkdir(parents=True)
    reference = CheckpointRef(
        root=str(folder), run="bench", step=1, path=str(checkpoint), layout="adapter", digest="0", method="LORA", base_name=str(base)
    )  # fmt: skip
    context = StageContext(
        job="bench", stage=stage, attempt=1, checkpoint=reference, pin=str(checkpoint), base=str(base), inputs=inputs,
        staging=str(folder / "staging"), result=str(folder / "result.json"), temporary=str(folder / "tmp"), cache=str(folder / "cache"),
        work=Work(export=ExportOptions(), validation=ValidateOptions()), limits=limits,
    )  # fmt: skip
    path = folder / "job.json"
    path.write_text(context.model_dump_json())
    return path


def start_stage(job: Path) -> subprocess.Popen[bytes]:
    """A child as the daemon starts it; its own session, so that all of it can be ended."""
    with open(job.with_name("log.txt"), "wb") as log:
        return subprocess.Popen(
            _common.python("-m", "handlers", str(job)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
            start_new_session=True, cwd=_common.ROOT,
        )  # fmt: skip


class Exports:
    """The same stages over and over, for as long as a phase lasts."""

    def __init__(self, folder: Path, base: Path, checkpoint: Path) -> None:
        self._folder, self._base, self._checkpoint = folder, base, checkpoint
        self._count = 0
        self.cpu: dict[str, list[float]] = {name: [] for name in PRIORITIES}

    def run(self, name: str, seconds: float) -> None:
        """Export until the phase is over; note which share of one core the children got."""
        end, began, used = time.monotonic() + seconds, time.monotonic(), 0.0
        while time.monotonic() < end:
            self._count += 1
            home = self._folder / str(self._count)
            inputs: dict[str, str] = {}
            for stage in ("merge", "onnx"):
                job = job_file(home / stage, self._base, self._checkpoint, stage, PRIORITIES[name], inputs)
                child = start_stage(job)
                used += self._until(child, end)
                inputs[stage] = str(home / stage / "staging")
                if time.monotonic() >= end:
                    break
                if child.returncode != 0:
                    raise RuntimeError(job.with_name("log.txt").read_text()[-2000:])
        self.cpu[name].append(used / (time.monotonic() - began))

    @staticmethod
    def _until(child: subprocess.Popen[bytes], end: float) -> float:
        """Wait for a child, or end it at the phase's end; gives the CPU seconds that it took."""
        process, used = psutil.Process(child.pid), 0.0
        while child.poll() is None:
            try:
                times = process.cpu_times()
                used = times.user + times.system
            except psutil.Error:
                break
            if time.monotonic() >= end:
                child.send_signal(signal.SIGKILL)
            time.sleep(0.05)
        child.wait()
        return used


@contextmanager
def training(folder: Path, base: Path, threads: int) -> Iterator[Path]:
    """A Trainer in a process of its own; gives the file with the times at which its steps ended."""
    steps = folder / "steps.txt"
    with open(folder / "training.log", "wb") as log:
        child = subprocess.Popen(
            _common.python("-c", TRAINING, str(base), str(folder / "run"), str(steps), str(threads)), stdout=log, stderr=log
        )
    try:
        while not steps.exists() or len(steps.read_text().splitlines()) < 20:
            if child.poll() is not None:
                raise RuntimeError((folder / "training.log").read_text()[-2000:])
            time.sleep(0.2)
        yield steps
    finally:
        child.kill()
        child.wait()


def step_times(steps: Path, phases: list[tuple[str, int, float, float]]) -> dict[str, list[float]]:
    """Phase → mean duration of its steps in seconds, one for each round; of a step that outlasts the phase, the phase's length."""
    ends = [float(line) for line in steps.read_text().splitlines()]
    found: dict[str, list[float]] = {}
    for name, _, begin, end in phases:
        inside = [one for one in ends if begin + SETTLE_SECONDS <= one <= end]
        mean = (inside[-1] - inside[0]) / (len(inside) - 1) if len(inside) > 1 else end - begin - SETTLE_SECONDS
        found.setdefault(name, []).append(mean)
    return found


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = _common.parser("How much a training slows down while an export runs beside it.")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a phase")
    options = parser.parse_args()
    cores = len(psutil.Process().cpu_affinity() or [0])
    taken_on = _common.machine()
    with _common.scratch("impact") as folder:
        base, checkpoint = folder / "base", folder / "checkpoint"
        _common.run_child(_common.python("-c", BASE, str(base), json.dumps(SIZE)))
        _common.run_child(_common.python("-c", CHECKPOINT, str(base), str(checkpoint)))
        exports, phases, order = Exports(folder / "exports", base, checkpoint), [], random.Random(1)
        with training(folder, base, cores) as steps:
            for number in range(options.rounds):
                names = ["none", *PRIORITIES]
                order.shuffle(names)
                for name in names:
                    begin = time.monotonic()
                    time.sleep(options.seconds) if name == "none" else exports.run(name, options.seconds)
                    phases.append((name, number, begin, time.monotonic()))
            found = step_times(steps, phases)
    slow = {
        name: [100 * (with_it / without - 1) for with_it, without in zip(found[name], found["none"], strict=True)] for name in PRIORITIES
    }  # fmt: skip
    figures: dict[str, Any] = {
        "slowdown_percent": round(statistics.median(slow["ours"]), 2),
        "slowdown_percent_worst_round": round(max(slow["ours"]), 2),
        "slowdown_normal_priority_percent": round(statistics.median(slow["normal"]), 2),
        "step_ms_alone": round(1000 * statistics.median(found["none"]), 1),
        "export_core_share": round(statistics.median(exports.cpu["ours"]), 3),
        "export_core_share_normal_priority": round(statistics.median(exports.cpu["normal"]), 3),
        "rounds": options.rounds,
        "phase_seconds": options.seconds,
    }  # fmt: skip
    _common.write("training_impact", figures, options.json, libraries=("torch", "transformers", "peft"), taken_on=taken_on)


if __name__ == "__main__":
    main()
