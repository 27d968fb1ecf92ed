"""OpenVINO's models as they lie in files: the layers of an XML file, and the constants in the .bin file beside it.

Used by `stored`. Read by the documented format alone, without OpenVINO: https://docs.openvino.ai (OpenVINO IR format), and for the order of
numbers of 4 bits the same page's element types: the first of two lies in the lower bits. numpy alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from handlers.validate.twins.weights import UnreadableError

BODIES = ("body", "then_body", "else_body")
"""Models within a layer: of TensorIterator, Loop and If."""
TYPES: Mapping[str, type[np.generic]] = {
    "u8": np.uint8, "i8": np.int8, "i32": np.int32, "i64": np.int64, "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
NIBBLES = ("u4", "i4")


@dataclass(frozen=True)
class Layer:
    """One operator of a model."""

    name: str
    kind: str
    data: Mapping[str, str]
    """Its attributes."""
    inputs: tuple[str, ...]
    """Identifiers of the layers whose outputs it reads, in the order of its ports."""

    @property
    def type(self) -> str:
        """Of a constant, the type of its numbers."""
        return self.data.get("element_type", "")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a constant."""
        return tuple(int(size) for size in self.data["shape"].split(",") if size.strip())

    @property
    def count(self) -> int:
        """How many numbers a constant has."""
        return int(np.prod(self.shape, dtype=np.int64))


class Model:
    """The layers of a file by their identifiers, with those of bodies, and their constants."""

    def __init__(self, path: Path) -> None:
        """Read the XML file; its constants stay in the .bin file until they are asked for. Raises UnreadableError."""
        self._numbers = path.with_suffix(".bin")
        try:
            net = ElementTree.parse(path).getroot()
        except ElementTree.ParseError as error:
            raise UnreadableError(f"{path.name} is no XML ({error})") from error
        self.layers = dict(_layers(net, ""))

    def constant(self, layer: Layer) -> np.ndarray:
        """The numbers of a constant, those of 4 bits as packed bytes in a row. Raises UnreadableError for other types."""
        offset, size = int(layer.data["offset"]), int(layer.data["size"])
        if layer.type in NIBBLES:
            return np.memmap(self._numbers, np.uint8, "r", offset, (size,))
        if layer.type not in TYPES:
            raise UnreadableError(f"the constant {layer.name} is stored as {layer.type}, which is not read here")
        if not layer.count:
            return np.zeros(layer.shape, TYPES[layer.type])
        return np.memmap(self._numbers, TYPES[layer.type], "r", offset, layer.shape or (1,)).reshape(layer.shape)


def _layers(net: ElementTree.Element, place: str) -> Iterator[tuple[str, Layer]]:
    """Of a model or a body; `place` stands before the identifiers, which are those of their own body alone."""
    sources: dict[tuple[str, int], str] = {}
    for edge in net.iterfind("edges/edge"):
        sources[edge.attrib["to-layer"], int(edge.attrib["to-port"])] = place + edge.attrib["from-layer"]
    for element in net.iterfind("layers/layer"):
        own = element.attrib["id"]
        data = element.find("data")
        ports = sorted(port for layer, port in sources if layer == own) if element.find("input") is not None else ()
        inputs = tuple(sources[own, port] for port in ports)
        yield place + own, Layer(element.attrib["name"], element.attrib["type"], {} if data is None else data.attrib, inputs)
        for body in BODIES:
            if (inner := element.find(body)) is not None:
                yield from _layers(inner, f"{place}{own}.{body}.")
