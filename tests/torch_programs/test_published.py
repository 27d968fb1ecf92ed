"""All variants on the whole way: made, checked against the live model, published, and run by what their folders bring."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.validate import zoo

ROOT = Path(__file__).parents[2]


def classify(model: Any, batch: Any) -> Any:
    """The loss of a classifier with three classes."""
    import torch

    return model(**batch, labels=torch.arange(len(batch["input_ids"])) % 3).loss


def checkpoint_of(kind: str, folder: Path) -> Path:
    """A checkpoint with an adapter of an encoder-decoder or an encoder."""
    step = folder / "run" / "checkpoint-5"
    if kind == "seq2seq":
        base = zoo.make_seq2seq_base(folder / "base", "t5")
        return zoo.train_adapter(base, step, "AutoModelForSeq2SeqLM", zoo.copying, target_modules=["q", "v"], task_type="SEQ_2_SEQ_LM")
    base = zoo.make_encoder_base(folder / "base", "AutoModelForMaskedLM")
    return zoo.train_adapter(
        base, step, "AutoModelForSequenceClassification", classify, load={"num_labels": 3}, target_modules=["query", "value"],
        task_type="SEQ_CLS", modules_to_save=["pooler", "classifier"],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["causal", "seq2seq", "encoder"])
def test_they_pass_the_check_and_their_example_runs(kind: str, tmp_path: Path, pico_checkpoint: Path) -> None:  # R2.4 R4.2
    checkpoint = pico_checkpoint if kind == "causal" else checkpoint_of(kind, tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(
        f'[output]\ndirectory = "{tmp_path}/exports"\n[state]\ndirectory = "{tmp_path}/state"\n[export]\n'
        'variants = ["torchscript", "pt2", "pt2-aoti"]\n[validate]\nsamples = 2\nmost_samples = 2\nnew_tokens = 6\nspeed_tokens = 4\n'
    )
    command = [sys.executable, "-m", "daemon", "export", str(checkpoint), "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=560)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("exports/**/report.json")
    report = json.loads(path.read_text())
    for artifact in report["artifacts"]:
        assert artifact["verdict"] == "passed" and artifact["published"], artifact
        assert artifact["figures"]["tokens_per_second"] is None or artifact["figures"]["tokens_per_second"] > 0
    folder = path.parent
    readme = (folder / "README.md").read_text()
    assert "can't be shown" not in readme and ("`generate(input_ids" in readme) == (kind == "causal")
    for variant in ("torchscript", "pt2-aoti"):
        code = re.findall(rf"```sh\n(python {variant}/example.py .*?)\n```", readme, re.DOTALL)
        assert code, "the README says how it is run"
        command = code[0].replace("python ", f"{sys.executable} ", 1)
        said = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=folder)
        assert said.returncode == 0 and said.stdout.strip(), said.stderr
