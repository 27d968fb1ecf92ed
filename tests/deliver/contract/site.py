"""A far end that a kind of target is tried with.

To add one: a module in `tests/deliver/sites/` with a class `SITE(Site)`. Only `start`, `options`, `visible` and `current` are
needed; what a far end can't do by its nature is named in `lacks`, with the reason.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from tests.deliver.exports import SMALL, Export
from tests.deliver.proxy import Answer, Proxy, Request

Contents = Mapping[str, str]
"""SHA-256 by path, of what a reader gets of one version."""


class Site:
    """One far end, in a `with`; `folder` is its own."""

    kind: ClassVar[str]
    entry: ClassVar[str]
    """As the declaration's."""
    counts: ClassVar[Literal["requests", "calls"]] = "requests"
    """What is counted to stop a delivery at each point: requests through `proxy`, or Python's calls that change something below
    `folder`."""
    part: ClassVar[int] = 8 << 20
    """Bytes that may be sent again after a cut: the kind's part, or the largest file where it has none."""
    slack: ClassVar[int] = 20_000
    """Bytes of requests that are no contents: documents, names, forms."""
    files: ClassVar[Mapping[str, bytes | int]] = SMALL
    """Of the exports that are delivered to it."""
    weights: ClassVar[str] = "pytorch/model.safetensors"
    """The file of weights among them."""
    lacks: ClassVar[Mapping[str, str]] = {}
    """Checks that make no sense here, by name, with the reason."""
    secret: str = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proxy: Proxy | None = None
        self.own_interpreter = False
        """Whether each delivery is started as a daemon starts it, and not forked from a process that has its modules."""
        self.variables: dict[str, str] = {}
        """Of the delivery's environment."""

    def start(self) -> None:
        """Start the far end, and `self.proxy` before it where it speaks HTTP."""

    def stop(self) -> None:
        """End what `start` started."""

    def options(self) -> dict[str, Any]:
        """The kind's own keys, as its options class dumps them; they lead over the proxy."""
        raise NotImplementedError

    def visible(self, run: str) -> Mapping[str, Contents]:
        """What a reader finds under the names that people use, by version, of that run: read by plain means or a stock client, past the
        proxy. It may be called at any moment, by another thread."""
        raise NotImplementedError

    def current(self, run: str) -> str | None:
        """The version that the name which people follow stands for."""
        raise NotImplementedError

    def expected(self, export: Export, variants: tuple[str, ...] = ()) -> Contents:
        """What a reader must get of an export: all files of the variants, and those at the top."""
        return {
            path: digest for path, digest in export.digests.items() if "/" not in path or not variants or path.split("/")[0] in variants
        }

    def dress(self, export: Export) -> None:
        """Complete an export with what the kind reads of it."""

    def carried(self, export: Export) -> int:
        """Bytes of an export that must lie at the far end."""
        return export.size

    def move_by_hand(self, run: str, version: str) -> None:
        """Do what a person does who lets the followed name stand for that version, in the far end's own way."""
        raise NotImplementedError

    def lay_foreign(self) -> None:
        """Lay something there that ckptd did not bring, where it could be taken for ours; `foreign_is_there` looks for it."""
        raise NotImplementedError

    def foreign_is_there(self) -> bool:
        raise NotImplementedError

    def stored(self) -> int:
        """Bytes that lie at the far end, of contents and documents, visible or not."""
        raise NotImplementedError

    def leftovers(self) -> list[str]:
        """What a stopped delivery left that no version needs, where the far end can be listed."""
        return []

    def refusal(self, code: int) -> Answer:
        """How the far end's service says that status."""
        return Answer(code)

    def gives_contents(self, request: Request) -> bool:
        """Whether a request asks for contents that are compared, so that the answer may be falsified."""
        return request.method == "GET"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def sites() -> dict[str, type[Site]]:
    """All sites, by the names of their modules."""
    import tests.deliver.sites as package

    return {
        module.name: importlib.import_module(f"{package.__name__}.{module.name}").SITE for module in pkgutil.iter_modules(package.__path__)
    }
