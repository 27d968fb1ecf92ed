"""Continue a text with the model in this folder.

    python example.py "def main():" --tokens 32
    python example.py --chat "How are you?"

Needs onnxruntime, tokenizers and numpy; --chat, for a model with a chat template, jinja2 too. The key-value cache goes back into the graph
after each step; where the graph can do that, past and present are the same buffer, so that nothing is copied.
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


def session(name: str) -> Any:
    """One of the graphs."""
    return onnxruntime.InferenceSession(FOLDER / name, providers=["CPUExecutionProvider"])


def shares_cache() -> bool:
    """Whether the graph can write what is new into the buffer that holds its past."""
    about = FOLDER / "graphs.json"
    return about.is_file() and "model" in json.loads(about.read_text(encoding="utf-8"))["extra"].get("shared_cache", ())


class Steps:
    """Runs the graph on the tokens that are new, and keeps the key-value cache."""

    def __init__(self, graph: Any, longest: int) -> None:
        self.graph = graph
        self.inputs = {one.name: one for one in graph.get_inputs()}
        self.outputs = [one.name for one in graph.get_outputs() if one.name == "logits" or one.name.startswith("present.")]
        past = [one for name, one in self.inputs.items() if name.startswith("past_key_values.")]
        self.shared = bool(past) and shares_cache()
        # (batch, key-value heads, tokens, head dimension): room for all tokens where past and present share it, else empty at first.
        room = longest if self.shared else 0
        self.past = {one.name: np.zeros((1, one.shape[1], room, one.shape[3]), DTYPES[one.type]) for one in past}

    def logits(self, new: list[int], total: int) -> np.ndarray:
        """Of the new tokens, which are the last of `total`."""
        feeds: dict[str, Any] = {
            "input_ids": np.array([new], np.int64),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(total - len(new), total, dtype=np.int64)[None],
        }
        feeds = {name: value.astype(DTYPES[self.inputs[name].type]) for name, value in feeds.items() if name in self.inputs}
        if self.shared:
            return self._in_place(feeds)
        result = dict(zip(self.outputs, self.graph.run(self.outputs, {**feeds, **self.past}), strict=True))
        self.past = {name: result[name.replace("past_key_values", "present", 1)] for name in self.past}
        logits: np.ndarray = result["logits"]
        return logits

    def _in_place(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        binding = self.graph.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        for name, cache in self.past.items():
            where = ("cpu", 0, cache.dtype, cache.shape, cache.ctypes.data)
            binding.bind_input(name, *where)
            binding.bind_output(name.replace("past_key_values", "present", 1), *where)
        binding.bind_output("logits", "cpu")
        self.graph.run_with_iobinding(binding)
        return np.array(binding.get_outputs()[-1].numpy())


def generate(graph: Any, tokens: list[int], count: int) -> list[int]:
    """Greedy continuation of `tokens` by at most `count` tokens."""
    steps = Steps(graph, len(tokens) + count)
    ends, made, new = end_tokens(), list[int](), tokens
    while len(made) < count:
        following = int(steps.logits(new, len(tokens) + len(made))[0, -1].argmax())
        made.append(following)
        if following in ends:
            break
        new = [following] if steps.past else [*tokens, *made]  # a graph without a cache reads everything again
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
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    # A file that was saved in training may hold the padding and the length of its batches.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    graph = session("model.onnx")
    text = chat_text(options.prompt) if options.chat else options.prompt
    tokens = tokenizer.encode(text, add_special_tokens=not options.chat).ids  # a chat template writes them itself
    made = generate(graph, tokens, options.tokens)
    shown = [*([] if options.chat else tokens), *(one for one in made if one not in end_tokens())]
    print(json.dumps(made) if options.ids else tokenizer.decode(shown))


if __name__ == "__main__":
    main()
