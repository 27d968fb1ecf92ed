"""The engines of the formats `web…`: a folder loaded by transformers.js in a page of a browser, whose sessions are asked for each step.

Run inside the toolchain `web`. The page chooses the files by the folder's own config.json, as every web page does, and its tokenizer is
transformers.js's. Before anything is measured, the library's own decoding must write what the sessions give step by step.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.models.tasks import BY_NAME
from handlers.toolchains import use
from handlers.validate.engines.graphs.onnx_causal import OnnxEngine
from handlers.validate.engines.graphs.onnx_folder import LoadedGraph, OnnxFolder
from handlers.validate.engines.graphs.onnx_tasks import OnnxEncoder, OnnxSeq2Seq
from handlers.validate.engines.graphs.other_runtimes import OtherGraph, Value
from handlers.validate.engines.registry import EngineSpec
from handlers.web.browser.chromium import OPERATION, BrowserError
from handlers.web.browser.page import DTYPES, Held, Page

SESSIONS = {"model": "model", "encoder": "model", "decoder_merged": "decoder_model_merged"}
"""Role of a graph → the session that transformers.js runs it by."""
TRIAL = (7, 11, 5)
TRIAL_TOKENS = 4
PLAIN: Json = {
    "num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0, "eos_token_id": None,
    "bad_words_ids": None, "suppress_tokens": None, "begin_suppress_tokens": None, "forced_bos_token_id": None, "forced_eos_token_id": None,
}  # fmt: skip
"""What of a generation_config the most likely tokens leave out."""
AGAIN = "export the variant again"
_NAMES = {"float32": "float", "float64": "double"}


class _Port:
    """One input or output, in the manner of onnxruntime's sessions."""

    def __init__(self, description: Json) -> None:
        self.name, self.type = str(description["name"]), f"tensor({_NAMES.get(description['type'], description['type'])})"
        self.shape = [size if isinstance(size, int) and size >= 0 else str(size) for size in description["shape"]]


class _Session:
    """One session of the page."""

    def __init__(self, page: Page, name: str, description: Json) -> None:
        self.page, self.name = page, name
        self._inputs, self._outputs = [list(map(_Port, description[side])) for side in ("inputs", "outputs")]

    def get_inputs(self) -> list[_Port]:
        """In the graph's order."""
        return self._inputs

    def get_outputs(self) -> list[_Port]:
        """In the graph's order."""
        return self._outputs


class PageGraph(OtherGraph):
    """One graph; the cache stays in the page between steps."""

    def __init__(self, path: Path, session: _Session) -> None:
        self._given = session
        super().__init__(path, 1)

    def _session(self, path: Path, threads: int) -> _Session:
        return self._given

    def run(self, outputs: list[str], feeds: dict[str, Any]) -> dict[str, Any]:
        sent = {name: value.array if isinstance(value, Value) else value for name, value in feeds.items() if name in self.inputs}
        kept = [name for name in outputs if name.startswith("present.") or name == "last_hidden_state"]
        return dict(self._given.page.run(self._given.name, sent, outputs, kept))


def packages_folder() -> Path:
    """The node_modules of the toolchain that this runs in."""
    return (use.own() or Path(sys.prefix)) / "node_modules"


class _Folder(OnnxFolder):
    """What all three share: the page, and texts by the tokenizer of transformers.js."""

    foreign_tokenizer = True

    def __init__(self, spec: EngineSpec) -> None:
        packages = packages_folder()
        if not packages.is_dir():
            remedy = "run `ckptd toolchain install web --again`"
            raise Permanent(FaultCode.ENGINE_MISSING, OPERATION, "the toolchain has no packages of npm", remedy, path=packages)
        self.page = Page(Path(spec.folder), packages)
        weakref.finalize(self, self.page.close)
        opened = self.page.ask("open", kind=BY_NAME[spec.task].auto)
        self._sessions: dict[str, Json] = opened["sessions"]
        self.versions = {"transformers.js": str(opened["library"]), "browser": self.page.browser.version}
        super().__init__(spec)

    def _opened(self, path: Path, threads: int) -> LoadedGraph:
        role = next(role for role, file in self._files.items() if file == path)
        name = SESSIONS[role]
        return PageGraph(path, _Session(self.page, name, self._sessions[name]))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.page.ask("encode", texts=[text])[0]
        return ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        ids, types = self.page.ask("pair", first=first, second=second)
        return list(ids), list(types)

    def text(self, ids: list[int]) -> str:
        return str(self.page.ask("decode", ids=list(ids)))

    def peak_rss(self) -> int:
        """Largest resident set of the page's process, in bytes."""
        return self.page.peak_bytes()

    def _check_decoding(self, ours: Sequence[int]) -> None:
        """Permanent unless the library decodes `ours` after the trial's tokens by itself."""
        try:
            theirs = self.page.ask("generate", ids=list(TRIAL), tokens=len(ours), settings=PLAIN)[-len(ours) :]
        except BrowserError as error:
            cause = f"transformers.js can't decode with it: {error}"
            raise Permanent(FaultCode.ENGINE, OPERATION, cause, AGAIN, path=self._folder) from error
        if theirs != list(ours):
            cause = f"transformers.js decodes {theirs} where its own sessions give {list(ours)}: its cache or its positions are not read"
            raise Permanent(FaultCode.ENGINE, OPERATION, cause, AGAIN, path=self._folder)


class WebEngine(_Folder, OnnxEngine):
    """A language model."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        tokens, written, cache = list(TRIAL), list[int](), None
        while len(written) < TRIAL_TOKENS:
            seen = len(TRIAL) + len(written)
            ids = np.array([tokens], np.int64)
            places = np.arange(seen - len(tokens), seen, dtype=np.int64)[None]
            logits, cache = self.step(ids, np.ones((1, seen), np.int64), places, cache)
            tokens = [int(logits[0, -1].argmax())]
            written += tokens
        self._check_decoding(written)


class WebSeq2Seq(_Folder, OnnxSeq2Seq):
    """An encoder-decoder."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        ids = np.array([TRIAL], np.int64)
        state: Any = self.start(ids, np.ones_like(ids))
        token, written = self.rules.start, list[int]()
        while len(written) < TRIAL_TOKENS:
            logits, state = self.step(np.array([[token]], np.int64), state, self.ways[0])
            token = int(logits[0, -1].argmax())
            written.append(token)
        self._check_decoding(written)


class WebEncoder(_Folder, OnnxEncoder):
    """An encoder, with or without a head."""


__all__ = ["DTYPES", "Held", "WebEncoder", "WebEngine", "WebSeq2Seq"]
