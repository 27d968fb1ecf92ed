"""The examples of a bundle: a few texts and batches in the steps of a deployment, and what the graphs say of them computed otherwise.

Called by the stages of the bundle. What is expected comes from each text alone, in one pass, without padding and without a cache, so that
`verify.py` finds a cache that is fed wrongly as well as a weight that is damaged. Only some rows of the outputs are kept, since those of a
language model are as wide as its vocabulary. All sizes lie inside of the profiles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from daemon.contract.faults.errors import Permanent
from handlers.folder import playback
from handlers.graphs.graphset import GraphSet
from handlers.graphs.signature import SEQUENCE
from handlers.models.files import read_json, setting
from handlers.models.tasks import BY_NAME
from handlers.tensorrt.box import verify
from handlers.tensorrt.options import TensorRtOptions
from handlers.texts.built_in import BUILT_IN

LIMITS = {"fp32": 0.01, "tf32": 0.1, "fp16": 0.3, "bf16": 1.0}
"""Precision of engines → largest difference that `verify.py` allows, in standard deviations. tf32 and fp16 have 10 bits of mantissa."""
ON_CPU = {"float32": 1e-3, "float16": 0.05}
"""The same for onnxruntime, by the type of the graphs."""
TOKENS = 20
"""Of the longest text."""
ROWS = 8
"""Rows of an output that are kept of one run, at most."""
TARGET = 6
"""Tokens that an encoder-decoder's decoder reads."""
_OPERATION = "make the examples of a bundle"


@dataclass(frozen=True)
class Run:
    """Graphs that are run one after another with the same inputs."""

    roles: tuple[str, ...]
    feeds: dict[str, np.ndarray]
    wants: dict[str, tuple[np.ndarray | None, np.ndarray]]
    """Output → the (row, token) places that are compared, None for all of it, and what belongs there."""


@dataclass
class Case:
    """One example."""

    name: str
    runs: list[Run] = field(default_factory=list)


@dataclass(frozen=True)
class Texts:
    """Rows of token ids."""

    rows: list[list[int]]
    why_random: str = ""
    """Why they are no texts; "" where they are."""


