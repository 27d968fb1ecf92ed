"""Small models in OpenVINO's files, written by hand as the format's documentation says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

BITS = {"u4": 4, "i4": 4, "u8": 8, "i8": 8}


class Net:
    """A small model, written as the format's documentation says."""

    def __init__(self) -> None:
        self._layers: list[str] = []
        self._edges: list[str] = []
        self._numbers = b"\0" * 24  # of other constants

    def constant(self, name: str, kind: str, array: np.ndarray) -> int:
        """Numbers, those of 4 bits two in a byte, the first in its lower half."""
        flat = array.reshape(-1)
        if BITS.get(kind) == 4:
            data = (flat[::2] & 15 | (flat[1::2] & 15) << 4).astype(np.uint8).tobytes()
        else:
            data = flat.astype(
                {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f16": np.float16, "f32": np.float32}.get(kind, np.int64)
            ).tobytes()
        shape = ", ".join(map(str, array.shape))
        place = f'element_type="{kind}" shape="{shape}" offset="{len(self._numbers)}" size="{len(data)}"'
        self._numbers += data
        return self.layer("Const", (), place, name)

    def layer(self, kind: str, inputs: Sequence[int], data: str = "", name: str = "") -> int:
        """An operator, and the number by which others read it."""
        number = len(self._layers)
        ports = "".join(f'<port id="{port}" />' for port in range(len(inputs)))
        entry = f"<input>{ports}</input>" if inputs else ""
        self._layers.append(f'<layer id="{number}" name="{name or kind}" type="{kind}"><data {data} />{entry}</layer>')
        self._edges += [
            f'<edge from-layer="{source}" from-port="0" to-layer="{number}" to-port="{port}" />' for port, source in enumerate(inputs)
        ]
        return number

    def scaled(self, kind: str, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None, shape: Sequence[int] = ()) -> int:
        """Integers less zero points, times scales, as nncf writes it; `shape`: of the matrix that groups become."""
        value = self.layer("Convert", [self.constant("w", kind, codes)])
        if zeros is not None:
            value = self.layer("Subtract", [value, self.layer("Convert", [self.constant("w/zero_point", kind, zeros)])])
        value = self.layer("Multiply", [value, self.constant("w/scale", "f16", scales)])
        if shape:
            value = self.layer("Reshape", [value, self.constant("shape", "i64", np.array(shape))])
        return self.layer("Convert", [value])

    def product(self, weight: int, *, turned: bool) -> int:
        """`turned`: the columns of the weight are the outputs."""
        return self.layer("MatMul", [self.layer("Parameter", ()), weight], f'transpose_a="false" transpose_b="{str(not turned).lower()}"')

    def table(self, weight: int) -> int:
        """Its rows are taken by tokens."""
        return self.layer("Gather", [weight, self.layer("Parameter", ()), self.constant("axis", "i64", np.array(0))])

    def strings(self, *texts: bytes) -> list[int]:
        """A list of strings: where each begins, where it ends, the bytes of all."""
        ends = np.cumsum([len(text) for text in texts])
        begins = ends - [len(text) for text in texts]
        whole = np.frombuffer(b"".join(texts), np.uint8)
        return [self.constant("s", kind, array) for kind, array in (("i32", begins), ("i32", ends), ("u8", whole))]

    def write(self, folder: Path, name: str = "model") -> Path:
        """The two files."""
        path = folder / f"{name}.xml"
        path.write_text(
            f'<?xml version="1.0"?><net name="n" version="11"><layers>{"".join(self._layers)}</layers>'
            f"<edges>{''.join(self._edges)}</edges></net>"
        )
        path.with_suffix(".bin").write_bytes(self._numbers)
        return path
