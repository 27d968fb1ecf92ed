"""`python -m tests.upgrades.make NAME`: freezes a small state of this version as tests/upgrades/states/NAME.tar.gz, once for each release.

What is in it: the journal of a daemon that was killed at work, with its live file, a backup, pins, staging, kept outputs and a published
export; an export that ended, one in its merge, one that waits, one that failed, a checkpoint that was deleted, a notification that nobody
takes; the configuration, and the files of the trainers. The stages are those of `tests.runner.toy_stages`. A frozen state is never made
again: `tests.upgrades.test_upgrades` opens each with the code of today.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from daemon.config.places.paths import StatePaths
from daemon.journal.file import backups
from tests.runner.conftest import ALL, Toy, arrived
from tests.upgrades.frozen import STATES, freeze

EXTRA = """[onnx]
optimize = "none"
[limits]
priority = "normal"
disk_reserve = "0"
memory_reserve = "0"
[notify]
on = ["succeeded", "partial", "failed"]
urls = ["json://127.0.0.1:9/"]
"""


def make(home: Path) -> Toy:
    """Leave the state below `home`; gives the daemon, which is dead."""
    toy = Toy(home, variants=ALL, extra=EXTRA + f'[base.map]\n"made/up" = "{_base(home / "base")}"\n')
    toy.environment["CKPTD_LIMITS__PASS_ENVIRONMENT"] = "TOY_HOLD,TOY_BROKEN"
    checkpoint = _checkpoint(home / "checkpoint")
    _arrive(toy, checkpoint, "done")
    toy.start()
    toy.wait_ended()
    toy.stop()
    toy.environment["TOY_BROKEN"] = "pytorch,onnx"
    _arrive(toy, checkpoint, "failed")
    toy.start()
    toy.wait_ended(2)
    toy.stop()
    del toy.environment["TOY_BROKEN"]
    toy.held.touch()
    _arrive(toy, checkpoint, "half")
    toy.start()
    toy.wait_for(lambda v: any(job["run"] == "half" and any(s["fraction"] for s in job["stages"]) for job in v["jobs"]))
    _arrive(toy, checkpoint, "waits")
    toy.wait_for(lambda v: len(v["jobs"]) == 4)
    toy.kill()
    time.sleep(1.0)  # its child goes with it
    toy.held.unlink()
    paths = StatePaths(toy.state)
    with closing(sqlite3.connect(paths.journal)) as connection:
        backups.write_backup(connection, backups.fresh_name(paths.backups))
    for record in toy.exports.glob("*/.ckptd-owner-*"):
        known = json.loads(record.read_bytes())
        record.write_text(json.dumps(known | {"host": "host", "machine": "", "boot": "", "place": ""}))
    for log in (paths.log, home / "daemon.log"):
        log.unlink()
    return toy


def _arrive(toy: Toy, checkpoint: Path, run: str) -> None:
    arrived(checkpoint, toy.root / run, 4, toy.folder / "incoming", own=[run])


def _base(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "vocab_size": 32,
    }))  # fmt: skip
    save_file({"model.layers.0.self_attn.q_proj.weight": np.ones((8, 8), np.float32)}, folder / "model.safetensors")
    return folder


def _checkpoint(folder: Path) -> Path:
    """A LoRA adapter as Trainer and PEFT write it."""
    folder.mkdir()
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    save_file(
        {name.format("A"): np.ones((2, 8), np.float32), name.format("B"): np.ones((8, 2), np.float32)}, folder / "adapter_model.safetensors"
    )
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "made/up", "r": 2, "lora_alpha": 4,
        "target_modules": ["q_proj"],
    }))  # fmt: skip
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 4, "max_steps": 4, "log_history": []}))
    return folder


if __name__ == "__main__":
    target = STATES / f"{sys.argv[1]}.tar.gz"
    if target.exists():
        sys.exit(f"{target} is frozen")
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary).resolve() / "home"
        home.mkdir()
        make(home)
        shutil.rmtree(home / "checkpoint")
        freeze(home, target)
    print(f"{target}: {target.stat().st_size} bytes")
