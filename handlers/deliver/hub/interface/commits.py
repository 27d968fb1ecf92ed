"""Commits as the Hub takes them: lines of JSON, streamed, small files within and large ones by their digest; and the line by which a
commit of ckptd's is known again. Pure but for the files it reads.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from daemon.contract.values import Json
from handlers.deliver.version import BLOCK, SourceFile, Version

MARK = "ckptd: "
"""Begins the line of a commit's message that says what it brought."""


@dataclass(frozen=True)
class Piece:
    """A file of a commit: one of the export, or bytes that were made here."""

    path: str
    size: int
    sha256: str
    source: SourceFile | None = None
    data: bytes = b""
    lfs: bool = False
    sent: Callable[[int], None] = field(default=lambda count: None, compare=False)

    def blocks(self) -> Iterator[bytes]:
        """Its contents."""
        if self.source is None:
            yield self.data
            return
        with self.source.open() as stream:
            while block := stream.read(BLOCK):
                yield block

    @functools.cached_property
    def git(self) -> str:
        """The id that git has for such a file."""
        digest = hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        for block in self.blocks():
            digest.update(block)
        return digest.hexdigest()


def made(path: str, data: bytes) -> Piece:
    """A file that is made here."""
    return Piece(path, len(data), hashlib.sha256(data).hexdigest(), data=data)


@dataclass(frozen=True)
class Entry:
    """A file that lies in a revision."""

    git: str
    sha256: str | None
    """Of a large one."""
    size: int

    def holds(self, piece: Piece) -> bool:
        """Whether it has the piece's contents."""
        return piece.size == self.size and (self.sha256 == piece.sha256 if self.sha256 else self.git == piece.git)

    def is_recorded(self, recorded: Json) -> bool:
        """Whether it has the contents that a record says."""
        return recorded.get("sha256") == self.sha256 if self.sha256 else recorded.get("git") == self.git


@dataclass(frozen=True)
class Mark:
    """What a commit of ckptd's brought."""

    version: str
    run: str
    step: int
    export: str
    digest: str
    at: str = ""


def mark_of(message: str, at: str = "") -> Mark | None:
    """What the message of a commit says; None for one that is not ckptd's."""
    for line in message.splitlines():
        if line.startswith(MARK):
            try:
                said = json.loads(line.removeprefix(MARK))
                return Mark(str(said["version"]), str(said["run"]), int(said["step"]), str(said["export"]), str(said["digest"]), at)
            except (ValueError, KeyError, TypeError, RecursionError):
                return None
    return None


def message_of(version: Version, name: str) -> tuple[str, str]:
    """Title and text of a version's commit."""
    said = {"version": name, "run": version.run, "step": version.step, "export": version.export, "digest": version.digest}
    title = f"{' '.join(version.run.split())[:60]}, step {version.step}: {', '.join(version.variants)}"
    return title[:120], MARK + json.dumps(said)


@dataclass(frozen=True)
class Commit:
    """What is sent: pieces that are added, and paths that are taken away."""

    title: str
    text: str
    parent: str
    pieces: tuple[Piece, ...]
    gone: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """Bytes of its lines."""
        whole = sum(len(line) for line in self._plain())
        return whole + sum(len(_head(piece)) + 4 * -(-piece.size // 3) + len(TAIL) for piece in self.pieces if not piece.lfs)

    def lines(self) -> Iterator[bytes]:
        """Its lines, large ones in blocks. Raises CkptdError for a file that is not the manifest's any more."""
        yield from self._plain()
        for piece in self.pieces:
            if not piece.lfs:
                yield _head(piece)
                yield from _encoded(piece)
                yield TAIL

    def _plain(self) -> Iterator[bytes]:
        yield _line("header", {"summary": self.title, "description": self.text, "parentCommit": self.parent})
        for path in self.gone:
            yield _line("deletedFile", {"path": path})
        for piece in self.pieces:
            if piece.lfs:
                yield _line("lfsFile", {"path": piece.path, "algo": "sha256", "oid": piece.sha256, "size": piece.size})


TAIL = b'"}}\n'


def _line(key: str, value: Mapping[str, Any]) -> bytes:
    return json.dumps({"key": key, "value": value}).encode() + b"\n"


def _head(piece: Piece) -> bytes:
    return b'{"key": "file", "value": {"path": %b, "encoding": "base64", "content": "' % json.dumps(piece.path).encode()


def _encoded(piece: Piece) -> Iterator[bytes]:
    rest = b""
    for block in piece.blocks():
        data = rest + block
        whole = len(data) - len(data) % 3
        rest = data[whole:]
        yield base64.b64encode(data[:whole])
        piece.sent(len(block))
    yield base64.b64encode(rest)


def changes(wanted: Iterable[Piece], there: Mapping[str, Entry]) -> tuple[Piece, ...]:
    """The pieces that do not lie there yet."""
    return tuple(piece for piece in wanted if piece.path not in there or not there[piece.path].holds(piece))
