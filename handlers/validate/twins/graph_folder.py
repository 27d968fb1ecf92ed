"""What forms have in common whose artifacts are folders of graphs, named as `engines.onnx_folder` knows them."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from handlers.validate.engines.graphs.onnx_folder import graph_files
from handlers.validate.twins.messages import Order
from handlers.validate.twins.weights import Stored


class GraphFolder(ABC):
    """The part of a `Form` that reads what the graphs store, each file by the rules of its format."""

    def __init__(self, order: Order) -> None:
        self._spec = order.spec

    @abstractmethod
    def _stored_in(self, path: Path, role: str) -> Sequence[Stored]:
        """Give what a graph stores in fewer bits. Raises UnreadableError."""

    @abstractmethod
    def _halves_in(self, path: Path) -> Iterable[bytes]:
        """Give the bytes of its small tensors in half precision."""

    @functools.cached_property
    def _files(self) -> Mapping[str, Path]:
        return graph_files(Path(self._spec.folder))

    def weights(self) -> list[Stored]:
        """See `Form.weights`."""
        return [weight for role, path in self._files.items() for weight in self._stored_in(path, role)]

    def halves(self) -> set[bytes]:
        """See `Form.halves`."""
        return {tensor for path in self._files.values() for tensor in self._halves_in(path)}
