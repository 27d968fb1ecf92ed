"""Which exports the matrix has: a covering design over families, methods, dtypes, formats of the base, and tied or untied weights.

Every family meets every method in fp32, and any two values of other factors meet at least once: a pairwise cover, chosen greedily and in
the same way at each run. The full product has about twenty times as many. Pure: no library is loaded.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.matrix.families import FAMILIES
from tests.matrix.methods import LORA, METHODS, RARE

DTYPES = ("float32", "bfloat16", "float16")
FORMS = ("safetensors", "sharded", "bin", "sharded-bin", "nf4", "int8")
"""The last two are stored packed by bitsandbytes: QLoRA's base, and LLM.int8."""
PACKED = ("nf4", "int8")
PACKED_ON = ("llama", "qwen3", "phi3", "gpt-neox", "t5")
RARE_ON = ("llama", "gpt2", "t5", "bert", "mixtral")
"""Families with every kind of layers: linear, transposed, two stacks, an encoder's, experts."""


@dataclass(frozen=True)
class Case:
    """One export."""

    family: str
    method: str
    dtype: str
    form: str
    tied: bool

    def __str__(self) -> str:
        return f"{self.family}/{self.method}/{self.dtype}/{self.form}/{'tied' if self.tied else 'untied'}"


@functools.cache
def design() -> tuple[Case, ...]:
    """All cases, in a fixed order."""
    possible = list(_possible())
    left = dict.fromkeys(itertools.chain.from_iterable(map(_pairs, possible)))  # a set that keeps its order
    chosen, used = list[Case](), collections.Counter[str]()

    def choose(cases: Iterable[Case]) -> None:
        best = max(cases, key=lambda case: (sum(pair in left for pair in _pairs(case)), -used[case.family]))
        for pair in _pairs(best):
            left.pop(pair, None)
        used[best.family] += 1
        chosen.append(best)

    for place, (family, method) in enumerate(_meetings()):
        choose(_with(family, method, "float32", place))
    while left:
        first = next(iter(left))
        choose(case for case in possible if first in _pairs(case))
    return tuple(chosen)


def of_family(family: str) -> list[Case]:
    """The cases of one family."""
    return [case for case in design() if case.family == family]


@functools.cache
def _pairs(case: Case) -> frozenset[tuple[tuple[str, object], ...]]:
    """Any two factors' values that the case has."""
    return frozenset(itertools.combinations(vars(case).items(), 2))


def _meetings() -> Iterator[tuple[str, str]]:
    return ((family, method) for family in FAMILIES for method in METHODS if method not in RARE or family in RARE_ON)


def _possible() -> Iterator[Case]:
    for place, (family, method) in enumerate(_meetings()):
        for dtype in DTYPES:
            yield from _with(family, method, dtype, place)


def _with(family: str, method: str, dtype: str, place: int) -> Iterator[Case]:
    """The cases of these three; which comes first, and so is taken among equals, goes round."""
    others = [
        Case(family, method, dtype, form, tied) for form in FORMS for tied in FAMILIES[family].ties
        if form not in PACKED or (method in LORA and family in PACKED_ON)
    ]  # fmt: skip
    start = place % len(others)
    return iter(others[start:] + others[:start])
