"""What the graphs of a folder are fed with: the calls of one text, in the order in which the graphs work together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.folder.playback import STEPS, Player
from handlers.graphs.graphset import Graph, GraphSet, Port

START, END = 9, 1
TEXT = [*range(20, 40), END]


def ports(*names: str) -> tuple[Port, ...]:
    shape = {"logits": ("batch", "sequence", 50), "encoder_hidden_states": ("batch", "sequence", 4)}
    return tuple(
        Port(name=one, dtype="int64" if "ids" in one or "mask" in one else "float32", shape=shape.get(one, ("batch", 1, "past", 2)))
        for one in names
    )


ENCODER = Graph(role="encoder", file="encoder_model.onnx", inputs=ports("input_ids", "attention_mask"), outputs=ports("last_hidden_state"))
DECODER = Graph(
    role="decoder", file="decoder_model.onnx", inputs=ports("input_ids", "encoder_hidden_states", "encoder_attention_mask"),
    outputs=ports("logits", "present.0.decoder.key"),
)  # fmt: skip
GOES_ON = Graph(
    role="decoder_with_past", file="decoder_with_past_model.onnx",
    inputs=ports("input_ids", "encoder_attention_mask", "past_key_values.0.decoder.key"),
    outputs=ports("logits", "present.0.decoder.key"),
)  # fmt: skip


class Session:
    """What runs a graph here: a cache as long as what was read, and logits of nothing."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def get_inputs(self) -> list[Any]:
        return [type("Value", (), {"name": port.name, "type": "tensor(float)" if port.dtype == "float32" else "tensor(int64)"})
                for port in self._graph.inputs]  # fmt: skip

    def get_outputs(self) -> list[Any]:
        return [type("Value", (), {"name": port.name}) for port in self._graph.outputs]

    def run(self, _: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        past = feeds["past_key_values.0.decoder.key"].shape[2] if "past_key_values.0.decoder.key" in feeds else 0
        length = feeds["input_ids"].shape[1]
        made = {"logits": (1, length, 50), "last_hidden_state": (1, length, 4), "present.0.decoder.key": (1, 1, past + length, 2)}
        return [np.zeros(made[port.name], np.float32) for port in self._graph.outputs]


def played(folder: Path, *graphs: Graph, text: list[int] = TEXT) -> list[tuple[str, list[int], int]]:
    """Role, token ids and length of the past of each call."""
    found = GraphSet(task="text2text-generation", family="t5", dtype="float32", opset=18, graphs=graphs)
    player = Player(folder, found, 1, {graph.role: Session(graph) for graph in graphs})
    return [
        (call.role, call.feeds["input_ids"][0].tolist(), call.feeds.get("past_key_values.0.decoder.key", np.zeros((1, 1, 0))).shape[2])
        for call in player.play(text)
    ]


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_a_decoder_beside_an_encoder_gets_the_text_as_it_would_write_it(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text(json.dumps({"decoder_start_token_id": START}))
    encoder, decoder, *steps = played(tmp_path, ENCODER, DECODER, GOES_ON)
    written = [START, *TEXT[:-1]]
    assert encoder == ("encoder", TEXT, 0)
    assert decoder == ("decoder", written[:-STEPS], 0)
    assert steps == [("decoder_with_past", [token], len(written) - STEPS + place) for place, token in enumerate(written[-STEPS:])]


def test_half_of_a_short_text_goes_on_top_of_the_cache(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"decoder_start_token_id": START}))
    _, decoder, *steps = played(tmp_path, ENCODER, DECODER, GOES_ON, text=[20, 21, END])
    assert (decoder, steps) == (("decoder", [START, 20], 0), [("decoder_with_past", [21], 2)])


def test_a_decoder_without_a_cache_gets_all_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"decoder_start_token_id": START}))
    assert played(tmp_path, ENCODER, DECODER)[1:] == [("decoder", [START, *TEXT[:-1]], 0)]
    (tmp_path / "config.json").unlink()
    assert played(tmp_path, ENCODER, DECODER)[1:] == [("decoder", TEXT, 0)], "its start is not known"
