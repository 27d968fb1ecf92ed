"""Inputs for the graphs of an ONNX folder, made of texts: what the stages that must see a graph at work feed it.

Called where an accuracy level is chosen, ranges are calibrated, or a derived graph is compared with the one it was made of. Each
text goes through the folder's graphs in the order in which they work together: a pass without a past, then, where there is a
cache, further tokens on top of it. The decoder of an encoder-decoder gets the text as it would write it: from its start token on.
Free of torch and transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.folder import tokenizers
from handlers.folder.chain_signature import EMBEDDING, HIDDEN, NEXT
from handlers.graphs.graphset import Graph, GraphSet, Port
from handlers.graphs.sessions import MappedWeights, open_session
from handlers.models.files import FOREIGN_TOKENIZER, read_json, setting

OPERATION = "feed texts to the ONNX graphs"
MAX_TOKENS = 128
"""Tokens of a text that are used."""
STEPS = 8
"""Tokens that a graph which can only go on with a cache is given, at most: it sees no others, and one would be the end of the text."""
_ORDER = ("encoder", "model", "decoder", "decoder_with_past", "decoder_merged")


class UnknownInputError(Exception):
    """A graph has an input for which there is no rule here."""


@dataclass(frozen=True)
class GraphRun:
    """One run of one graph: its role, inputs and outputs by name."""

    role: str
    feeds: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


@dataclass
class Tokens:
    """Texts as token ids, and how they are distributed."""

    rows: list[list[int]] = field(default_factory=list)
    vocabulary: int = 0

    @property
    def figures(self) -> dict[str, object]:
        """Number of texts and tokens, their lengths, and the share of the vocabulary that occurs."""
        lengths = [len(row) for row in self.rows]
        different = len({token for row in self.rows for token in row})
        return {
            "texts": len(self.rows),
            "tokens": sum(lengths),
            "shortest": min(lengths, default=0),
            "median": int(np.median(lengths)) if lengths else 0,
            "longest": max(lengths, default=0),
            "different_tokens": different,
            "vocabulary_share": round(different / self.vocabulary, 4) if self.vocabulary else 0.0,
        }


def tokenize(folder: Path, texts: Sequence[str], *, longest: int = MAX_TOKENS) -> Tokens:
    """Token ids of texts by the folder's own tokenizer, cut to `longest` and to what the model can address.

    Permanent where there is no tokenizer that runs without transformers, where it is another model's, or where no text has two tokens.
    """
    tokenizer = tokenizers.load(folder, OPERATION)
    config = read_json(folder / "config.json", OPERATION) if (folder / "config.json").is_file() else {}
    positions = setting(config, "max_position_embeddings") or setting(config, "n_positions") or longest
    limit = max(2, min(longest, int(positions)))
    rows = [tokenizer.encode(text)[:limit] for text in texts]
    rows = [row for row in rows if len(row) > 1]
    if not rows:
        raise Permanent(
            FaultCode.TEXTS_TOO_SHORT, OPERATION, "no text has two tokens", "give longer lines in validate.prompts", path=folder
        )
    vocabulary = int(setting(config, "vocab_size") or tokenizer.size)
    largest = max(max(row) for row in rows)
    if largest >= vocabulary:
        cause = f"it gives the token {largest}, but the model has only {vocabulary} tokens"
        raise Permanent(FaultCode.TOKENIZER_MISMATCH, OPERATION, cause, FOREIGN_TOKENIZER, path=folder)
    return Tokens(rows, vocabulary)


class Player:
    """Plays texts through the fp32 graphs of a folder and keeps what passes between them."""

    def __init__(self, folder: Path, graphs: GraphSet, threads: int, sessions: Mapping[str, Any] | None = None) -> None:
        """`sessions`: role → what runs it in the place of a session of the graph itself."""
        self._chain = graphs.graph(EMBEDDING) is not None
        known = [graph for role in _ORDER for graph in graphs.graphs if graph.role == role] if not self._chain else list(graphs.graphs)
        if len(known) != len(graphs.graphs):
            strange = sorted({graph.role for graph in graphs.graphs} - set(_ORDER))
            raise UnknownInputError(f"graphs with the roles {strange} are not known")
        self._graphs = known
        self._start = _start_token(folder)
        weights = MappedWeights(releasing=True)
        self._sessions = sessions or {graph.role: open_session(folder / graph.file, threads, weights) for graph in known}

    def play(self, ids: Sequence[int]) -> Iterator[GraphRun]:
        """Every graph's calls for one text. All but its last tokens go first, the last ones on top of the cache."""
        pool: dict[str, np.ndarray] = {}
        if self._chain:
            for tokens, past in ((ids[:-1], 0), (ids[-1:], len(ids) - 1)):
                for graph in self._graphs:
                    yield self._call(graph, list(tokens), pool, past)
            return
        goes_on = any(graph.role == "decoder_with_past" for graph in self._graphs)
        for graph in self._graphs:
            cached = any(port.name.startswith("past_key_values.") for port in graph.inputs)
            own = _known(graph, self._written(graph, ids))
            steps = min(STEPS, len(own) // 2)
            if not cached:
                yield self._call(graph, own[:-steps] if goes_on and graph.role == "decoder" else own, pool, 0)
            elif graph.role == "decoder_with_past":
                for place in range(len(own) - steps, len(own)):
                    yield self._call(graph, own[place : place + 1], pool, place)
            else:
                yield self._call(graph, own[:-1], pool, 0)
                yield self._call(graph, own[-1:], pool, len(ids) - 1)

    def _written(self, graph: Graph, ids: Sequence[int]) -> list[int]:
        """Return a text's ids as a graph reads them: a decoder beside an encoder reads its start token first, and the end never."""
        return list(ids) if self._start is None or not graph.role.startswith("decoder") else [self._start, *ids[:-1]]

    def _call(self, graph: Graph, ids: list[int], pool: dict[str, np.ndarray], past: int) -> GraphRun:
        feeds = {port.name: _filled(port, ids, past, pool) for port in graph.inputs}
        session = self._sessions[graph.role]
        outputs = run(session, feeds)
        for name, array in outputs.items():
            pool[_next_input(graph.role, name)] = array
        if graph.role == "encoder":
            pool["encoder_attention_mask"] = np.ones((1, len(ids)), np.int64)
        return GraphRun(graph.role, feeds, outputs)


def _start_token(folder: Path) -> int | None:
    """Return what an encoder-decoder begins to write with; None where the folder does not say it."""
    paths = [path for name in ("generation_config.json", "config.json") if (path := folder / name).is_file()]
    tokens = (setting(read_json(path, OPERATION), "decoder_start_token_id") for path in paths)
    return next((token for token in tokens if isinstance(token, int)), None)


def run(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return all outputs by name; inputs are cast to the float type that the graph takes."""
    wanted: dict[str, type[np.floating[Any]]] = {"tensor(float16)": np.float16, "tensor(float)": np.float32}
    cast = {
        value.name: feeds[value.name].astype(wanted[value.type], copy=False) if value.type in wanted else feeds[value.name]
        for value in session.get_inputs()
    }
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, cast), strict=True))


def _known(graph: Graph, ids: Sequence[int]) -> list[int]:
    """A text's ids as a graph may read them: a decoder with a vocabulary of its own has an end to it that the source's goes beyond."""
    sizes = [port.shape[-1] for port in graph.outputs if port.name == "logits" and graph.role.startswith("decoder")]
    return [token % sizes[0] for token in ids] if sizes and isinstance(sizes[0], int) else list(ids)


def _next_input(role: str, output: str) -> str:
    """Return the input of a later call that an output becomes."""
    if role == "encoder" and output == "last_hidden_state":
        return "encoder_hidden_states"
    if output == NEXT:
        return HIDDEN
    return output.replace("present.", "past_key_values.", 1) if output.startswith("present.") else output


def _filled(port: Port, ids: list[int], past: int, pool: dict[str, np.ndarray]) -> np.ndarray:
    """Return the array of one input, after `past` tokens."""
    dtype = np.dtype(port.dtype)
    if port.name in ("input_ids", "decoder_input_ids"):
        return np.array([ids], dtype)
    if port.name in ("attention_mask", "decoder_attention_mask"):
        return np.ones((1, past + len(ids)), dtype)
    if port.name == "position_ids":
        return np.arange(past, past + len(ids), dtype=dtype)[None]
    if port.name == "token_type_ids":
        return np.zeros((1, len(ids)), dtype)
    if port.name == "use_cache_branch":
        return np.array([past > 0])
    if port.name.startswith("past_key_values.") and past == 0:
        return np.zeros([1, *(size if isinstance(size, int) else 0 for size in port.shape[1:])], dtype)
    if port.name in pool:
        return pool[port.name].astype(dtype, copy=False)
    raise UnknownInputError(f"it is not known which values the input {port.name} needs")
