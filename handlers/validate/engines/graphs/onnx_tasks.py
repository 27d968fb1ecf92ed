"""The engines of ONNX folders that hold no language model: encoder-decoders and encoders. onnxruntime, tokenizers and numpy alone.

Used inside workers. Names are those of `handlers.graphs.graphset`'s roles. An
encoder-decoder's decoder is run in each way that its graphs allow; both ways feed back every present.* that a graph gives, as programs
that don't know better do, and the cross-attention cache must keep its shape (rows, heads, source tokens, size) at every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from onnxruntime import OrtValue

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.validate.engines.generation_rules import read_rules
from handlers.validate.engines.graphs.onnx_folder import AGAIN, OPERATION, LoadedGraph, OnnxFolder, floats, present
from handlers.validate.engines.registry import EngineSpec

SENTENCE = "sentence_embedding"
"""Output with one vector a text; a graph without it gives vectors of tokens, which the driver makes one of."""
TWO_GRAPHS = "decoder_with_past"
MERGED = "decoder_merged"
WHOLE = "decoder"
"""Ways of decoding, each named after the graph that takes the later steps; the last one has no cache."""


@dataclass(frozen=True)
class _State:
    """A source's encoding (B, S, H), its mask (B, S), and what the decoder has seen."""

    memory: OrtValue
    mask: np.ndarray
    past: dict[str, OrtValue] = field(default_factory=dict)
    """Input → value of the next step."""
    tokens: np.ndarray | None = None
    """All target tokens so far (B, T)."""


class OnnxSeq2Seq(OnnxFolder):
    """An encoder and a decoder: two graphs, one merged graph, or both."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self.rules = read_rules(self._generation, self._config)
        self.end_tokens = self.rules.ends
        self._encoder = self._graph("encoder", spec.threads)
        self._encoder.check_names("an encoder", ["input_ids"], ["last_hidden_state"], ["attention_mask"])
        self._decoders = {
            role: self._opened(self._files[role], spec.threads) for role in (WHOLE, TWO_GRAPHS, MERGED) if role in self._files
        }
        optional = ["encoder_attention_mask", "encoder_hidden_states", "use_cache_branch"]
        for graph in self._decoders.values():
            outputs = ["logits", *(present(name) for name in graph.past if ".decoder." in name)]
            graph.check_names("a decoder", ["input_ids"], outputs, optional)
        self.ways = self._ways()
        for first, later in ((WHOLE, TWO_GRAPHS), (MERGED, MERGED)):
            if later in self.ways:
                self._decoders[first].check_names(
                    "a decoder's first step", ["input_ids"], map(present, self._decoders[later].past), optional
                )
        self.vocabulary: int | None = self._decoders[self.ways[0]].width("logits")

    def _ways(self) -> tuple[str, ...]:
        ways = [TWO_GRAPHS] if WHOLE in self._decoders and TWO_GRAPHS in self._decoders else []
        ways += [MERGED] if MERGED in self._decoders else []
        if WHOLE in self._decoders and not any(name.startswith("present.") for name in self._decoders[WHOLE].outputs):
            ways.append(WHOLE)
        if not ways:
            cause = f"its decoders ({', '.join(sorted(self._decoders)) or 'none'}) are not enough to decode with"
            raise Permanent(FaultCode.GRAPH_UNREADABLE, OPERATION, cause, AGAIN, path=self._folder)
        return tuple(ways)

    def start(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> _State:
        arrays = {"input_ids": input_ids, "attention_mask": attention_mask}
        feeds = {name: self._encoder.value(name, array) for name, array in arrays.items() if name in self._encoder.inputs}
        return _State(self._encoder.run(["last_hidden_state"], feeds)["last_hidden_state"], attention_mask)

    def step(self, tokens: np.ndarray, state: _State, way: str) -> tuple[np.ndarray, _State]:
        """See `Seq2SeqEngine.step`. Permanent where a cross-attention cache is lost."""
        first = state.tokens is None
        seen = tokens if state.tokens is None else np.concatenate([state.tokens, tokens], axis=1)
        if way == WHOLE:
            outputs = self._run(self._decoders[WHOLE], seen, state, branch=False)
            return floats(outputs["logits"])[:, -tokens.shape[1] :], _State(state.memory, state.mask, {}, seen)
        later = self._decoders[way]
        graph = self._decoders[WHOLE] if first and way == TWO_GRAPHS else later
        outputs = self._run(graph, tokens, state, branch=not first)
        past = {name: later.passed(name, outputs[present(name)]) if present(name) in outputs else state.past[name] for name in later.past}
        self._check_cross(graph, outputs, state.mask)
        return floats(outputs["logits"]), _State(state.memory, state.mask, past, seen)

    def _run(self, graph: LoadedGraph, tokens: np.ndarray, state: _State, *, branch: bool) -> dict[str, OrtValue]:
        feeds = dict(state.past) if state.past else graph.empty_past(len(tokens))
        feeds = {name: value for name, value in feeds.items() if name in graph.inputs}
        feeds["input_ids"] = graph.value("input_ids", tokens)
        if "encoder_attention_mask" in graph.inputs:
            feeds["encoder_attention_mask"] = graph.value("encoder_attention_mask", state.mask)
        if "encoder_hidden_states" in graph.inputs:
            feeds["encoder_hidden_states"] = graph.passed("encoder_hidden_states", state.memory)
        if "use_cache_branch" in graph.inputs:
            feeds["use_cache_branch"] = graph.value("use_cache_branch", np.array([branch]))
        return graph.run(["logits", *(name for name in graph.outputs if name.startswith("present."))], feeds)

    def _check_cross(self, graph: LoadedGraph, outputs: dict[str, OrtValue], mask: np.ndarray) -> None:
        for name, value in outputs.items():
            if ".encoder." not in name:
                continue
            shape = tuple(value.shape())
            if (shape[0], shape[2]) != mask.shape or 0 in shape:
                cause = (
                    f"its output {name} has the shape {shape} where {mask.shape[0]} rows of {mask.shape[1]} source tokens belong: the"
                    " cross-attention cache is lost"
                )
                raise Permanent(FaultCode.GRAPH_UNEXPECTED, OPERATION, cause, AGAIN, path=graph.path)


class OnnxEncoder(OnnxFolder):
    """One graph, one pass."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._model = self._graph("model", spec.threads)
        answers = {"question-answering": ["start_logits", "end_logits"], "feature-extraction": ["last_hidden_state"]}
        self._outputs = answers.get(spec.task, ["logits"])
        if spec.sentence and SENTENCE in self._model.outputs:
            self._outputs = [SENTENCE]
        self._model.check_names("an encoder", ["input_ids"], self._outputs, ["attention_mask", "token_type_ids"])
        self.vocabulary: int | None = self._model.width(self._outputs[0])

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `EncoderEngine.run`; inputs that the graph lacks are not fed."""
        arrays = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        feeds = {name: self._model.value(name, array) for name, array in arrays.items() if name in self._model.inputs}
        outputs = self._model.run(self._outputs, feeds)
        return tuple(floats(outputs[name]) for name in self._outputs)
