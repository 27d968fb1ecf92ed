"""The interface of a delivery target. One implementation is one folder beside this file; `tests/deliver/contract` holds what all must do.

What a reader of the far end sees at any moment is a whole version or none: `put` makes nothing visible under a name that people use,
`finish` makes a version visible at once. Every call may be repeated after a crash anywhere, and by another process that delivers the same
version at the same time. What a far end does not let us do raises Permanent, what may pass Retryable (`handlers.deliver.far_end` has both
by status).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from daemon.contract.delivering.orders import Listed, Move, Receipt
from daemon.contract.values import Json
from handlers.deliver.version import SourceFile, Version

AT_ONCE = 10
"""Requests that a target over HTTP may send side by side, and connections that are kept for them."""
SMALL_BYTES = 64 << 10
"""Of a file that may go beside others: what a cut costs of all of them is less than a part of a large one."""


@dataclass(frozen=True)
class Resume:
    """What earlier attempts noted, and how to note more. A note is durable soon after the call, and may be lost by a crash."""

    known: dict[str, Json] = field(default_factory=dict)
    note: Callable[[str, Json | None], None] = lambda name, value: None

    def get(self, name: str) -> Json:
        """What was noted by that name; {} where nothing was."""
        return self.known.get(name, {})

    def keep(self, name: str, value: Json | None) -> None:
        """Note it, in place of what was noted by that name; None: it is of no use any more."""
        if value is None:
            self.known.pop(name, None)
        else:
            self.known[name] = value
        self.note(name, value)


@dataclass(frozen=True)
class Setting:
    """What a target is made with: `Target(setting)` connects to nothing yet."""

    options: Json
    """As the kind's options class dumps them: `HubOptions.model_validate(setting.options)`."""
    secret: str
    """The contents of the secret file, "" without one: the environment has what the kind's usual variables hold."""
    scratch: Path
    """For temporary files, removed afterwards."""
    resume: Resume
    share: float = 0.9
    """Of a target that answers: how much of the fine-tuning must be in its answers."""
    run: str = ""
    """The run of the export that is carried, or of the versions that are listed; "" where there is none, or all are."""


class Target(Protocol):
    """A far end."""

    def look(self) -> None:
        """Find out, changing nothing there, whether it can be reached and would let us write. Raises CkptdError."""

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Let a file's contents lie there, under no name that people use yet. What already lies there with the same contents is not sent
        again, and what an earlier attempt sent of it neither, but for a part. `sent` is told of bytes as they go.

        Gives the bytes that lay there already. Raises CkptdError.
        """

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        """The contents as the far end has them now, after `put`. Raises CkptdError; Unreadable where it gives nothing back by its
        nature."""

    def finish(self, version: Version, move: Move) -> Receipt:
        """Make a version whose files were all put visible, whole, under its own name, which never means anything else, and move the name
        that people follow if `move` says so. Raises CkptdError, with nothing half visible."""

    def list(self, run: str) -> Sequence[Listed]:
        """The versions of a run that lie there and that ckptd brought, oldest first; "": of all runs. Raises CkptdError."""

    def remove(self, version: str) -> None:
        """Take a version away that `list` gave, and what no other version needs: names first, contents last. What is not ours stays. Raises
        CkptdError; one that is not there is none."""

    def close(self) -> None:
        """Let go of what it holds here."""


@runtime_checkable
class Foreseeing(Protocol):
    """A target that has to know all files of a version before the first of them is put."""

    def foresee(self, version: Version) -> None:
        """Learn what will be put. Asks nobody."""


@runtime_checkable
class Choosing(Protocol):
    """A target that takes but a part of an export."""

    def part(self, version: Version) -> Version:
        """What it takes: that alone is put, read back, finished and named. Asks nobody. Raises Permanent where it can take nothing."""
        ...


@runtime_checkable
class SideBySide(Protocol):
    """A target whose `put`, and then whose `read_back`, may be called by several threads, for different contents, once the first call has
    ended well."""

    at_once: int
    """How many."""


@runtime_checkable
class Mending(Protocol):
    """A target at which contents can be damaged after they were put, and put in their place again."""

    def put_again(self, file: SourceFile, sent: Callable[[int], None]) -> None:
        """Let a file's contents take the place of what `put` found or left there, which are others. Raises CkptdError."""


class Unreadable(Exception):
    """A far end gives nothing back by its nature: what lies there is compared in another way, or not at all. The text is a clause that
    says why."""
