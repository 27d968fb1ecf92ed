"""Turn one text into another (translate, summarize…) with the model in this folder.

    python example.py "How are you?" --tokens 64

Needs onnxruntime, numpy and tokenizers; sentencepiece instead of tokenizers where marian_tokenizer.py lies here. The encoder reads
the source once; the decoder then makes one token at a time, and both of its caches go back into it: its own, which grows, and that
of the source, which stays as it is.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

FOLDER = Path(__file__).resolve().parent
DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(bool)": np.bool_,
}  # fmt: skip


def setting(name: str) -> Any:
    """A value of generation_config.json, else of config.json."""
    for file in ("generation_config.json", "config.json"):
        if (FOLDER / file).is_file():
            value = json.loads((FOLDER / file).read_text(encoding="utf-8")).get(name)
            if value is not None:
                return value
    return None


def as_list(value: Any) -> list[int]:
    """One number, several or none, as a list."""
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def codec() -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    """What turns a source into token ids, and target ids into a text; ends with a sentence where the package for it is missing."""
    try:
        if (FOLDER / "marian_tokenizer.py").is_file() and not (FOLDER / "tokenizer.json").is_file():
            # An import would leave compiled code in the folder, which is as its manifest says.
            marian: Any = runpy.run_path(str(FOLDER / "marian_tokenizer.py"))["MarianTokenizer"](FOLDER)
            return marian.encode, marian.decode
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
        # A file that was saved in training may hold the padding and the length of its batches.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return lambda text: list(tokenizer.encode(text).ids), tokenizer.decode
    except ModuleNotFoundError as error:
        sys.exit(f"This model's tokenizer needs the Python package {error.name}: pip install {error.name}")


def session(name: str) -> Any:
    """One of the graphs."""
    return onnxruntime.InferenceSession(FOLDER / name, providers=["CPUExecutionProvider"])


def translate(source: list[int], count: int) -> list[int]:
    """Greedy target tokens of a source."""
    ids, mask = np.array([source], np.int64), np.ones((1, len(source)), np.int64)
    encoder, decoder = session("encoder_model.onnx"), session("decoder_model_merged.onnx")
    inputs = {port.name: port for port in decoder.get_inputs()}
    outputs = [port.name for port in decoder.get_outputs()]
    (states,) = encoder.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
    past = {
        name: np.zeros((1, port.shape[1], 0, port.shape[3]), DTYPES[port.type])
        for name, port in inputs.items()
        if name.startswith("past_key_values.")
    }
    ends, banned = set(as_list(setting("eos_token_id"))), [words[0] for words in setting("bad_words_ids") or [] if len(words) == 1]
    banned += as_list(setting("suppress_tokens"))
    first = setting("forced_bos_token_id")
    made: list[int] = []
    start = setting("decoder_start_token_id")
    new = int(setting("bos_token_id") if start is None else start)
    while len(made) < count:
        feeds = {
            "input_ids": np.array([[new]], np.int64), "encoder_attention_mask": mask, "encoder_hidden_states": states,
            "use_cache_branch": np.array([bool(made)]),
        }  # fmt: skip
        result = dict(zip(outputs, decoder.run(outputs, {**{n: v for n, v in feeds.items() if n in inputs}, **past}), strict=True))
        past = {name: result[name.replace("past_key_values", "present", 1)] for name in past}
        logits = result["logits"][0, -1].astype(np.float32)
        logits[banned if made else [*banned, *as_list(setting("begin_suppress_tokens"))]] = -np.inf
        new = int(logits.argmax())
        if not made and first is not None:
            new = int(first)
        made.append(new)
        if new in ends:
            break
    return made


def main() -> None:
    """Print the target text."""
    parser = argparse.ArgumentParser(description="Turn one text into another.")
    parser.add_argument("prompt", nargs="?", default="How are you?")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--ids", action="store_true", help="print the target tokens' ids instead of the text")
    options = parser.parse_args()
    encode, decode = codec()
    made = translate(encode(options.prompt), options.tokens)
    print(json.dumps(made) if options.ids else decode(made))


if __name__ == "__main__":
    main()
