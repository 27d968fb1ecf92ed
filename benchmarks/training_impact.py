"""How much a real training slows down while an export runs beside it: one on all cores of this box, the worst case, or one on its GPU.

One Trainer (transformers + PEFT, LoRA) trains without a pause and writes down when each step ends. Meanwhile short
phases alternate, in a random order each round: nothing beside it (twice, which gives the noise); our export (the merge and ONNX
stages as the daemon starts them, in the idle classes) with and without the control group that the unit brings; the same export at
normal priority. Between its phases an export is stopped by signal, so neighbouring phases compare.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _stages
from daemon.contract.jobs.messages import ChildLimits

SETTLE_SECONDS = 0.4
"""Of the beginning of a phase that do not count: the step in which the phases changed."""
IDLE, NORMAL = ChildLimits(), ChildLimits(nice=0, idle=False, oom_score_adj=0)
PRIORITIES = {"ours": IDLE, "slice": IDLE, "normal": NORMAL}
"""`slice`: as the unit starts it, in a control group of the lowest weight beside the training's; `ours`: as the daemon starts it where
there is no such group; `normal`: neither group nor idle class."""
HEADLINE = "slice"
NOTHING = ("none", "again")
"""Nothing runs beside the training, twice: how far two such phases differ is the noise of the box."""
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
                              disable_tqdm=True, dataloader_pin_memory=False, use_cpu=sys.argv[5] == "cpu", bf16=sys.argv[5] != "cpu")
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


def start_stage(job: Path, group: Path | None = None) -> subprocess.Popen[bytes]:
    """A child as the daemon starts it; its own session, so that all of it can be ended; in this control group if one is given."""
    command = _common.within(group, _common.python("-m", "handlers", str(job)))
    with open(job.with_name("log.txt"), "wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True, cwd=_common.ROOT,
            env={**os.environ, **_stages.ENVIRONMENT},
        )  # fmt: skip


WEIGHTS = (("/sys/fs/cgroup/cpu", "cpu.shares", 10), ("/sys/fs/cgroup", "cpu.weight", 1))
"""Where a control group of the weight that ckptd.slice has is made, beside the one that the training is in."""


class Exports:
    """The same stages over and over in one way, running only while it is let; stopped by signal in between."""

    def __init__(self, name: str, folder: Path, base: Path, checkpoint: Path, group: Path | None, threads: int) -> None:
        self._name, self._folder, self._base, self._checkpoint, self._group = name, folder, base, checkpoint, group
        self._limits = PRIORITIES[name].model_copy(update={"threads": threads})
        self._may_run, self._over = threading.Event(), False
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._guarded, name=name)
        self.cpu_seconds = 0.0
        self.fault = ""

    def start(self) -> None:
        """Begin; nothing runs before the first `let`."""
        self._thread.start()

    def let(self, run: bool) -> None:
        """Go on or stand still. Also notes what the child has used, which is gone once it has ended."""
        (self._may_run.set if run else self._may_run.clear)()
        if self._child is not None:
            with suppress(ProcessLookupError, psutil.Error):
                os.killpg(self._child.pid, signal.SIGCONT if run else signal.SIGSTOP)

    def cpu(self) -> float:
        """CPU seconds of all children so far."""
        child, now = self._child, 0.0
        if child is not None:
            with suppress(psutil.Error):
                times = psutil.Process(child.pid).cpu_times()
                now = times.user + times.system
        return self.cpu_seconds + now

    def end(self) -> None:
        """Kill what runs."""
        self._over = True
        self._may_run.set()
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        self._thread.join()

    def _guarded(self) -> None:
        try:
            self._loop()
        except Exception as error:  # else the figures would be those of a training with nothing beside it
            self.fault = f"{type(error).__name__}: {error}"
            raise

    def _loop(self) -> None:
        number = 0
        while not self._over:
            number += 1
            home, inputs = self._folder / str(number), dict[str, Path]()
            for stage in ("merge", "onnx"):
                self._may_run.wait()
                if self._over:
                    return
                job = _stages.job_file(home / stage, stage, inputs, self._checkpoint, base=self._base, limits=self._limits)
                self._child = start_stage(job, self._group if self._name == "slice" else None)
                _, status, usage = os.wait4(self._child.pid, 0)
                self._child.returncode = os.waitstatus_to_exitcode(status)
                self._child, code = None, self._child.returncode
                self.cpu_seconds += usage.ru_utime + usage.ru_stime
                if code and not self._over:
                    self.fault = job.with_name("log.txt").read_text()[-2000:]
                    return
                inputs[stage] = home / stage / "staging"
            shutil.rmtree(home)


@contextmanager
def training(folder: Path, base: Path, threads: int, device: str) -> Iterator[Path]:
    """A Trainer in a process of its own, on "cpu" or "cuda"; gives the file with the times at which its steps ended."""
    steps = folder / "steps.txt"
    with open(folder / "training.log", "wb") as log:
        child = subprocess.Popen(
            _common.python("-c", TRAINING, str(base), str(folder / "run"), str(steps), str(threads), device), stdout=log, stderr=log
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


def step_times(steps: Path, phases: list[tuple[str, float, float]]) -> dict[str, list[float]]:
    """Phase → mean duration of its steps in seconds, one for each round; of a step that outlasts the phase, the phase's length."""
    ends = [float(line) for line in steps.read_text().splitlines()]
    found: dict[str, list[float]] = {}
    for name, begin, end in phases:
        inside = [one for one in ends if begin + SETTLE_SECONDS <= one <= end]
        mean = (inside[-1] - inside[0]) / (len(inside) - 1) if len(inside) > 1 else end - begin - SETTLE_SECONDS
        found.setdefault(name, []).append(mean)
    return found


