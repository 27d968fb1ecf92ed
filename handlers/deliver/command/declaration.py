"""The kind `command`: whatever the other kinds can't do."""

from __future__ import annotations

from pydantic import Field

from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.frozen import Frozen


class CommandOptions(Frozen):
    """Keys of a target of this kind."""

    command: tuple[str, ...] = Field(min_length=1)
    """The program and its arguments. Its working directory is the export's folder, which it must not change; it gets the version as JSON
    on standard input. Exit code 0: delivered, the last line that it printed is the place; 65: this export never will be; 126 and 127: it
    can't be run; any other: it is tried again."""
    limit_seconds: float = Field(default=3600.0, gt=0, le=86_400)
    """How long it may run; then it is ended, and tried again."""
    secret_variable: str = Field(default="CKPTD_SECRET", pattern="[A-Za-z_][A-Za-z0-9_]*")
    """The variable of its environment that gets the contents of secret_file."""


KIND = DeliveryKind(
    name="command", about="a command of your own, for every other place", options=CommandOptions,
    entry="handlers.deliver.command.target:CommandTarget",
)  # fmt: skip
