"""Continue a text with the model in this folder.

    python example.py "def main():" --tokens 32
    python example.py --chat "How are you?"

Needs onnxruntime, tokenizers and numpy; --chat, for a model with a chat template, jinja2 too. The key-value cache goes back into the graph
after each step; where the graph can do that, past and present are the same buffer, so that nothing is copied.

A model may be a chain of graphs, in the order of graphs.json: what a graph gives as `next_hidden_states` the next one takes as
`hidden_states`, and each has the cache of its own layers. With --one-at-a-time only one graph is in memory, and each is loaded again for
each token: slow, for models larger than the memory.
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


def read(name: str) -> dict[str, Any]:
    """A JSON file of this folder; empty where it is missing."""
    path = FOLDER / name
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return value


def end_tokens() -> set[int]:
    """Tokens after which the model has nothing more to say."""
    tokens: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        ends = read(name).get("eos_token_id")
        tokens.update(ends if isinstance(ends, list) else [] if ends is None else [ends])
    return tokens


def session(name: str) -> Any:
    """One of the graphs."""
    return onnxruntime.InferenceSession(FOLDER / name, providers=["CPUExecutionProvider"])


def graph_files() -> list[str]:
    """The graphs in the order in which they run."""
    files = [graph["file"] for graph in read("graphs.json").get("graphs", ())]
    return files if len(files) > 1 else ["model.onnx"]


class Steps:
    """Runs the graphs on the tokens that are new, and keeps the key-value cache."""

    def __init__(self, files: list[str], longest: int, keep: bool = True) -> None:
        self.files = files
        self.graphs = {name: session(name) for name in files} if keep else {}
        self.past: dict[str, np.ndarray] = {}
        # Where past and present share their buffer, there is room for all tokens in it.
        self.room = longest if "model" in read("graphs.json").get("extra", {}).get("shared_cache", ()) else 0

    def logits(self, new: list[int], total: int) -> np.ndarray:
        """Of the new tokens, which are the last of `total`."""
        values: dict[str, Any] = {
            "input_ids": np.array([new], np.int64),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(total - len(new), total, dtype=np.int64)[None],
        }
        outputs: dict[str, np.ndarray] = {}
        for file in self.files:
            graph = self.graphs.get(file) or session(file)
            outputs = self._run(graph, values)
            del graph
            values["hidden_states"] = outputs.get("next_hidden_states")
        return outputs["logits"]

    def _run(self, graph: Any, values: dict[str, Any]) -> dict[str, np.ndarray]:
        """The logits, or the hidden states for the next graph; what the graph gives of its cache is kept."""
        feeds = {}
        for port in graph.get_inputs():
            if port.name.startswith("past_key_values."):
                if port.name not in self.past:  # (batch, key-value heads, tokens, head dimension)
                    self.past[port.name] = np.zeros((1, port.shape[1], self.room, port.shape[3]), DTYPES[port.type])
                feeds[port.name] = self.past[port.name]
            else:
                feeds[port.name] = values[port.name].astype(DTYPES[port.type])
        if feeds.keys() & self.past.keys() and self.room:
            return self._run_in_place(graph, feeds)
        names = [port.name for port in graph.get_outputs()]
        names = [name for name in names if name in ("logits", "next_hidden_states") or name.startswith("present.")]
        outputs = dict(zip(names, graph.run(names, feeds), strict=True))
        for name in names:
            if name.startswith("present."):
                self.past[name.replace("present", "past_key_values", 1)] = outputs.pop(name)
        return outputs

    def _run_in_place(self, graph: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same where the graph writes what is new into the buffer that holds its past."""
        binding = graph.io_binding()
        for name, value in feeds.items():
            if name not in self.past:
                binding.bind_cpu_input(name, value)
                continue
            where = ("cpu", 0, value.dtype, value.shape, value.ctypes.data)
            binding.bind_input(name, *where)
            binding.bind_output(name.replace("past_key_values", "present", 1), *where)
        binding.bind_output("logits", "cpu")
        graph.run_with_iobinding(binding)
        return {"logits": np.array(binding.get_outputs()[-1].numpy())}


def generate(steps: Steps, tokens: list[int], count: int, penalty: float = 1.0) -> list[int]:
    """Greedy continuation of `tokens` by at most `count` tokens. `penalty`: of those that are there already (CTRL, Keskar et al., 2019)."""
    ends, made, new = end_tokens(), list[int](), tokens
    while len(made) < count:
        scores = steps.logits(new, len(tokens) + len(made))[0, -1]
        if penalty != 1:
            known = np.unique([*tokens, *made])
            scores[known] = np.where(scores[known] > 0, scores[known] / penalty, scores[known] * penalty)
        following = int(scores.argmax())
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
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="above 1, tokens that are there already become less likely")
    parser.add_argument("--ids", action="store_true", help="print the new tokens' ids instead of the text")
    parser.add_argument("--one-at-a-time", action="store_true", help="keep one graph in memory, and load each for each token")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    # A file that was saved in training may hold the padding and the length of its batches.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    text = chat_text(options.prompt) if options.chat else options.prompt
    tokens = tokenizer.encode(text, add_special_tokens=not options.chat).ids  # a chat template writes them itself
    steps = Steps(graph_files(), len(tokens) + options.tokens, not options.one_at_a_time)
    made = generate(steps, tokens, options.tokens, options.repetition_penalty)
    shown = [*([] if options.chat else tokens), *(token for token in made if token not in end_tokens())]
    print(json.dumps(made) if options.ids else tokenizer.decode(shown))


if __name__ == "__main__":
    main()
