"""One engine in a process of its own: `python -m handlers.validate.workers.worker SPEC_JSON_FILE`.

Started by `client.EngineWorker`, in a toolchain by its bootstrap. It reads commands as JSON lines from standard input and answers each
with one JSON line on a private copy of standard output; large arrays go through .npy files. If something kills it (a crash of a runtime,
the kernel's OOM killer), only this artifact's verdict is affected. The first command is `load`: until then only the libraries are
imported, so that a worker can get ready while another one still holds its model.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from daemon.contract.errors import CkptdError
from daemon.contract.fault_codes import FaultCode
from daemon.contract.formats import catalog
from daemon.contract.formats.declaration import FormatEntry
from daemon.contract.jobs.messages import ChildLimits
from handlers.child import process
from handlers.toolchains import use

DETAILS_LIMIT = 4000


class Commands:
    """The verbs that a worker answers; each method takes JSON values and gives a JSON object."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from handlers.validate.engines import registry
        from handlers.validate.workers import drivers

        self._engines, self._drivers = registry, drivers
        self._spec = registry.EngineSpec.model_validate(spec)
        registry.engine_class(self._spec).prepare(self._spec)
        self._load_seconds = 0.0
        self._engine: Any = None
        self._driver: Any = None

    def load(self) -> dict[str, Any]:
        """Load the model; give what it says about itself."""
        started = time.perf_counter()
        self._engine = self._engines.load(self._spec)
        self._load_seconds = time.perf_counter() - started
        self._driver = self._drivers.drive(self._spec.task, self._engine)
        return {
            "vocabulary": self._engine.vocabulary,
            "context_length": self._engine.context_length,
            "end_tokens": list(getattr(self._engine, "end_tokens", ())),
            "adapted": bool(getattr(self._engine, "adapted", False)),
        }

    def rebase(self, values: str) -> dict[str, Any]:
        """Put the live adapter on the base that `merge.base` names."""
        return {"tensors": self._engine.rebase(values)}

    def streams(self) -> dict[str, Any]:
        """Why the live adapter could be merged into no other base than the original; null where it could."""
        return {"reason": self._engine.streams()}

    def encode(self, texts: list[str], firsts: list[str] | None = None) -> dict[str, Any]:
        """Token ids of texts, by the tokenizer of the engine's own folder; with `firsts` of pairs, and the tokens' segments."""
        if firsts is None:
            return {"ids": [self._engine.encode(text) for text in texts]}
        pairs = [self._engine.encode_pair(first, text) for first, text in zip(firsts, texts, strict=True)]
        return {"ids": [ids for ids, _ in pairs], "types": [types for _, types in pairs]}

    def special(self) -> dict[str, Any]:
        """The tokenizer's special tokens, and the one that stands for a hidden token."""
        return {"special": sorted(self._engine.special_tokens), "mask": self._engine.mask_token}

    def input_vocabulary(self) -> dict[str, Any]:
        """The number of tokens that the model knows."""
        return {"tokens": self._engine.input_vocabulary}

    def text(self, ids: list[int]) -> dict[str, Any]:
        """The text of token ids."""
        return {"text": self._engine.text(ids)}

    def teacher(
        self, ids: list[int], keep: list[int], out: str, targets: Sequence[int] = (), types: list[int] | None = None, bare: bool = False
    ) -> dict[str, Any]:
        """Write the rows `keep` (len(keep), V) float32 of one pass; `bare`: without the adapter."""
        import numpy as np

        with self._engine.without_adapter() if bare else contextlib.nullcontext():
            rows = self._driver.rows(ids, targets, types)
        np.save(out, rows[keep])
        return {"vocabulary": int(rows.shape[-1]), "rows": len(rows)}

    def greedy(self, ids: list[int], tokens: int, least: int = 0, stop: bool = False, verify: bool = False) -> dict[str, Any]:
        """Decode greedily through the cache; `verify` compares the cached steps with a pass without a cache."""
        answer: dict[str, Any] = self._driver.greedy(ids, tokens, least=least, stop=stop, verify=verify)
        return answer

    def padding(
        self, prompts: list[list[int]], continuations: list[list[int]], types: list[list[int]] | None = None, side: str = "left"
    ) -> dict[str, Any]:
        """Compare a padded batch with its rows alone."""
        return {"padding_error": self._driver.padding(prompts, continuations, types, side)}

    def wrapped(self, ids: list[int], types: list[int]) -> dict[str, Any]:
        """max |Δ| of a text's outputs between PEFT's wrapper of the live model and the model inside; null where there is no wrapper."""
        difference = getattr(self._engine, "wrapper_difference", None)
        return {"wrapper_error": None if difference is None else difference(ids, types)}

    def timed(self, ids: list[int], tokens: int) -> dict[str, Any]:
        """Seconds of the first pass and of the work after it, which `tokens` sets, and the tokens of that work."""
        prefill, decode, count = self._driver.timed(ids, tokens)
        return {"prefill_seconds": prefill, "decode_seconds": decode, "tokens": count}

    def stats(self) -> dict[str, Any]:
        """Seconds of loading and the largest resident set so far in bytes, interpreter and libraries included."""
        return {"load_seconds": self._load_seconds, "peak_rss_bytes": process.peak_rss(), "versions": process.loaded_versions()}


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
        return {"error": {"code": FaultCode.ENGINE, "cause": cause, "remedy": None, "details": _traceback()}}


def _missing(error: Exception) -> dict[str, Any]:
    """What keeps the engine from being imported, as an answer's error; it names the environment that lacks something."""
    toolchain = use.own()
    name = "" if toolchain is None else use.name_of(toolchain)
    where = f" in the toolchain {name}" if name else ""
    remedy = f"run `ckptd toolchain check {name}`, which says whether it is whole" if name else "install ckptd's dependencies again"
    return {"code": FaultCode.ENGINE_MISSING, "cause": f"its engine can't be imported{where}: {error}", "remedy": remedy, "details": None}


def main(spec_file: str) -> int:
    """Serve commands until standard input ends."""
    job = json.loads(Path(spec_file).read_text())
    catalog.use(FormatEntry.model_validate(entry) for entry in job["formats"])
    limits = ChildLimits.model_validate(job["limits"])
    process.bind(limits)
    stream = process.take_standard_output()
    process.set_environment(limits, job["temporary"])
    commands: Commands | None = None
    broken: dict[str, Any] | None = None
    try:
        commands = Commands(job["spec"])
    except Exception as error:
        traceback.print_exc()
        broken = {"error": _missing(error)}
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
