"""What the queue knows of a target of `[[deliver]]`: the table as the configuration has read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, Protocol

from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.values import Json

Policy = Literal["all", "passed", "best"]


class Endpoint(Protocol):
    """A target of the configuration."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def steps(self) -> int: ...
    @property
    def variants(self) -> tuple[str, ...]: ...
    @property
    def bandwidth(self) -> int: ...
    @property
    def keep(self) -> int: ...
    @property
    def read_back(self) -> bool: ...
    @property
    def share(self) -> float: ...
    @property
    def declared(self) -> DeliveryKind:
        """What its kind says of itself."""
        ...

    @property
    def options(self) -> Json:
        """The kind's own keys, secrets in clear."""
        ...

    @property
    def secret_variables(self) -> Mapping[str, str]:
        """Those of the kind's variables that the daemon's environment has, where no file gives a secret."""
        ...

    @property
    def secrets(self) -> Iterable[str]:
        """All that nothing may show."""
        ...

    def secret(self) -> str:
        """The contents of the secret file; "" without one. Raises ValueError."""
        ...

    def is_for(self, run: str) -> bool:
        """Whether a run's exports go there."""
        ...
