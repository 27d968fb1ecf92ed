"""The main job on real input: a training script writes checkpoints, the daemon exports them while it trains."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from daemon.config.places.output_owners import RECORD
from daemon.contract import cpu
from daemon.contract.disk.files import sha256_file
from tests import models
from tests.service import Service, listing, stray_handlers

SCRIPT = Path(__file__).with_name("trainer_script.py")
PROMPT = "def add(a, b):"
NEW_TOKENS = 12


@pytest.fixture
def pager() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A local HTTP server in the part of a pager service: its Apprise URL, and what it was told."""
    told: list[dict[str, Any]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"json://127.0.0.1:{server.server_port}/", told
        server.shutdown()
        thread.join()


def start_training(base: Path, run: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Run the training script in a process of its own."""
    command = [sys.executable, str(SCRIPT), str(base), str(run), json.dumps(options)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def live_tokens(base: Path, adapter: Path, ids: list[int]) -> list[int]:
    """Greedy continuation by the base with the adapter beside it, not merged, through transformers' own generate."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter).eval()
    output = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=NEW_TOKENS, do_sample=False)
    return list(output[0].tolist()[len(ids) :])


def merged_tokens(folder: Path) -> tuple[list[int], list[int]]:
    """Prompt ids and greedy continuation by transformers from the published folder alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == models.CHAT_TEMPLATE
    ids = tokenizer(PROMPT)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    output = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=NEW_TOKENS, do_sample=False)
    return ids, list(output[0].tolist()[len(ids) :])


def onnx_tokens(folder: Path, ids: list[int]) -> list[int]:
    """Greedy continuation by onnxruntime from the published folder alone, with the cache."""
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    past: dict[str, Any] = {
        entry.name: np.zeros((1, entry.shape[1], 0, entry.shape[3]), np.float32)
        for entry in session.get_inputs() if entry.name.startswith("past_key_values.")
    }  # fmt: skip
    names = [entry.name for entry in session.get_outputs()]
    tokens, fresh, seen = [], list(ids), 0
    while len(tokens) < NEW_TOKENS:
        feeds = {"input_ids": np.array([fresh]), "attention_mask": np.ones((1, seen + len(fresh)), np.int64),
                 "position_ids": np.arange(seen, seen + len(fresh))[None], **past}  # fmt: skip
        result = dict(zip(names, session.run(names, feeds), strict=True))
        seen += len(fresh)
        past = {name: result[name.replace("past_key_values", "present")] for name in past}
        fresh = [int(result["logits"][0, -1].argmax())]
        tokens += fresh
        if fresh[0] == 1:
            break
    return tokens


def check_manifest(target: Path, *graphs: str) -> None:
    manifest = json.loads((target / "MANIFEST.json").read_bytes())
    on_disk = {row: sha256_file(target / row) for row in listing(target) if (target / row).is_file() and row != "MANIFEST.json"}
    assert {entry["path"]: entry["sha256"] for entry in manifest["files"]} == on_disk
    assert manifest["needs"] == dict.fromkeys(graphs, "any x86-64 or ARM64 processor")
    report = json.loads((target / "report.json").read_bytes())
    assert manifest["checked_on"] == report["checked_on"] == cpu.here().facts
    assert {one["variant"]: one["needs"] for one in report["artifacts"]} == {"pytorch": None, **manifest["needs"]}


@pytest.mark.parametrize(
    ("graphs", "killed_in"),
    [((), "reference"), *(pytest.param(graphs, "onnx", marks=pytest.mark.slow) for graphs in (("onnx",), ("onnx", "onnx-int8")))],
    ids=["pytorch", "onnx", "onnx and onnx-int8"],
)
def test_a_run_is_exported_while_it_trains_and_kill_9_changes_nothing(  # R0 R1.1 R1.2 R1.4 R3.1 R3.2 R4.1 R4.2 R6.5
    make_service: Callable[..., Service], pico_base: Path, pager: tuple[str, list[dict[str, Any]]], graphs: tuple[str, ...], killed_in: str
) -> None:
    url, told = pager
    service = make_service(variants=("pytorch", *graphs), extra=f'[notify]\nurls = ["{url}"]\n')
    service.start()
    service.wait_for(lambda v: v["daemon"]["running"] and v["daemon"]["pid"])
    run = service.root / "mine"
    training = start_training(pico_base, run, steps=4, save_steps=2, save_total_limit=1, pause=2.0)
    try:
        service.wait_for(lambda v: any(s["name"] == killed_in and s["state"] == "running" for job in v["jobs"] for s in job["stages"]))
        service.kill()
        assert training.wait(120) == 0
        assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-4"], "the trainer rotated the first one away"
        service.start()
        jobs = service.wait_ended(2, 240)
    finally:
        training.kill()
        training.wait()
    assert [(job["step"], job["state"]) for job in jobs] == [(2, "succeeded"), (4, "succeeded")]
    assert all(stage["attempts"] == 1 for job in jobs for stage in job["stages"] if stage["name"] != killed_in)
    service.wait_for(lambda v: v["outbox"] == {"delivered": 3}, 30)
    assert {message["title"] for message in told if not message["title"].startswith("mine")} == {"ckptd did not shut down cleanly"}
    ends = [message for message in told if message["title"].startswith("mine")]
    assert [(message["title"], message["type"]) for message in ends] == [
        ("mine step 2: succeeded", "success"),
        ("mine step 4: succeeded", "success"),
    ]
    assert str(service.exports / "mine" / "step-4") in ends[1]["message"]
    assert service.stop() == 0
    assert stray_handlers(service.folder) == []

    exports = service.exports / "mine"
    assert sorted(path.name for path in exports.iterdir() if not path.name.startswith(RECORD)) == ["latest", "step-2", "step-4"]
    assert (exports / "latest").resolve() == exports / "step-4"
    for target in (exports / "step-2", exports / "step-4"):
        assert sorted(path.name for path in target.iterdir()) == [
            "MANIFEST.json", "README.md", "answers", *graphs, "pytorch", "report.html", "report.json",
        ]  # fmt: skip
        check_manifest(target, *graphs)
    assert not [row for row in listing(run) if "ckptd" in row], "nothing may be written beside the trainer's files"

    ids, merged = merged_tokens(exports / "step-4" / "pytorch")
    assert merged == live_tokens(pico_base, run / "checkpoint-4", ids)
    for graph in graphs:
        tokens = onnx_tokens(exports / "step-4" / graph, ids)
        assert tokens == merged if graph == "onnx" else len(tokens) == len(merged)


@pytest.mark.slow
def test_many_kills_at_random_moments_end_with_every_checkpoint_exported(  # R6.5
    make_service: Callable[..., Service], pico_run: Path
) -> None:
    import random
    import time

    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    service = make_service(extra="[limits]\ncrashes = 20\n")  # on a busy box all kills may meet one stage
    service.add(pico_run / "checkpoint-2")
    service.add(pico_run / "checkpoint-4")
    for _ in range(8):
        service.start()
        time.sleep(rng.uniform(0.3, 6.0))
        service.kill()
    service.start()
    jobs = service.wait_ended(2, 240)
    assert service.stop() == 0
    assert [job["state"] for job in jobs] == ["succeeded", "succeeded"]
    for job in jobs:
        check_manifest(Path(job["target"]))
    assert stray_handlers(service.folder) == []
    assert [row for row in listing(service.exports / ".staging") if "/" in row] == []
    assert listing(service.state / "pins") == []
