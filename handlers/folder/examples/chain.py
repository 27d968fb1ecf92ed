"""Continue a text with the model in this folder, which is a chain of graphs: embedding, blocks of layers, head.

    python example.py "def main():" --tokens 32
    python example.py "def main():" --tokens 32 --one-at-a-time
    python example.py --chat "How are you?"

Needs onnxruntime, tokenizers and numpy; --chat, for a model with a chat template, jinja2 too. graphs.json names the graphs in the order
in which they run: what one gives as `next_hidden_states` the next one takes as `hidden_states`, and each block keeps the key-value cache
of its own layers. With --one-at-a-time only one graph is in memory, and each is loaded again for each token: slow, for models larger than
the memory.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

FOLDER = Path(__file__).resolve().parent
DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
}  # fmt: skip


def end_tokens() -> set[int]:
    """Tokens after which the model has nothing more to say."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        if (FOLDER / name).is_file():
            ends = json.loads((FOLDER / name).read_text(encoding="utf-8")).get("eos_token_id")
            found.update(ends if isinstance(ends, list) else [] if ends is None else [ends])
    return found


class Chain:
    """The graphs of a folder, run one after the other."""

    def __init__(self, files: list[str], keep: bool) -> None:
        self.files = files
        self.past: dict[str, np.ndarray] = {}
        self.sessions = {name: self.open(name) for name in files} if keep else {}

    def open(self, name: str) -> onnxruntime.InferenceSession:
        """One graph."""
        return onnxruntime.InferenceSession(FOLDER / name, providers=["CPUExecutionProvider"])

    def logits(self, tokens: list[int], total: int) -> np.ndarray:
        """Logits (1, tokens, vocabulary) of new tokens, the last of `total`; the cache remembers those before."""
        values: dict[str, Any] = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(total - len(tokens), total, dtype=np.int64)[None],
        }
        for name in self.files:
            session = self.sessions.get(name) or self.open(name)
            feeds = {}
            for one in session.get_inputs():
                if one.name.startswith("past_key_values.") and one.name not in self.past:
                    # The cache starts empty: (batch, key-value heads, 0, head dimension).
                    self.past[one.name] = np.zeros((1, one.shape[1], 0, one.shape[3]), DTYPES[one.type])
                value = self.past[one.name] if one.name in self.past else values[one.name]
                feeds[one.name] = value.astype(DTYPES[one.type], copy=False)
            outputs = dict(zip([one.name for one in session.get_outputs()], session.run(None, feeds), strict=True))
            for output, value in outputs.items():
                if output.startswith("present."):
                    self.past[output.replace("present", "past_key_values", 1)] = value
                elif output == "next_hidden_states":
                    values["hidden_states"] = value
        result: np.ndarray = outputs["logits"]
        return result


def generate(chain: Chain, tokens: list[int], count: int) -> list[int]:
    """Greedy continuation of `tokens` by at most `count` tokens."""
    ends, made, new = end_tokens(), list[int](), tokens
    while len(made) < count:
        following = int(chain.logits(new, len(tokens) + len(made))[0, -1].argmax())
        made.append(following)
        if following in ends:
            break
        new = [following]
    return made


def chat_text(question: str) -> str:
    """A question as the model's chat template puts it; ends with a sentence where there is no template, or no jinja2."""
    if not (FOLDER / "chat_template.py").is_file():
        sys.exit("This model has no chat template: leave out --chat")
    try:
        # An import would leave compiled code in the folder, which is as its manifest says.
        render = runpy.run_path(str(FOLDER / "chat_template.py"))["render"]
    except ModuleNotFoundError as error:
        sys.exit(f"--chat needs the Python package {error.name}: pip install {error.name}")
    return str(render(FOLDER, [{"role": "user", "content": question}]))


def main() -> None:
    """Print the continuation, or the answer."""
    parser = argparse.ArgumentParser(description="Continue a text.")
    parser.add_argument("prompt", nargs="?", default="def main():")
    parser.add_argument("--chat", action="store_true", help="the text is a question: put it by the model's chat template, print the answer")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--ids", action="store_true", help="print the new tokens' ids instead of the text")
    parser.add_argument("--one-at-a-time", action="store_true", help="keep one graph in memory, and load each for each token")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    # A file that was saved in training may hold the padding and the length of its batches.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    graphs = json.loads((FOLDER / "graphs.json").read_text(encoding="utf-8"))["graphs"]
    text = chat_text(options.prompt) if options.chat else options.prompt
    tokens = tokenizer.encode(text, add_special_tokens=not options.chat).ids  # a chat template writes them itself
    made = generate(Chain([graph["file"] for graph in graphs], not options.one_at_a_time), tokens, options.tokens)
    shown = [*([] if options.chat else tokens), *(one for one in made if one not in end_tokens())]
    print(json.dumps(made) if options.ids else tokenizer.decode(shown))


if __name__ == "__main__":
    main()
