"""What a training script tells of itself: where it saved, and what the live model answered at that moment.

Imported by the scripts beside it, which run in the environment of their trainer: `python -m tests.trainers.scripts.NAME BASES RUN RECORDS`.
RECORDS gets `saved.jsonl`, a line for each place below RUN: its path, and the file with the answer; `same` where the trainer saved once
more what it had saved at another place.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

IDS = list(range(3, 51))
SENTENCES = ["A daemon watches directories.", "Trainers write checkpoints.", "The weather is fine today.", "Un deux trois."]


def logits(model: Any) -> Any:
    """Logits of one pass over IDS, float32 (1, tokens, vocabulary) or (1, labels); the model stays in the mode that it was in."""
    import torch

    training = model.training
    model.eval()
    with torch.no_grad():
        ids = torch.tensor([IDS])
        found = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.float().numpy()
    model.train(training)
    return found


def train_step(model: Any, optimizer: Any) -> None:
    """One step of a language model on IDS, in a loop of the script's own."""
    import torch

    ids = torch.tensor([IDS])
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def vectors(model: Any) -> Any:
    """Embeddings of SENTENCES by a SentenceTransformer, float32 (sentences, width)."""
    training = model.training
    found = model.encode(SENTENCES, show_progress_bar=False)
    model.train(training)
    return found


class Record:
    """Notes places and answers."""

    def __init__(self, run: Path, folder: Path) -> None:
        self.run = run
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, place: str | Path, answer: Any, same: str | None = None) -> None:
        """The trainer has saved at `place`, below the run; there the model answers `answer`."""
        path = Path(place)
        relative = path.relative_to(self.run).as_posix() if path.is_absolute() else path.as_posix()
        file = relative.replace("/", "__") + ".npy"
        np.save(self.folder / file, answer)
        with (self.folder / "saved.jsonl").open("a") as stream:
            stream.write(json.dumps({"path": relative, "answer": file, "same": same}) + "\n")

    def versions(self, *packages: str) -> None:
        """The releases that this training ran with."""
        found = {name: importlib.metadata.version(name) for name in packages}
        (self.folder / "versions.json").write_text(json.dumps(found))


def at_each_save(record: Record, answer: Callable[[Any], Any] = logits) -> Any:
    """A callback of transformers' Trainer that notes each `checkpoint-N`, and what the live model answers then."""
    from transformers import TrainerCallback

    class AtSave(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            record.add(Path(args.output_dir).absolute() / f"checkpoint-{state.global_step}", answer(parts["model"]))

    return AtSave()


def arguments() -> tuple[Path, Path, Record]:
    """The bases' folder, the run's and its record, as the command line names them."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    bases, run, records = (Path(word).absolute() for word in sys.argv[1:4])
    return bases, run, Record(run, records)


def common(run: Path, **more: Any) -> dict[str, Any]:
    """Arguments of transformers' trainers: four quick steps on the CPU, a checkpoint at each second one."""
    return {
        "output_dir": str(run), "max_steps": 4, "save_steps": 2, "save_strategy": "steps", "per_device_train_batch_size": 2,
        "learning_rate": 2e-2, "logging_steps": 1, "report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": False, "seed": 1,
        **more,
    }  # fmt: skip


def lora(**more: Any) -> Any:
    """A small LoRA of a causal model; as a new one is, a random one would not show in the first steps."""
    from peft import LoraConfig

    return LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"], "task_type": "CAUSAL_LM", **more})


def causal(base: Path) -> tuple[Any, Any]:
    """A causal model in float32 and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), AutoTokenizer.from_pretrained(base)