def alternate(ways: dict[str, Exports], rounds: int, seconds: float) -> list[tuple[str, float, float]]:
    """Phases in a random order each round; at most one way runs at a time. Gives (phase, begin, end) of each."""
    phases, order = [], random.Random(1)
    for _ in range(rounds):
        names = [*NOTHING, *ways]
        order.shuffle(names)
        for name in names:
            if name in ways:
                ways[name].let(True)
            begin = time.monotonic()
            time.sleep(seconds)
            phases.append((name, begin, time.monotonic()))
            if name in ways:
                ways[name].let(False)
                if ways[name].fault:
                    raise RuntimeError(ways[name].fault)
    return phases


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = _common.parser("How much a training slows down while an export runs beside it.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a phase")
    parser.add_argument("--without", nargs="*", default=[], choices=list(PRIORITIES), help="ways not to measure")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what the training computes on; on a GPU, in bf16")
    parser.add_argument("--threads", type=int, default=1, help="of an export")
    options = parser.parse_args()
    cores = len(psutil.Process().cpu_affinity() or [0])
    with _common.scratch("impact") as folder:
        base, checkpoint = folder / "base", folder / "checkpoint"
        _stages.make_base(base, **SIZE)
        _common.run_child(_common.python("-c", CHECKPOINT, str(base), str(checkpoint)))
        with _common.control_group(WEIGHTS) as group, training(folder, base, cores, options.device) as steps, ExitStack() as stack:
            ways = {
                name: Exports(name, folder / name, base, checkpoint, group, options.threads)
                for name in PRIORITIES
                if name not in options.without and (name != "slice" or group is not None)
            }
            for exports in ways.values():
                exports.start()
                stack.callback(exports.end)
            phases = alternate(ways, options.rounds, options.seconds)
            found = step_times(steps, phases)
            shares = {name: exports.cpu() / (options.rounds * options.seconds) for name, exports in ways.items()}
    slow = {
        name: [100 * (with_it / without - 1) for with_it, without in zip(found[name], found["none"], strict=True)]
        for name in (*ways, "again")
    }  # fmt: skip
    figures: dict[str, Any] = {
        "device": options.device,
        "export_threads": options.threads,
        "cores": cores,
        "step_ms_alone": round(1000 * statistics.median(found["none"]), 1),
        "rounds": options.rounds,
        "phase_seconds": options.seconds,
        "noise_percent": round(statistics.median(slow["again"]), 2),
        "noise_percent_quartiles": [round(one, 2) for one in statistics.quantiles(slow["again"], n=4)[::2]],
    }
    for name in ways:
        key = "" if name == HEADLINE else f"_{name}"
        figures[f"slowdown_percent{key}"] = round(statistics.median(slow[name]), 2)
        figures[f"slowdown_percent{key}_quartiles"] = [round(one, 2) for one in statistics.quantiles(slow[name], n=4)[::2]]
        figures[f"export_core_share{key}"] = round(shares[name], 3)
    _common.write("training_impact", figures, options.json, libraries=("torch", "transformers", "peft"))


if __name__ == "__main__":
    main()
