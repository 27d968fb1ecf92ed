"""The engines of folders with programs of fixed sizes: everything but the runtime, which a format brings as a session.

Used inside workers, in the Python of a format's toolchain. A format derives from these classes and says how a file is opened. Rows are
run one by one, since such programs have one; padding is left out, and prompts are cut into the pieces that a session takes (`feeding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.static_programs import description
from handlers.static_programs.published.feeding import Feeds, Text, crossed, one_pass
from handlers.validate.engines.generation_rules import end_tokens, read_rules
from handlers.validate.engines.graphs.exported_folder import ExportedFolder
from handlers.validate.engines.registry import EngineSpec

OPERATION = "run the program"
AGAIN = "export the variant again"
WAY = "cache"
"""Name of the one way in which a decoder with a fixed cache can be run."""
_ANSWERS = {"question-answering": ["start_logits", "end_logits"], "feature-extraction": ["last_hidden_state"]}
_SENTENCE = "sentence_embedding"


class StaticFolder(ExportedFolder):
    """A folder of programs."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._described = description.read(self._folder)
        self.length = self._described.length
        """Tokens that there is room for."""
        self.context_length = min(self.length, self.context_length or self.length)

    def _opened(self, path: Path, role: str, threads: int) -> Any:
        """The session of a program, see `feeding`."""
        raise NotImplementedError

    def _session(self, role: str, threads: int) -> Any:
        """The session of a role; Permanent where the folder has none."""
        graph = self._described.known.graph(role)
        if graph is None or not (self._folder / graph.file).exists():
            cause = (
                f"the folder holds no program for the role {role}"
                if graph is None
                else f"graphs.json names {graph.file}, which is not there"
            )
            raise Permanent(FaultCode.GRAPH_UNREADABLE, OPERATION, cause, AGAIN, path=self._folder)
        return self._opened(self._folder / graph.file, role, threads)

    def _width(self, role: str, output: str) -> int | None:
        """Size of an output's last axis."""
        port = next((port for port in self._described.graph(role).outputs if port.name == output), None)
        width = None if port is None else port.shape[-1]
        return width if isinstance(width, int) else None


class StaticCausal(StaticFolder):
    """A language model."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._model = self._session("model", spec.threads)
        self.vocabulary: int | None = self._width("model", "logits")
        self.end_tokens: tuple[int, ...] = end_tokens(self._generation, self._config)

    def step(
        self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: list[Text] | None
    ) -> tuple[np.ndarray, list[Text]]:
        """See `Engine.step`; tokens of padding are left out, and their logits are zeros. Raises TooLongError."""
        texts = [Text(self._model, self.length) for _ in input_ids] if cache is None else cache
        real = attention_mask[:, attention_mask.shape[1] - input_ids.shape[1] :].astype(bool)
        return _rows(texts, input_ids, real), texts


@dataclass(frozen=True)
class _Translation:
    """Rows of sources, each as what the decoder is fed with; and the rows of targets, once there are any."""

    sources: tuple[Feeds, ...]
    texts: tuple[Text, ...] = ()


class StaticSeq2Seq(StaticFolder):
    """An encoder-decoder: the encoder gives the keys and values that the decoder attends to."""

    ways = (WAY,)

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self.rules = read_rules(self._generation, self._config)
        self.end_tokens = self.rules.ends
        self._encoder, self._decoder = self._session("encoder", spec.threads), self._session("decoder", spec.threads)
        self.vocabulary: int | None = self._width("decoder", "logits")

    def start(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> _Translation:
        """See `Seq2SeqEngine.start`. Raises TooLongError."""
        sources = []
        for ids, mask in zip(input_ids, attention_mask.astype(bool), strict=True):
            kept = ids[mask][None]
            sources.append(crossed(self._encoder, {"input_ids": kept, "attention_mask": np.ones_like(kept)}, self.pad))
        return _Translation(tuple(sources))

    def step(self, tokens: np.ndarray, state: _Translation, way: str) -> tuple[np.ndarray, _Translation]:
        """See `Seq2SeqEngine.step`. Raises TooLongError."""
        texts = state.texts or tuple(Text(self._decoder, self.length, source) for source in state.sources)
        return _rows(texts, tokens, np.ones_like(tokens, bool)), _Translation(state.sources, texts)


class StaticEncoder(StaticFolder):
    """An encoder, with or without a head."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._model = self._session("model", spec.threads)
        self._axes = self._described.axes("model")
        self._inputs = [port.name for port in self._described.graph("model").inputs]
        outputs = {port.name for port in self._described.graph("model").outputs}
        self._outputs = [_SENTENCE] if spec.sentence and _SENTENCE in outputs else _ANSWERS.get(spec.task, ["logits"])
        self.vocabulary: int | None = self._width("model", self._outputs[0])

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `EncoderEngine.run`. Raises TooLongError."""
        arrays = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        rows = [
            one_pass(self._model, {name: arrays[name][row : row + 1] for name in self._inputs}, self.pad, self._axes)
            for row in range(len(input_ids))
        ]
        return tuple(np.concatenate([row[name] for row in rows]).astype(np.float32, copy=False) for name in self._outputs)


def _rows(texts: Sequence[Text], tokens: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Logits (rows, tokens, vocabulary) in float32 of what each text is fed with."""
    answers: list[np.ndarray | None] = [
        text.feed(row[kept].tolist()) if kept.any() else None for text, row, kept in zip(texts, tokens, real, strict=True)
    ]
    width = next(rows.shape[1] for rows in answers if rows is not None)
    logits = np.zeros((*tokens.shape, width), np.float32)
    for row, rows in enumerate(answers):
        if rows is not None:
            logits[row, real[row]] = rows
    return logits
