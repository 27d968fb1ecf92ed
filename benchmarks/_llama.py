"""A running llama.cpp server that deliveries restart, and a daemon that exports to it what a real trainer writes: for `delivery.py`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _far_ends
from daemon.toolchains.registry import Toolchains
from tests.ports import free_port

LORA = {"target_modules": "all-linear", "r": 28, "lora_alpha": 28}
"""0.82 M parameters over the base."""
BASE = """
import sys
from pathlib import Path
from benchmarks import _trained
_trained.train(Path(sys.argv[1]), "qwen3", "6M", seconds=float(sys.argv[2]))
"""
BASE_SECONDS = 60.0
TRAIN = """
import json, sys, time
from pathlib import Path
from transformers import TrainerCallback
from tests.models import train_run
base, run, steps, rate, gate = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5])
class Wait(TrainerCallback):
    def on_save(self, args, state, control, **rest):
        while gate.is_dir() and not (gate / str(state.global_step)).exists():
            time.sleep(0.05)
train_run(base, run, steps=steps, save_steps=1, learning_rate=rate, lora=json.loads(sys.argv[6]), callbacks=[Wait()])
"""
BASE_FILE = """
import sys, tempfile
from pathlib import Path
from handlers.gguf.file.model_file import ModelFile
made = ModelFile(Path(sys.argv[1]), "base", Path(tempfile.mkdtemp(dir=Path(sys.argv[2]).parent)))
made.write(made.lossless, Path(sys.argv[2]), lambda done: None)
"""
RESTART = """\
if [ -f {folder}/pid ]; then kill $(cat {folder}/pid); while [ -e /proc/$(cat {folder}/pid)/exe ]; do sleep 0.01; done; fi
lora=""; [ -e {shelf}/current.gguf ] && lora="--lora {shelf}/current.gguf"
setsid {program} -m {base} $lora --port {port} -c 512 -t 1 -np 1 --no-warmup > {folder}/log 2>&1 < /dev/null &
echo $! > {folder}/pid
"""
"""What a service manager does: it ends the old process and begins the new one. One that has ended counts before init has taken it in."""
WAIT_SECONDS = 180.0


def train(base: Path, run: Path, steps: int, gate: Path, rate: float = 2e-3) -> list[str]:
    """The command of a trainer that saves each step; where the folder `gate` is, it goes on when the step's name lies there."""
    return _common.python("-c", TRAIN, str(base), str(run), str(steps), str(rate), str(gate), json.dumps(LORA))


def make_base(folder: Path) -> Path:
    """The base that is trained and served: 6 M parameters that have learnt Python for a minute, as a random one rounds like no real one."""
    _common.run_child(_common.python("-c", BASE, str(folder), str(BASE_SECONDS)))
    return folder / "base"