def write(folder: Path, known: GraphSet, options: TensorRtOptions, longest: int, threads: int) -> Texts:
    """Write `verify/` for the graphs in `folder`, whose graphs.json is there. `longest`: tokens that its profiles take."""
    texts = _texts(folder, min(TOKENS, longest))
    maker = _Maker(folder, known, options, threads)
    kind = BY_NAME[known.task].kind
    makers = {"causal": maker.causal, "seq2seq": maker.seq2seq, "encoder": maker.encoder}
    made = makers[kind](texts.rows)
    target = folder / verify.CASES
    target.mkdir()
    entries = []
    for number, case in enumerate(made, 1):
        name, arrays = f"example-{number}.npz", dict[str, np.ndarray]()
        for place, run in enumerate(case.runs):
            arrays |= {f"{place}:feed:{key}": value for key, value in run.feeds.items()}
            arrays |= {f"{place}:want:{key}": value for key, (_, value) in run.wants.items()}
            arrays |= {f"{place}:at:{key}": places for key, (places, _) in run.wants.items() if places is not None}
        np.savez_compressed(target / name, allow_pickle=False, **arrays)
        entries.append({"name": case.name, "file": name, "runs": [{"graphs": list(run.roles)} for run in case.runs]})
    limits = {**LIMITS, "onnxruntime": ON_CPU[known.dtype]}
    content = {"version": 1, "unit": "standard deviations of what is expected", "limits": limits, "cases": entries}
    (target / verify.FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return texts


def _texts(folder: Path, longest: int) -> Texts:
    try:
        return Texts(playback.tokenize(folder, BUILT_IN[:3], longest=longest).rows)
    except Permanent as error:  # no tokenizer that runs without transformers, or another model's
        config = read_json(folder / "config.json", _OPERATION)
        size = setting(config, "vocab_size")
        random = np.random.default_rng(0)
        rows = [random.integers(0, int(size or 100), length).tolist() for length in (longest, longest - 2, longest - 3)]
        return Texts(rows, error.fault.cause)


class _Maker:
    def __init__(self, folder: Path, known: GraphSet, options: TensorRtOptions, threads: int) -> None:
        self._known, self._batch = known, options.max_batch > 1
        self._start = playback._start_token(folder) or 0
        self._runner = verify.Runner(folder, "onnxruntime", threads)
        self._roles = tuple(graph.role for graph in known.graphs)
        self._cached = any(port.name.startswith("past_key_values.") for graph in known.graphs for port in graph.inputs)
        ports = (port for port in known.graphs[0].inputs if port.name == "input_ids")
        width = next((port.shape[1] for port in ports), SEQUENCE)
        self._width = width if isinstance(width, int) else None

    def causal(self, texts: list[list[int]]) -> list[Case]:
        """Prompts, cached steps, a chunk onto a cache, one token into an empty cache, and a batch that is padded on the left."""
        first, second = texts[0], texts[-1]
        if not self._cached:
            decoded = [self._decoded(f"text {number}", [row], (len(row),)) for number, row in enumerate(texts, 1)]
            both = [first, second[: max(2, len(first) // 2)]]
            batch = self._batch and self._width is None
            return [*decoded, *([self._decoded("a batch, padded on the left", both, (max(map(len, both)),))] if batch else [])]
        made = [
            self._decoded("a text, then single tokens", [first], (len(first) - 3, 1, 1, 1)),
            self._decoded("one token into an empty cache", [second[:3]], (1, 1, 1)),
            self._decoded("a text, then three tokens at once", [second], (len(second) - 4, 3, 1)),
        ] if min(len(first), len(second)) > 4 else [self._decoded("single tokens", [first], (1,) * len(first))]  # fmt: skip
        if self._batch:
            rows = [first, second[: max(2, len(first) // 2)]]
            total = max(map(len, rows))
            made.append(self._decoded("a batch, padded on the left", rows, (total - 1, 1)))
        return made

    def _decoded(self, name: str, rows: list[list[int]], steps: Sequence[int]) -> Case:
        alone = [self._alone(row)["logits"][0] for row in rows]
        total = max(map(len, rows))
        ids, mask = (np.zeros((len(rows), total), np.int64) for _ in range(2))
        for place, row in enumerate(rows):
            ids[place, total - len(row) :], mask[place, total - len(row) :] = row, 1
        positions, case, start = np.maximum(mask.cumsum(1) - 1, 0), Case(name), 0
        for step in steps:
            end = start + step
            feeds = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end], "position_ids": positions[:, start:end]}
            places = _some(np.argwhere(mask[:, start:end]))
            wanted = np.stack([alone[row][positions[row, start + token]] for row, token in places])
            case.runs.append(Run(self._roles, self._filled(feeds), {"logits": (places, wanted)}))
            start = end
        return case

    def _alone(self, row: Sequence[int], **more: np.ndarray) -> dict[str, np.ndarray]:
        """What all graphs say of one text, in one pass."""
        ids = np.array([row], np.int64)
        feeds = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(len(row))[None],
            "token_type_ids": ids * 0,
        }
        return self._runner.run(self._roles, self._filled(feeds), {})

    def _filled(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs that some graph takes; where a graph's window is fixed, filled up on the right."""
        names = {port.name for graph in self._known.graphs for port in graph.inputs}
        missing = 0 if self._width is None else self._width - feeds["input_ids"].shape[1]
        return {name: np.pad(array, ((0, 0), (0, missing))) for name, array in feeds.items() if name in names}

    def encoder(self, texts: list[list[int]]) -> list[Case]:
        """Texts, and a batch that is padded on the right."""
        alone = [self._read(f"text {number}", [row]) for number, row in enumerate(texts, 1)]
        return [*alone, *([self._read("a batch, padded on the right", texts)] if self._batch else [])]

    def _read(self, name: str, rows: list[list[int]]) -> Case:
        alone = [self._alone(row) for row in rows]
        ids, mask = _padded(rows[: self._most(rows)])
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}
        places, wants = _some(np.argwhere(mask)), dict[str, tuple[np.ndarray | None, np.ndarray]]()
        for port in self._known.graphs[-1].outputs:
            if len(port.shape) > 1 and (port.shape[1] == SEQUENCE or (self._width is not None and port.shape[1] == self._width)):
                wants[port.name] = places, np.stack([alone[row][port.name][0, token] for row, token in places])
            else:
                wants[port.name] = None, np.concatenate([outputs[port.name] for outputs in alone[: len(ids)]])
        return Case(name, [Run(self._roles, self._filled(feeds), wants)])

    def _most(self, rows: list[list[int]]) -> int:
        return min(len(rows), 2)

    def seq2seq(self, texts: list[list[int]]) -> list[Case]:
        """Sources with the first tokens of a target, then single tokens; alone and in a batch that is padded on the right."""
        alone = [self._written(f"text {number}", [row]) for number, row in enumerate(texts[:2], 1)]
        return [
            *alone,
            *([self._written("a batch, padded on the right", [texts[0], texts[-1][: len(texts[0]) // 2 + 1]])] if self._batch else []),
        ]

    def _written(self, name: str, rows: list[list[int]]) -> Case:
        target = self._target(rows[0])
        memories, alone = [], []
        for row in rows:
            ids, pool = np.array([row], np.int64), dict[str, np.ndarray]()
            memories.append(self._runner.run(("encoder",), {"input_ids": ids, "attention_mask": np.ones_like(ids)}, pool))
            feeds = {"input_ids": np.array([target]), "encoder_attention_mask": np.ones_like(ids)}
            alone.append(self._runner.run(("decoder",), feeds, pool)["logits"][0])
        ids, mask = _padded(rows)
        places = _some(np.argwhere(mask))
        hidden = np.stack([memories[row]["last_hidden_state"][0, token] for row, token in places])
        case = Case(name, [Run(("encoder",), {"input_ids": ids, "attention_mask": mask}, {"last_hidden_state": (places, hidden)})])
        goes_on = "decoder_with_past" in self._roles
        steps = (len(target) - 2, 1, 1) if goes_on else (len(target),)
        start = 0
        for number, step in enumerate(steps):
            role = "decoder_with_past" if number else "decoder"
            tokens = np.tile(np.array(target[start : start + step], np.int64), (len(rows), 1))
            places = np.argwhere(np.ones_like(tokens))
            wanted = np.stack([alone[row][start + token] for row, token in places])
            feeds = {"input_ids": tokens, "encoder_attention_mask": mask}
            case.runs.append(Run((role,), feeds, {"logits": (places, wanted)}))
            start += step
        return case

    def _target(self, row: Sequence[int]) -> list[int]:
        decoder = next(graph for graph in self._known.graphs if graph.role == "decoder")
        width = next(port.shape[-1] for port in decoder.outputs if port.name == "logits")
        return [token % width if isinstance(width, int) else token for token in (self._start, *row[: TARGET - 1])]


def _padded(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask, filled up on the right."""
    total = max(map(len, rows))
    ids, mask = (np.zeros((len(rows), total), np.int64) for _ in range(2))
    for place, row in enumerate(rows):
        ids[place, : len(row)], mask[place, : len(row)] = row, 1
    return ids, mask


def _some(places: np.ndarray) -> np.ndarray:
    """At most `ROWS` of the places, evenly spaced, the last one among them."""
    chosen: np.ndarray = places[np.unique(np.linspace(0, len(places) - 1, min(ROWS, len(places))).round().astype(int))]
    return chosen
