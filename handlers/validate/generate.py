"""Continue a prompt, or translate a source text, with an exported ONNX folder: `python -m handlers.validate.generate FOLDER --prompt TEXT`.

Used by the demo, and by people who want to see that an artifact works. It needs onnxruntime, numpy and tokenizers or sentencepiece;
neither PyTorch nor transformers is imported. Decoding is greedy, with an optional penalty on tokens already there; an
encoder-decoder obeys its generation_config as `handlers.validate.engines.generation_rules` says.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.child import foreign
from handlers.validate.engines.graphs.onnx_causal import OnnxEngine
from handlers.validate.engines.graphs.onnx_folder import GRAPH, USUAL, graph_files
from handlers.validate.engines.graphs.onnx_tasks import OnnxSeq2Seq
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.decoding import Choose, Decoded, greedy, most_likely
from handlers.validate.workers.seq2seq_decoding import greedy as translate

_OPERATION = "generate text"


def penalized(penalty: float) -> Choose:
    """Give a greedy choice that divides the positive logits (and multiplies the negative ones) of tokens already seen by `penalty`.

    The formula is that of the CTRL paper (Keskar et al., 2019), section 4.1, in the form that spares negative logits.
    """

    def choose(logits: np.ndarray, seen: Sequence[int]) -> int:
        known = np.unique(np.asarray(seen, dtype=np.int64))
        scores = logits.copy()
        scores[known] = np.where(scores[known] > 0, scores[known] / penalty, scores[known] * penalty)
        return int(np.argmax(scores))

    return most_likely if penalty == 1 else choose


def generate(folder: Path, prompt: str, tokens: int, *, penalty: float = 1.0, threads: int = 1) -> tuple[str, float]:
    """Give the continuation of `prompt`, or what an encoder-decoder makes of it, and its speed in tokens a second, prefill left out.

    At most `tokens` tokens. Raises Permanent when the folder holds no usable graph or tokenizer, or the prompt gives no tokens.
    """
    engine = _load(folder, threads)
    ids = _encoded(engine, folder, prompt)
    if not ids:
        raise Permanent(FaultCode.PROMPT_UNUSABLE, _OPERATION, "the prompt gives no tokens", "give a prompt of at least one character")
    pair = isinstance(engine, OnnxSeq2Seq)
    context = engine.context_length
    # A source and its translation have positions of their own; a continuation goes on in the prompt's.
    room = tokens if context is None else context - (1 if pair else len(ids))
    if room < 1 or (context is not None and len(ids) > context):
        cause = f"the prompt has {len(ids)} tokens, but the model has only {context} positions"
        raise Permanent(FaultCode.PROMPT_UNUSABLE, _OPERATION, cause, "give a shorter prompt", path=folder)
    decoded = _decode(engine, ids, min(tokens, room), penalty)
    steps = len(decoded.tokens) - 1
    return engine.text(decoded.tokens), steps / decoded.decode_seconds if steps else 0.0


def makes_another_text(folder: Path) -> bool:
    """Tell whether the folder's model makes another text of a prompt, and does not continue it."""
    return "encoder" in graph_files(folder)


def _load(folder: Path, threads: int) -> OnnxEngine | OnnxSeq2Seq:
    files = graph_files(folder)
    if not {"model", "encoder", "embedding"} & files.keys():
        cause = f"the folder holds no {GRAPH} and no {USUAL['encoder']}"
        raise Permanent(
            FaultCode.GRAPH_UNREADABLE, _OPERATION, cause, "give the folder of an ONNX artifact, for example …/onnx", path=folder
        )
    spec = EngineSpec(engine="onnx", folder=str(folder), threads=threads)
    try:
        return OnnxSeq2Seq(spec) if "encoder" in files else OnnxEngine(spec)
    except CkptdError:
        raise
    except Exception as error:
        raise _unreadable(folder, error) from error


def _encoded(engine: OnnxEngine | OnnxSeq2Seq, folder: Path, prompt: str) -> list[int]:
    try:
        return engine.encode(prompt)
    except CkptdError:
        raise
    except Exception as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: Exception) -> Permanent:
    """onnxruntime and tokenizers raise types of their own, all of them about the folder's files."""
    cause = f"it can't be loaded: {foreign.in_words(error)}"
    return Permanent(FaultCode.GRAPH_UNREADABLE, _OPERATION, cause, "export the checkpoint again", path=folder)


def _decode(engine: OnnxEngine | OnnxSeq2Seq, ids: list[int], tokens: int, penalty: float) -> Decoded:
    choose = penalized(penalty)
    if isinstance(engine, OnnxEngine):
        return greedy(engine, ids, tokens, choose=choose, end_tokens=engine.end_tokens)
    if penalty == 1:
        return translate(engine, ids, tokens, stop=True)
    return translate(engine, ids, tokens, stop=True, choose=lambda row, place, seen: choose(row, seen))


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, print prompt and continuation; give the exit code (2 for anything a person must change)."""
    parser = argparse.ArgumentParser(
        prog="python -m handlers.validate.generate",
        description="Continue a prompt, or translate a source text, with an exported ONNX folder.",
    )
    parser.add_argument("folder", type=Path, help="folder of an ONNX artifact")
    parser.add_argument("--prompt", required=True, help="text to continue, or to translate")
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
    print(text if makes_another_text(options.folder) else options.prompt + text)
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
