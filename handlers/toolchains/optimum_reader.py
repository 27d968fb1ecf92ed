"""A second reader: loads and runs an ONNX folder with optimum's ORTModel classes. Runs inside the toolchain `optimum`.

    handlers.toolchains.use.run_module(folder, "handlers.toolchains.optimum_reader",
        {"folder": exported, "task": "text-generation", "inputs": "in.npz", "outputs": "out.npz", "new_tokens": 8, "threads": 1}, temporary,
        Reading)

`inputs`: int64 arrays (batch, length) by name, `input_ids` and optionally `attention_mask`, `token_type_ids`, `decoder_input_ids`; no
tokenizer is loaded. `outputs`: `logits` (batch, length, vocabulary), (batch, labels) or (batch, length, labels), `start_logits` and
`end_logits` (batch, length), `last_hidden_state` (batch, length, width), in float32; with `new_tokens` the greedy `tokens` (batch,
new_tokens) too, end tokens ignored: after all of `input_ids`, or after the first `prompt` of them. The answer is a `Reading`.
`threads` bounds ONNX Runtime, 1 unless told.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handlers.models.tasks import BY_NAME
from handlers.toolchains import inside

CLASSES = {
    "text-generation": "ORTModelForCausalLM",
    "text2text-generation": "ORTModelForSeq2SeqLM",
    "text-classification": "ORTModelForSequenceClassification",
    "token-classification": "ORTModelForTokenClassification",
    "question-answering": "ORTModelForQuestionAnswering",
    "fill-mask": "ORTModelForMaskedLM",
    "feature-extraction": "ORTModelForFeatureExtraction",
}
OUTPUTS = ("logits", "start_logits", "end_logits", "last_hidden_state")


def _adjust(model: Any) -> list[str]:
    """Take the shape of a causal model's cache from the graph where optimum derives another one from the configuration.

    optimum's ORTModelForCausalLM computes the width of a head as hidden size / heads, which is wrong for every model that names
    its `head_dim`; the graph says it.
    """
    adjusted = []
    shape = next((shape for name, shape in getattr(model, "input_shapes", {}).items() if name.startswith("past_key_values")), None)
    for attribute, axis in (("num_key_value_heads", 1), ("embed_size_per_head", 3)):
        size = shape[axis] if shape is not None and len(shape) == 4 else None
        if isinstance(size, int) and hasattr(model, attribute) and getattr(model, attribute) != size:
            adjusted.append(f"{attribute}: {getattr(model, attribute)} → {size}")
            setattr(model, attribute, size)
    return adjusted


PLAIN: dict[str, Any] = {
    "min_new_tokens": None, "min_length": 0, "do_sample": False, "num_beams": 1, "temperature": None, "top_p": None, "top_k": None,
    "eos_token_id": None, "forced_eos_token_id": None, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0, "pad_token_id": 0,
}  # fmt: skip
"""What of a generation_config our own greedy decoding leaves out."""
CAUSAL: dict[str, Any] = dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id"))
"""What it leaves out where the model is no encoder-decoder."""


def _greedy(model: Any, feeds: dict[str, Any], count: int, task: str) -> Any:
    """Exactly `count` most likely tokens for each row, (batch, count)."""
    rules = PLAIN | (CAUSAL if task == "text-generation" else {})
    return model.generate(**feeds, **rules, max_new_tokens=count)[:, -count:]


def _session_options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return options


@dataclass(frozen=True)
class Reading:
    """How the folder was read; the arrays are in the file `outputs`."""

    reader: str
    """Name of the class that was chosen."""
    files: list[str]
    adjusted: list[str]
    """What of the class had to be put right first."""
    load_seconds: float
    run_seconds: float
    outputs: dict[str, list[int]]
    """Array → its shape."""
    versions: dict[str, str]


def read(options: argparse.Namespace) -> Reading:
    """Load and run. Raises whatever optimum, transformers or ONNX Runtime raise."""
    import numpy as np
    import optimum.onnxruntime
    import torch

    started = time.monotonic()
    name = CLASSES[options.task]
    model = getattr(optimum.onnxruntime, name).from_pretrained(
        options.folder, local_files_only=True, session_options=_session_options(options.threads)
    )
    loaded = time.monotonic()
    adjusted = _adjust(model)
    if not getattr(model, "can_use_cache", True):
        model.config.use_cache = model.generation_config.use_cache = False
    with np.load(options.inputs) as archive:
        feeds = {key: torch.from_numpy(archive[key]) for key in archive.files}
    feeds.setdefault("attention_mask", torch.ones_like(feeds["input_ids"]))
    asked = dict(feeds)
    if "position_ids" in getattr(model, "input_names", ()):
        asked["position_ids"] = (feeds["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode():
        answer = model(**asked)
        made = {key: answer[key].float().numpy() for key in OUTPUTS if key in answer}
        if options.new_tokens:
            length = options.prompt or feeds["input_ids"].shape[1]
            prompt = {key: value[:, :length] for key, value in feeds.items() if key != "decoder_input_ids"}
            made["tokens"] = _greedy(model, prompt, options.new_tokens, options.task).numpy()
    np.savez(options.outputs, **made)
    files = sorted(path.name for path in options.folder.glob("*.onnx"))
    return Reading(
        reader=name,
        files=files,
        adjusted=adjusted,
        load_seconds=round(loaded - started, 3),
        run_seconds=round(time.monotonic() - loaded, 3),
        outputs={key: list(value.shape) for key, value in made.items()},
        versions=inside.versions(("optimum-onnx", "transformers", "onnxruntime")),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="Folder with the graphs and config.json.")
    parser.add_argument("--task", choices=sorted(set(CLASSES) & set(BY_NAME)), required=True)
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--outputs", type=Path, required=True)
    parser.add_argument("--new-tokens", type=int, default=0)
    parser.add_argument("--prompt", type=int, default=0, help="Tokens that decoding goes on after; 0: all.")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    inside.main(_parser(), read)
