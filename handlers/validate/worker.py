"""One engine in a process of its own: `python -m handlers.validate.worker SPEC_JSON_FILE`.

Started by `client.Worker`. It reads commands as JSON lines from standard input and answers each with one JSON line on
a private copy of standard output; large arrays go through .npy files. Whatever kills it (a crash of a runtime, the
kernel's memory killer) takes this artifact's verdict and no other. The first command is `load`: until then only the
libraries are imported, so that a worker can get ready while another one still holds its model.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemon.contract import ChildLimits
from daemon.errors import CkptdError
from handlers import child

DETAILS_LIMIT = 4000
VERIFIED_STEPS = 64
"""Cached steps that are compared with a pass without a cache: their logits are held in memory."""


class Commands:
    """The verbs that a worker answers; each method takes JSON values and gives a JSON object."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from handlers.validate import engines

        self._engines = engines
        self._spec = engines.EngineSpec.model_validate(spec)
        engines.engine_class(self._spec.engine).prepare(self._spec)
        self._load_seconds = 0.0
        self._engine: Any = None

    def load(self) -> dict[str, Any]:
        """Load the model; give what it says about itself."""
        started = time.perf_counter()
        self._engine = self._engines.load(self._spec)
        self._load_seconds = time.perf_counter() - started
        return {
            "vocabulary": self._engine.vocabulary,
            "context_length": self._engine.context_length,
            "end_tokens": list(self._engine.end_tokens),
            "adapted": bool(getattr(self._engine, "adapted", False)),
        }

    def encode(self, texts: list[str]) -> dict[str, Any]:
        """Token ids of texts, by the tokenizer of the engine's own folder."""
        return {"ids": [self._engine.encode(text) for text in texts]}

    def text(self, ids: list[int]) -> dict[str, Any]:
        """The text of token ids."""
        return {"text": self._engine.text(ids)}

    def teacher(self, ids: list[int], keep: list[int], out: str, bare: bool = False) -> dict[str, Any]:
        """Write the logits (len(keep), V) float32 of the positions `keep` of one pass over `ids`; `bare`: without the adapter."""
        import numpy as np

        from handlers.validate.decoding import teacher_forced

        logits = self._engine.bare_logits(np.asarray(ids, dtype=np.int64)) if bare else teacher_forced(self._engine, ids)
        np.save(out, logits[keep])
        return {"vocabulary": int(logits.shape[-1])}

    def greedy(self, ids: list[int], tokens: int, least: int = 0, stop: bool = False, verify: bool = False) -> dict[str, Any]:
        """Decode greedily through the cache; `verify` compares the cached steps with a pass without a cache."""
        from handlers.validate import decoding

        decoded = decoding.greedy(self._engine, ids, tokens, end_tokens=self._engine.end_tokens if stop else (), least=least)
        answer: dict[str, Any] = {"tokens": decoded.tokens}
        if verify:
            answer["cache_error"] = decoding.cache_error(self._engine, ids, decoded, VERIFIED_STEPS)
        return answer

    def padding(self, prompts: list[list[int]], continuations: list[list[int]]) -> dict[str, Any]:
        """Compare a left-padded batch with its rows alone."""
        from handlers.validate.decoding import padding_error

        return {"padding_error": padding_error(self._engine, prompts, continuations)}

    def timed(self, ids: list[int], tokens: int) -> dict[str, Any]:
        """Seconds of a prompt's pass and of `tokens` single-token steps after it."""
        from handlers.validate.decoding import timed

        prefill, decode = timed(self._engine, ids, tokens)
        return {"prefill_seconds": prefill, "decode_seconds": decode}

    def stats(self) -> dict[str, Any]:
        """Seconds of loading and the largest resident set so far in bytes, interpreter and libraries included."""
        return {"load_seconds": self._load_seconds, "peak_rss_bytes": child.peak_rss(), "versions": child.loaded_versions()}


def _traceback() -> str:
    return traceback.format_exc()[-DETAILS_LIMIT:]


def _answer(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `call` gives, or its error as data: cause, remedy when the raiser knew one, and the traceback's end."""
    try:
        return call()
    except CkptdError as error:
        fault = error.fault
        return {"error": {"code": fault.code, "cause": fault.cause, "remedy": fault.remedy, "details": _traceback()}}
    except Exception as error:
        lines = str(error).strip().splitlines()
        cause = f"{type(error).__name__}: {lines[0][:400] if lines else 'no message'}".rstrip(".")
        return {"error": {"code": "engine", "cause": cause, "remedy": None, "details": _traceback()}}


def main(spec_file: str) -> int:
    """Serve commands until standard input ends."""
    job = json.loads(Path(spec_file).read_text())
    limits = ChildLimits.model_validate(job["limits"])
    child.bind(limits)
    stream = child.take_standard_output()
    child.set_environment(limits, job["temporary"])
    commands: Commands | None = None
    broken: dict[str, Any] | None = None
    try:
        commands = Commands(job["spec"])
    except Exception as error:
        traceback.print_exc()
        cause = f"its engine can't be imported: {error}"
        broken = {"error": {"code": "engine-missing", "cause": cause, "remedy": "install ckptd's dependencies again", "details": None}}
    for line in sys.stdin:
        request = json.loads(line)
        verb = request.pop("command")
        answer = broken if commands is None else _answer(functools.partial(getattr(commands, verb), **request))
        stream.write(json.dumps(answer) + "\n")
        stream.flush()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(code)  # there is nothing to save, and taking libraries and model down in order takes a second
