"""What graphs.json says of programs of fixed sizes, and what of it whoever runs them needs. Free of torch and transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from handlers.graphs import graphset
from handlers.graphs.graphset import Graph, GraphSet

LENGTH = "context_length"
"""Key in `GraphSet.extra`: tokens that there is room for."""


@dataclass(frozen=True)
class Described:
    """The programs of a folder."""

    known: GraphSet

    @property
    def length(self) -> int:
        """Tokens that there is room for."""
        return int(self.known.extra[LENGTH])

    def graph(self, role: str) -> Graph:
        """The program with a role. Raises KeyError."""
        graph = self.known.graph(role)
        if graph is None:
            raise KeyError(role)
        return graph

    def axes(self, role: str) -> Mapping[str, int]:
        """Output → its axis of tokens."""
        return {
            port.name: place for port in self.graph(role).outputs for place, size in enumerate(port.shape) if isinstance(size, str)
        }  # fmt: skip

    def past(self, role: str) -> Mapping[str, tuple[int, ...]]:
        """Input → shape of the keys and values that a program gives back under `present.…`; the source's are not among them."""
        given = {port.name.replace("present.", "past_key_values.", 1) for port in self.graph(role).outputs}
        return {port.name: tuple(map(int, port.shape)) for port in self.graph(role).inputs if port.name in given}


def read(folder: Path) -> Described:
    """The programs of a folder; Permanent where it has no graphs.json that can be understood."""
    return Described(graphset.read(folder))
