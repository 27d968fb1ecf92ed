"""Opens the programs of this folder for `example.py`, which asks for them as for the graphs of onnxruntime.

Needs numpy, and what `session.py` needs. `feeding.py` cuts texts into the pieces that a program takes.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Feeds = Mapping[str, Any]


@dataclass(frozen=True)
class Port:
    """One input or output; the example looks at names and types alone."""

    name: str
    type: str = "tensor(int64)"
    shape: tuple[int, ...] = ()


class Folder:
    """The programs of a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = json.loads((path / "graphs.json").read_text(encoding="utf-8"))
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        self.length, self.pad = int(self.known["extra"]["context_length"]), int(config.get("pad_token_id") or 0)
        # Imports would leave compiled code in the folder, which is as its manifest says.
        self.feeding = runpy.run_path(str(path / "feeding.py"))
        self._session = runpy.run_path(str(path / "session.py"))["Session"]

    def graph(self, role: str) -> dict[str, Any]:
        """What graphs.json says of a role."""
        graph: dict[str, Any] = next(entry for entry in self.known["graphs"] if entry["role"] == role)
        return graph

    def session(self, role: str) -> Any:
        """See feeding.py."""
        return self._session(self.path / self.graph(role)["file"], role)


class Causal:
    """A language model. It keeps what it was fed with, and is fed only with what is new."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._session = folder, folder.session("model")
        self._text: Any = None
        self._tokens: list[int] = []
        self._logits: list[np.ndarray] = []

    def get_inputs(self) -> list[Port]:
        """The whole text so far."""
        return [Port("input_ids")]

    def get_outputs(self) -> list[Port]:
        """Logits after each of its tokens."""
        return [Port("logits")]

    def run(self, names: Sequence[str], feeds: Feeds) -> list[np.ndarray]:
        """Logits (1, tokens, vocabulary)."""
        tokens = [int(token) for token in feeds["input_ids"][0]]
        if self._text is None or tokens[: len(self._tokens)] != self._tokens:
            self._text, self._tokens, self._logits = self._folder.feeding["Text"](self._session, self._folder.length), [], []
        if new := tokens[len(self._tokens) :]:
            self._logits.append(self._text.feed(new))
            self._tokens = tokens
        return [np.concatenate(self._logits)[None]]


class Encoder:
    """An encoder, with or without a head."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._session, self._graph = folder, folder.session("model"), folder.graph("model")
        self._axes = {
            port["name"]: place for port in self._graph["outputs"] for place, size in enumerate(port["shape"]) if isinstance(size, str)
        }

    def get_inputs(self) -> list[Port]:
        """What it reads."""
        return [Port(port["name"]) for port in self._graph["inputs"]]

    def get_outputs(self) -> list[Port]:
        """What it gives."""
        return [Port(port["name"], "tensor(float)") for port in self._graph["outputs"]]

    def run(self, names: Sequence[str], feeds: Feeds) -> list[np.ndarray]:
        """The outputs for one text."""
        outputs = self._folder.feeding["one_pass"](self._session, feeds, self._folder.pad, self._axes)
        return [outputs[name] for name in names]


class Source:
    """The encoder of an encoder-decoder. What it gives goes to the decoder as it is."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._session = folder, folder.session("encoder")

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        """What the decoder attends to, for one source."""
        return [self._folder.feeding["crossed"](self._session, feeds, self._folder.pad)]


class Target:
    """The decoder of an encoder-decoder. It keeps its cache."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._session = folder, folder.session("decoder")
        self._text: Any = None

    def get_inputs(self) -> list[Port]:
        """New tokens, what the encoder gave, and whether they go on."""
        return [Port("input_ids"), Port("encoder_hidden_states"), Port("use_cache_branch", "tensor(bool)")]

    def get_outputs(self) -> list[Port]:
        """Logits after each new token."""
        return [Port("logits", "tensor(float)")]

    def run(self, names: Sequence[str], feeds: Feeds) -> list[np.ndarray]:
        """Logits (1, tokens, vocabulary)."""
        if not feeds["use_cache_branch"].any():
            self._text = self._folder.feeding["Text"](self._session, self._folder.length, feeds["encoder_hidden_states"])
        return [self._text.feed([int(token) for token in feeds["input_ids"][0]])[None]]


def opened(folder: Path, name: str) -> Any:
    """The program that stands for a graph, by the name that the graph would have."""
    programs = Folder(folder)
    family: dict[str, Any] = {
        "encoder_model.onnx": Source, "decoder_model_merged.onnx": Target,
        "model.onnx": Causal if programs.known["task"] == "text-generation" else Encoder,
    }  # fmt: skip
    return family[name](programs)
