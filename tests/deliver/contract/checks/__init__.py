"""What every target must do: `CHECKS` has each check by its name, a sentence. A check gets a `Bench` with a started site, and raises
AssertionError."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.deliver.contract.bench import Bench
from tests.deliver.contract.checks import carrying, faults, following, keeping, stopping


@dataclass(frozen=True)
class Check:
    call: Callable[[Bench], None]
    over_http: bool
    """Whether it needs a proxy before the far end."""
    slow: bool

    @property
    def name(self) -> str:
        return self.call.__name__


CHECKS = [
    Check(call, over_http=module in (faults,) or getattr(call, "over_http", False), slow=getattr(call, "slow", False))
    for module in (carrying, following, keeping, faults, stopping)
    for call in vars(module).values()
    if callable(call) and getattr(call, "__module__", "") == module.__name__ and not call.__name__.startswith("_")
]
