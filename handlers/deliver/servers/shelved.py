"""Servers that load from a folder: contents are laid there, and a version is a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from daemon.contract.delivering.orders import Listed, Move, Receipt
from handlers.deliver.servers.options import ServerOptions
from handlers.deliver.servers.serving import Serving
from handlers.deliver.servers.shelf import Shelf
from handlers.deliver.target import Setting
from handlers.deliver.version import SourceFile, Version


class Shelved(Serving):
    """Base of those targets."""

    def __init__(self, setting: Setting, options: ServerOptions) -> None:
        super().__init__(setting, options)
        self.shelf = Shelf(options.folder)

    def finish_alone(self, version: Version, move: Move) -> Receipt:
        """As `finish`, with nobody else at it."""
        raise NotImplementedError

    def unload(self, version: str) -> None:
        """Let the server forget a version that nobody is served, before its folder goes. Raises CkptdError."""

    def is_served(self, name: str, run: str) -> bool:
        """Whether people are served that version of that run. Raises CkptdError."""
        raise NotImplementedError

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Lay the contents on the shelf."""
        return self.shelf.put(file, sent)

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        """The contents as they lie on the shelf."""
        return self.shelf.read(file)

    def finish(self, version: Version, move: Move) -> Receipt:
        """Let the server load it, ask, and let people be served it."""
        with self.shelf.alone():
            receipt = self.finish_alone(version, move)
            self.shelf.tidy()
        return receipt

    def list(self, run: str) -> Sequence[Listed]:
        """The versions on the shelf."""
        return self.shelf.versions(run, self.is_served)

    def remove(self, version: str) -> None:
        """Unload it, then take its folder away."""
        if (about := self.shelf.about(version)) is None:
            return
        with self.shelf.alone():
            if self.is_served(version, about["run"]):
                raise self.followed(version)
            self.unload(version)
            self.shelf.remove(version)
