"""Continue a text with the model in this folder.

    python example.py "def main():" --tokens 32
    python example.py --chat "How are you?"

Needs onnxruntime, tokenizers and numpy; --chat, for a model with a chat template, jinja2 too. The key-value cache goes back into the graph
after each step.
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
DTYPES: dict[str, Any] = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


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


def generate(graph: Any, tokens: list[int], count: int) -> list[int]:
    """Greedy continuation of `tokens` by at most `count` tokens."""
    inputs = {one.name: one for one in graph.get_inputs()}
    outputs = [one.name for one in graph.get_outputs() if one.name == "logits" or one.name.startswith("present.")]
    # The cache starts empty: (batch, key-value heads, 0, head dimension).
    past = {
        name: np.zeros((1, one.shape[1], 0, one.shape[3]), DTYPES[one.type])
        for name, one in inputs.items()
        if name.startswith("past_key_values.")
    }
    ends, made, new = end_tokens(), list[int](), tokens
    while len(made) < count:
        total = len(tokens) + len(made)
        feeds: dict[str, Any] = {
            "input_ids": np.array([new], np.int64),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(total - len(new), total, dtype=np.int64)[None],
        }
        feeds = {name: value.astype(DTYPES[inputs[name].type]) for name, value in feeds.items() if name in inputs}
        result = dict(zip(outputs, graph.run(outputs, {**feeds, **past}), strict=True))
        past = {name: result[name.replace("past_key_values", "present", 1)] for name in past}
        following = int(result["logits"][0, -1].argmax())
        made.append(following)
        if following in ends:
            break
        new = [following] if past else [*tokens, *made]  # a graph without a cache reads everything again
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
    graph = session("model.onnx")
    text = chat_text(options.prompt) if options.chat else options.prompt
    tokens = tokenizer.encode(text, add_special_tokens=not options.chat).ids  # a chat template writes them itself
    made = generate(graph, tokens, options.tokens)
    shown = [*([] if options.chat else tokens), *(one for one in made if one not in end_tokens())]
    print(json.dumps(made) if options.ids else tokenizer.decode(shown))


if __name__ == "__main__":
    main()
