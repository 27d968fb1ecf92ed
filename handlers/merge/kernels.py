"""What a merge can do to a tensor: descriptions, light and frozen, so that a plan can be made and compared without any arithmetic.

Called by `handlers.merge.match`, which chooses them, and by the streaming engine, for which `prepare` reads the factors from the
adapter and gives what computes (`handlers.merge.arithmetic`). torch is imported only then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from handlers.merge.arithmetic import Prepared, Read


class Kernel(Protocol):
    """What is done to one tensor."""

    @property
    def twice(self) -> bool:
        """Whether the base's rows have to be seen once before any row can be computed."""
        ...

    def prepare(self, read: Read) -> Prepared:
        """Read the factors."""
        ...


@dataclass(frozen=True)
class LowRank:
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
    """The delta is rounded to the base's dtype before it is added, as PEFT does for embeddings."""

    @property
    def twice(self) -> bool:
        """A norm over rows needs all of them."""
        return self.magnitude is not None and self.transposed

    def prepare(self, read: Read) -> Prepared:
        """Read both factors, and what belongs to them."""
        from handlers.merge.arithmetic import PreparedLowRank

        a, b = (factor.reshape(factor.shape[0], -1) for factor in (read(self.a), read(self.b)))
        if self.middle is not None:
            a = a * read(self.middle)
        return PreparedLowRank(self, a, b, None if self.magnitude is None else read(self.magnitude).reshape(-1))


@dataclass(frozen=True)
class Experts:
    """A low-rank change of the experts of a layer, whose factors lie fused: all of them stacked, or one (a part of one) of them.

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

    @property
    def twice(self) -> bool:
        """One pass is enough."""
        return False

    def prepare(self, read: Read) -> Prepared:
        """Read both fused factors."""
        from handlers.merge.arithmetic import PreparedExperts

        return PreparedExperts(self, read(self.a), read(self.b))


@dataclass(frozen=True)
class Bias:
    """bias + scale · the bias of B."""

    key: str
    scale: float

    @property
    def twice(self) -> bool:
        """One pass is enough."""
        return False

    def prepare(self, read: Read) -> Prepared:
        """Read the bias."""
        from handlers.merge.arithmetic import PreparedBias

        return PreparedBias(read(self.key) * self.scale)


@dataclass(frozen=True)
class Rows:
    """The rows of some tokens are replaced."""

    key: str
    indices: tuple[int, ...]

    @property
    def twice(self) -> bool:
        """One pass is enough."""
        return False

    def prepare(self, read: Read) -> Prepared:
        """Read the rows."""
        from handlers.merge.arithmetic import PreparedRows

        return PreparedRows(read(self.key), self.indices)


@dataclass(frozen=True)
class Sum:
    """Several changes of one tensor that know nothing of each other, added without rounding in between."""

    kernels: tuple[Kernel, ...]

    @property
    def twice(self) -> bool:
        """Only changes that need one pass can be added."""
        return False

    def prepare(self, read: Read) -> Prepared:
        """Prepare all of them."""
        from handlers.merge.arithmetic import PreparedSum

        return PreparedSum([kernel.prepare(read) for kernel in self.kernels])


@dataclass(frozen=True)
class Copy:
    """The source's values as they are: another tensor takes the base's place, or the dtype changes."""

    @property
    def twice(self) -> bool:
        """One pass is enough."""
        return False

    def prepare(self, read: Read) -> Prepared:
        """Nothing to read."""
        from handlers.merge.arithmetic import PreparedCopy

        return PreparedCopy()
