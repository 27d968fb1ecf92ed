"""Classify, tag, answer, fill in or embed a text with the model in this folder; which of these, the model says.

    python example.py "I like this."
    python example.py "Who wrote it?" --context "Ada wrote it."      (question answering)

Needs onnxruntime, tokenizers and numpy.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

FOLDER = Path(__file__).resolve().parent


def read(name: str) -> dict[str, Any]:
    """A JSON file of this folder; empty where it is missing."""
    path = FOLDER / name
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return value


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def label(number: int) -> str:
    """Name of a class."""
    return str(read("config.json").get("id2label", {}).get(str(number), number))


def answer(task: str, encoding: Any, result: dict[str, np.ndarray], tokenizer: Tokenizer, text: str) -> Any:
    """What the outputs mean for the task; all arrays have a batch of one."""
    if task == "feature-extraction":
        vector = result["sentence_embedding"][0] if "sentence_embedding" in result else result["last_hidden_state"][0].mean(axis=0)
        return {"size": len(vector), "embedding": [round(float(value), 6) for value in vector[:8]]}
    if task == "question-answering":
        start, end = (int(result[name][0].argmax()) for name in ("start_logits", "end_logits"))
        ids = encoding.ids[start : end + 1]
        return {"start": start, "end": end, "answer": tokenizer.decode(ids)}
    logits = result["logits"][0]
    if task == "text-classification":
        return {label(number): round(float(share), 4) for number, share in enumerate(softmax(logits))}
    if task == "token-classification":
        return [[token, label(int(row.argmax()))] for token, row in zip(encoding.tokens, logits, strict=True)]
    mask = next((tokenizer.token_to_id(one) for one in ("[MASK]", "<mask>") if tokenizer.token_to_id(one) is not None), None)
    places = [place for place, number in enumerate(encoding.ids) if number == mask]
    return {place: tokenizer.decode([int(logits[place].argmax())]) for place in places}


def main() -> None:
    """Print the answer as JSON."""
    parser = argparse.ArgumentParser(description="Run an encoder model on a text.")
    parser.add_argument("text", nargs="?", default="I like this.")
    parser.add_argument("--context", help="where to look for the answer to a question")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    session = onnxruntime.InferenceSession(FOLDER / "model.onnx", providers=["CPUExecutionProvider"])
    encoding = tokenizer.encode(options.text, options.context) if options.context else tokenizer.encode(options.text)
    given = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask, "token_type_ids": encoding.type_ids}
    feeds = {one.name: np.array([given[one.name]], np.int64) for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    result = {name: np.asarray(value, np.float32) for name, value in zip(names, session.run(names, feeds), strict=True)}
    print(json.dumps(answer(read("graphs.json")["task"], encoding, result, tokenizer, options.text), ensure_ascii=False))


if __name__ == "__main__":
    main()
