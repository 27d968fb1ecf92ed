"""Show what happens inside the model in this folder when it reads a text: the activations that activations.json lists.

    python activations.py "def main():"
    python activations.py "def main():" --npz activations.npz

Needs onnxruntime, tokenizers and numpy. One line for each activation: its name, its shape, the root mean square of its values, and what it
is. With --npz they are written to a file for numpy, by their names, with the text's tokens as `input_ids`.
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
DTYPES: dict[str, Any] = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


def run(tokens: list[int], segments: list[int], names: list[str]) -> dict[str, Any]:
    """The outputs of these names for one text; the first axis is the batch of one."""
    session = onnxruntime.InferenceSession(FOLDER / "model.onnx", providers=["CPUExecutionProvider"])
    count = len(tokens)
    given: dict[str, list[int]] = {
        "input_ids": tokens, "attention_mask": [1] * count, "position_ids": list(range(count)), "token_type_ids": segments,
    }  # fmt: skip
    feeds = {}
    for port in session.get_inputs():
        if port.name.startswith("past_key_values."):  # the cache starts empty: (batch, key-value heads, 0, head dimension)
            feeds[port.name] = np.zeros((1, port.shape[1], 0, port.shape[3]), DTYPES[port.type])
        else:
            feeds[port.name] = np.array([given[port.name]], DTYPES[port.type])
    return dict(zip(names, session.run(names, feeds), strict=True))


def main() -> None:
    """Print a line for each activation."""
    parser = argparse.ArgumentParser(description="Show a model's activations.")
    parser.add_argument("text", nargs="?", default="def main():")
    parser.add_argument("--npz", type=Path, help="write them to this file too")
    options = parser.parse_args()
    listed = json.loads((FOLDER / "activations.json").read_text(encoding="utf-8"))["outputs"]
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    # A file that was saved in training may hold the padding and the length of its batches.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    encoding = tokenizer.encode(options.text)
    values = run(encoding.ids, encoding.type_ids, [output["name"] for output in listed])
    print("tokens:", " ".join(json.dumps(token, ensure_ascii=False) for token in encoding.tokens))
    for output in listed:
        value = values[output["name"]]
        size = float(np.sqrt(np.square(value, dtype=np.float64).mean()))
        print(f"{output['name']} {value.shape} {size:.4g}: {output['meaning']}")
    if options.npz:
        np.savez(options.npz, input_ids=np.array([encoding.ids], np.int64), **values)


if __name__ == "__main__":
    main()