@dataclass(frozen=True)
class Server:
    """One that runs, in a folder with its `shelf`, `log` and `restart`."""

    folder: Path
    port: int

    @property
    def shelf(self) -> Path:
        """From which it loads."""
        return self.folder / "shelf"

    @property
    def options(self) -> dict[str, Any]:
        """The keys of a target of the kind llamacpp."""
        return {"url": f"http://127.0.0.1:{self.port}", "folder": str(self.shelf), "reload": ["sh", str(self.folder / "restart")]}

    def answer(self, ids: Sequence[int], top: int = 20) -> dict[int, float]:
        """Log-probabilities of the most likely next tokens."""
        body = {"prompt": list(ids), "n_predict": 1, "n_probs": top, "temperature": 0, "cache_prompt": False}
        request = urllib.request.Request(
            f"{self.options['url']}/completion", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            rows = json.load(answer)["completion_probabilities"][0]["top_logprobs"]
        return {int(row["id"]): float(row["logprob"]) for row in rows}


@contextlib.contextmanager
def server(program: str, toolchain: Path, base: Path, folder: Path) -> Iterator[Server]:
    """A server over the base alone, until the end."""
    (folder / "shelf").mkdir(parents=True)
    _common.run_child([str(toolchain), "-c", BASE_FILE, str(base), str(folder / "base.gguf")])
    made = Server(folder, free_port())
    values = {"folder": folder, "shelf": made.shelf, "program": program, "base": folder / "base.gguf", "port": made.port}
    (folder / "restart").write_text(RESTART.format(**values))
    subprocess.run(["sh", folder / "restart"], check=True)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            process = psutil.Process(int((folder / "pid").read_text()))
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def config(folder: Path, toolchains: Path, served: Server) -> Path:
    """A daemon's configuration: adapters of runs below `folder/runs` go to the server."""
    for name in ("runs", "state"):
        (folder / name).mkdir(parents=True)
    (folder / "state" / "toolchains").symlink_to(toolchains / "toolchains")
    rows = "".join(f"{name} = {json.dumps(value)}\n" for name, value in served.options.items())
    path = folder / "config.toml"
    path.write_text(f'''\
[watch]
roots = ["{folder}/runs"]
[output]
directory = "{folder}/out"
[state]
directory = "{folder}/state"
[export]
variants = ["gguf-adapter"]
[validate]
speed_tokens = 0
[limits]
disk_reserve = 0
threads = 2
priority = "normal"
[[deliver]]
name = "llama"
kind = "llamacpp"
{rows}''')
    return path


def last_byte(checkpoint: Path) -> float:
    """When a checkpoint was written to its end."""
    return max(path.stat().st_mtime for path in checkpoint.rglob("*") if path.is_file())


def moments(journal: Path, step: int) -> dict[str, float] | None:
    """When each part of an export and its delivery began and ended, as the journal says; None until it is delivered."""
    with contextlib.closing(sqlite3.connect(journal, timeout=30)) as open_journal:
        open_journal.row_factory = sqlite3.Row
        job = open_journal.execute("SELECT * FROM job WHERE step = ?", (step,)).fetchone()
        if job is None:
            return None
        if job["state"] in ("failed", "partial"):
            raise RuntimeError(f"the export of step {step} ended as {job['state']}: {job['reason']}")
        shipment = open_journal.execute("SELECT * FROM shipment WHERE job = ?", (job["id"],)).fetchone()
        if shipment is None or shipment["state"] not in ("delivered", "failed"):
            return None
        if shipment["state"] == "failed":
            raise RuntimeError(f"the delivery of step {step} failed: {shipment['fault']}")
        stages = open_journal.execute("SELECT stage AS name, started, ended FROM attempt WHERE job = ?", (job["id"],)).fetchall()
    rows: dict[str, float] = {"entered": _of(job["created"])}
    for row in (*stages, {"name": "export", **dict(job)}, {"name": "delivery", **dict(shipment)}):
        rows |= {f"{row['name']}.{name}": _of(row[name]) for name in ("started", "ended") if row[name]}
    return rows


def _of(text: str | float) -> float:
    return text if isinstance(text, float) else datetime.fromisoformat(text).timestamp()


def is_of(served: Server, report: dict[str, Any], least: float = 0.9) -> bool:
    """Whether the server answers as a report says that the live model does, of all positions nearer to it than to its base."""
    there = wanted = 0.0
    for row in report["answers"]["positions"]:
        said = served.answer(row["ids"])
        for token, live, base in row["known"]:
            if token in said:
                there += (said[token] - base) * (live - base)
                wanted += (live - base) ** 2
    return least <= there / wanted <= 2 - least


def checkpoint_to_answer(
    program: str, toolchains: Path, toolchain: Path, base: Path, folder: Path, count: int
) -> tuple[list[float], list[dict[str, float]], list[Path]]:
    """Seconds from a checkpoint's last byte to the answer of the server with its adapter, of the checkpoints of one training in turn; and
    when each part of it began and ended, from that last byte on; and their exports."""
    gate, run = folder / "gate", folder / "daemon" / "runs" / "run"
    seconds, parts, exports = list[float](), list[dict[str, float]](), list[Path]()
    with server(program, toolchain, base, folder / "server") as served:
        path, log = config(folder / "daemon", toolchains, served), (folder / "log").open("wb")
        gate.mkdir()
        daemon = subprocess.Popen(
            _common.python("-m", "daemon", "run", "--config", str(path)), stdout=log, stderr=log, cwd=_common.ROOT,
            env={**os.environ, "CKPTD_LIMITS__PASS_ENVIRONMENT": "PYTHONPATH", "PYTHONPATH": str(_common.ROOT)},
        )  # fmt: skip
        trainer = subprocess.Popen(
            train(base, run, count, gate), stdout=log, stderr=log, cwd=_common.ROOT, env={**os.environ, "PYTHONPATH": str(_common.ROOT)}
        )
        try:
            for step in range(1, count + 1):
                until = time.monotonic() + WAIT_SECONDS
                while (found := _moments(folder / "daemon" / "state" / "journal.sqlite3", step)) is None:
                    if time.monotonic() > until or daemon.poll() is not None:
                        raise RuntimeError(f"nothing was delivered of step {step}:\n{(folder / 'log').read_text()[-3000:]}")
                    time.sleep(0.02)
                export = next(path for path in (folder / "daemon" / "out" / "run").iterdir() if path.name == f"step-{step}")
                if not is_of(served, json.loads((export / "report.json").read_text())):
                    raise RuntimeError(f"the server does not answer as step {step}")
                end, begin = time.time(), last_byte(run / f"checkpoint-{step}")
                seconds.append(end - begin)
                exports.append(export)
                parts.append({name: round(moment - begin, 3) for name, moment in found.items()})
                (gate / str(step)).touch()
        finally:
            for process in (trainer, daemon):
                process.terminate()
                process.wait(60)
    return seconds, parts, exports


def _moments(journal: Path, step: int) -> dict[str, float] | None:
    try:
        return moments(journal, step)
    except sqlite3.OperationalError:  # the daemon has not made it yet
        return None


def lasting(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each part the median of the moment at which it ended, in seconds from the last byte."""
    names = [name for name in parts[0] if not name.endswith(".started")]
    ordered = sorted(names, key=lambda name: parts[0][name])
    return {name: statistics.median(row[name] for row in parts if name in row) for name in ordered}


def python_of(toolchains: Path) -> Path:
    """The Python of the toolchain gguf. Ends with a sentence where there is none."""
    there = Toolchains(toolchains).get("gguf")
    if there is None:
        sys.exit(f"{toolchains} holds no toolchain gguf; `ckptd toolchain install gguf` installs it")
    return there.python


def swaps(program: str, toolchain: Path, base: Path, exports: Sequence[Path], folder: Path, count: int) -> dict[str, float]:
    """Adapters of two checkpoints delivered in turns, and after each the server asked what the other one answers otherwise."""
    taken, stale = list[float](), 0
    reports = [json.loads((export / "report.json").read_text()) for export in exports[-2:]]
    with server(program, toolchain, base, folder) as served:
        for number in range(count):
            order = {
                "kind": "llamacpp", "entry": "handlers.deliver.servers.llamacpp.target:LlamaServer", "name": "llama", "move": "force",
                "options": served.options, "export": str(exports[-2:][number % 2]),
            }  # fmt: skip
            taken.append(_far_ends.ours(order, folder)[0])
            mine, other = (apart(served, reports[(number + more) % 2]) for more in (0, 1))
            stale += mine >= other
    return {"swaps": count, "stale": stale, "swap_s": statistics.median(taken), "swap_most_s": max(taken)}


def apart(served: Server, report: dict[str, Any]) -> float:
    """How far the server's answers are from those that a report says of the live model: the mean square of the differences."""
    squares = list[float]()
    for row in report["answers"]["positions"]:
        said = served.answer(row["ids"])
        squares += [(said[token] - live) ** 2 for token, live, _ in row["known"] if token in said]
    return statistics.fmean(squares)
