"""The operations that a merge applies to tensors, as frozen descriptions: a plan can be made and compared without any arithmetic.

Called by `handlers.merge.plan.matcher`, which chooses them; `handlers.merge.engine.arithmetic.prepare` reads the factors and computes.
Free of torch.
"""

from __future__ import annotations

from dataclasses import dataclass

_KEYS = ("a", "b", "middle", "magnitude", "key")
"""Fields that hold a key of the adapters' tensors."""


@dataclass(frozen=True)
class Operation:
    """What is done to one tensor."""

    @property
    def twice(self) -> bool:
        """Whether all rows of the base have to be read once before the first row can be computed."""
        return False

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the adapters' tensors that it uses."""
        return tuple(key for name in _KEYS if (key := getattr(self, name, None)) is not None)


@dataclass(frozen=True)
class LowRank(Operation):
    """W + scale · B·A / divisor; with a magnitude m, W' = m / ‖W + Δ‖ · (W + Δ), the norm taken for each output.

    Factors of more than two dimensions (convolutions) are used as matrices of outputs × everything else.
    """

    a: str
    b: str
    scale: float
    transposed: bool = False
    """The tensor is stored as inputs × outputs (Conv1D), or as tokens × width (embeddings)."""
    magnitude: str | None = None
    middle: str | None = None
    """Key of a diagonal between B and A."""
    divisor: float = 1.0
    rounded: bool = False
    """The delta is rounded to the base's dtype before it is added, as PEFT does for embeddings; where the sum is written in that dtype."""

    @property
    def twice(self) -> bool:
        """A norm over rows needs all of them."""
        return self.magnitude is not None and self.transposed


@dataclass(frozen=True)
class Experts(Operation):
    """A low-rank change of the experts of a layer, with one pair of factors for all: of the stacked tensor, or of (a part of) one expert.

    A is (experts · rank) × inputs; B is outputs × (rank · experts), the expert running fastest.
    """

    a: str
    b: str
    scale: float
    experts: int
    rows: int
    """Rows of one expert in the tensor."""
    expert: int | None = None
    """None for the stacked tensor."""
    offset: int = 0
    """Of the tensor's first row in the fused expert."""
    transposed: bool = False
    """Each expert is stored as inputs × outputs."""


@dataclass(frozen=True)
class Bias(Operation):
    """bias + scale · the bias of B."""

    key: str
    scale: float


@dataclass(frozen=True)
class Rows(Operation):
    """The rows of some tokens are replaced."""

    key: str
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Sum(Operation):
    """Several changes of one tensor, added without rounding in between."""

    parts: tuple[Operation, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """As Operation says."""
        return tuple(key for part in self.parts for key in part.keys)


@dataclass(frozen=True)
class Copy(Operation):
    """The values of the source as they are, which may come from the adapter or be written in another dtype."""
