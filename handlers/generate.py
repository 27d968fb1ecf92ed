"""Continue a prompt with an exported ONNX folder: `python -m handlers.generate FOLDER --prompt TEXT --tokens N`.

Used by the demo, and by people who want to see that an artifact works. It needs onnxruntime, tokenizers and numpy;
neither PyTorch nor transformers is imported. Decoding is greedy, with an optional penalty on tokens already there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from daemon.errors import CkptdError, Permanent
from handlers.validate.decoding import Choose, greedy, most_likely
from handlers.validate.engines import EngineSpec
from handlers.validate.onnx_engine import GRAPH, OnnxEngine

_OPERATION = "generate text"


def penalized(penalty: float) -> Choose:
    """A greedy choice that divides the positive logits (and multiplies the negative ones) of tokens already seen by `penalty`.

    The formula is that of the CTRL paper (Keskar et al., 2019), section 4.1, in the form that spares negative logits.
    """

    def choose(logits: np.ndarray, seen: Sequence[int]) -> int:
        known = np.unique(np.asarray(seen, dtype=np.int64))
        scores = logits.copy()
        scores[known] = np.where(scores[known] > 0, scores[known] / penalty, scores[known] * penalty)
        return int(np.argmax(scores))

    return most_likely if penalty == 1 else choose


def generate(folder: Path, prompt: str, tokens: int, *, penalty: float = 1.0, threads: int = 1) -> tuple[str, float]:
    """The continuation of `prompt` by at most `tokens` tokens, and its speed in tokens a second, prefill left out.

    Raises Permanent when the folder holds no usable graph or tokenizer, or the prompt gives no tokens.
    """
    if not (folder / GRAPH).is_file():
        cause = f"the folder holds no {GRAPH}"
        raise Permanent("graph-not-found", _OPERATION, cause, "give the folder of an ONNX artifact, for example …/onnx", path=folder)
    try:
        engine = OnnxEngine(EngineSpec(engine="onnx", folder=str(folder), threads=threads))
        ids = engine.encode(prompt)
    except CkptdError:
        raise
    except Exception as error:  # onnxruntime and tokenizers raise types of their own, all of them about these files
        lines = str(error).strip().splitlines()
        cause = f"it can't be loaded: {lines[0] if lines else type(error).__name__}".rstrip(".")
        raise Permanent("graph-unreadable", _OPERATION, cause, "export the checkpoint again", path=folder) from error
    if not ids:
        raise Permanent("prompt-empty", _OPERATION, "the prompt gives no tokens", "give a prompt of at least one character")
    room = tokens if engine.context_length is None else engine.context_length - len(ids)
    if room < 1:
        cause = f"the prompt has {len(ids)} tokens and the model addresses {engine.context_length} positions"
        raise Permanent("prompt-too-long", _OPERATION, cause, "give a shorter prompt", path=folder)
    decoded = greedy(engine, ids, min(tokens, room), choose=penalized(penalty), end_tokens=engine.end_tokens)
    steps = len(decoded.tokens) - 1
    return engine.text(decoded.tokens), steps / decoded.decode_seconds if steps else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, print prompt and continuation; give the exit code (2 for anything a person must change)."""
    parser = argparse.ArgumentParser(prog="python -m handlers.generate", description="Continue a prompt with an exported ONNX folder.")
    parser.add_argument("folder", type=Path, help="folder of an ONNX artifact")
    parser.add_argument("--prompt", required=True, help="text to continue")
    parser.add_argument("--tokens", type=_positive, default=64, help="largest number of new tokens (default 64)")
    parser.add_argument(
        "--repetition-penalty", type=_at_least_one, default=1.0, help="1 (default) is plain greedy decoding; 1.1 to 1.3 is mild"
    )
    parser.add_argument("--threads", type=_positive, default=1, help="threads of the runtime (default 1)")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        text, speed = generate(options.folder, options.prompt, options.tokens, penalty=options.repetition_penalty, threads=options.threads)
    except CkptdError as error:
        print(error.fault.sentence(), file=sys.stderr)
        return 2
    print(options.prompt + text)
    print(f"({speed:.0f} tokens/s, {time.perf_counter() - started:.1f} s in all)", file=sys.stderr)
    return 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _at_least_one(text: str) -> float:
    value = float(text)
    if not value >= 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
