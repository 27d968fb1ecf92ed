"""What diffusers' examples write is complete and not exported: said once, with the tool that converts it, and no part of it is taken.

By the source of diffusers (loaders/lora_base.py, examples/text_to_image/train_text_to_image_lora.py and others): `checkpoint-N` with
accelerate's state and the LoRA or the trained part, and at the end the LoRA or the pipeline in the run's own directory.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.checkpoints.inspection import inspect
from tests.detection.bench import Bench

STATE = ("optimizer.bin", "scheduler.bin", "random_states_0.pkl")


def with_state(checkpoint: Path) -> Path:
    checkpoint.mkdir(parents=True, exist_ok=True)
    for name in STATE:
        (checkpoint / name).write_bytes(b"state")
    return checkpoint


def lora(folder: Path) -> Path:
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({"unet.down_blocks.0.attn.to_q.lora_A.weight": torch.ones(4, 8)}, folder / "pytorch_lora_weights.safetensors")
    return folder


def pipeline(folder: Path, base: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline"}))
    shutil.copytree(base, folder / "text_encoder")
    return folder


@pytest.mark.parametrize("name", ["checkpoint-500", "lora"])
def test_a_lora_is_complete_and_refused_with_the_commands(tmp_path: Path, name: str) -> None:
    checkpoint = lora(with_state(tmp_path / "run" / name))
    whole = inspect(checkpoint)
    assert (whole.layout, whole.complete) == ("diffusers", True)
    assert whole.refusal is not None and "`pipeline.load_lora_weights(" in whole.refusal.remedy
    assert "optimum-cli export onnx --model OUTPUT ONNX_FOLDER" in whole.refusal.remedy
    file = checkpoint / "pytorch_lora_weights.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    assert not inspect(checkpoint).complete


def test_a_run_is_said_once_and_the_parts_of_its_pipeline_are_no_models(bench: Bench, pico_base: Path) -> None:
    run = pipeline(bench.root / "run", pico_base)
    shutil.copytree(pico_base, with_state(run / "checkpoint-500") / "unet")
    lora(bench.root / "style")
    with capture_logs() as said:
        bench.pass_time(60.0)
    assert bench.jobs() == [] and bench.tracker.listing.incomplete == {}
    listed = {str(path.relative_to(bench.root)): why for path, why in bench.tracker.listing.passed_over.items()}
    assert sorted(listed) == ["run", "run/checkpoint-500", "style"]
    assert all("it is complete, but a model of diffusers" in why for why in listed.values())
    assert f"`optimum-cli export onnx --model {run} ONNX_FOLDER`" in listed["run"]
    assert len([entry for entry in said if "a model of diffusers" in entry["event"]]) == 3
