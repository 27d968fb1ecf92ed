"""A version: what is carried of one export, with its name by content, read by the export's manifest.

The files are read once, while they are sent: `SourceFile.open` counts, slows down and compares them with the manifest.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import io
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from daemon.contract.disk.export_layout import ANSWERS, MANIFEST, read_manifest
from daemon.contract.faults.advice import quoted
from daemon.contract.faults.errors import Permanent, Retryable, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.deliver.names import long

READ = "read the export that is delivered"
BLOCK = 1 << 20
"""Bytes that are read at once."""
BURST_SECONDS = 0.25
"""How far a limited reader may be ahead of its rate."""


class Pace:
    """A rate in bytes a second, shared by everything that one delivery sends."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self.rate, self._clock, self._sleep = rate, clock, sleep
        self._free_at, self._lock = 0.0, threading.Lock()

    def take(self, count: int) -> None:
        """Wait until so many bytes more may go."""
        if not self.rate:
            return
        with self._lock:
            self._free_at = free_at = max(self._free_at, self._clock()) + count / self.rate
        if (early := free_at - self._clock() - BURST_SECONDS) > 0:
            self._sleep(early)


@dataclass(frozen=True)
class SourceFile:
    """A file of a version."""

    path: str
    """In the version, with "/"."""
    source: Path
    size: int
    sha256: str
    pace: Pace = field(default_factory=lambda: Pace(0), compare=False)

    def open(self) -> Reader:
        """Open it for reading in order. Raises Permanent where it is not what the manifest says any more, Retryable where it is away."""
        try:
            handle = os.open(self.source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise gone(self.source, error) from error
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size != self.size:
            os.close(handle)
            raise changed(self.source)
        return Reader(self, open(handle, "rb", buffering=0))

    def whole(self, sent: Callable[[int], None]) -> Iterator[bytes]:
        """All of it, for an upload by one request, and how many bytes went out of each block. Raises as `open`."""
        with self.open() as stream:
            while data := stream.read(BLOCK):
                yield data
                sent(len(data))

    def part(self, start: int, count: int) -> bytes:
        """So many bytes from there on, for an upload in parts; their contents are compared where the file is read as a whole. Raises as
        `open`."""
        try:
            handle = os.open(self.source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                data, size = os.pread(handle, count, start), os.fstat(handle).st_size
            finally:
                os.close(handle)
        except OSError as error:
            raise gone(self.source, error) from error
        if size != self.size or len(data) != min(count, self.size - start):
            raise changed(self.source)
        self.pace.take(len(data))
        return data

    def parts(self, size: int, start: int = 0, under_way: int = 1) -> Iterator[bytearray]:
        """What follows `start` in parts of that size, one of no bytes where nothing does; what stands before is read for the digest alone.
        While the last parts, as many as are `under_way`, are sent, the next is read; then the first of them is overwritten. Raises as
        `open`, before the last part is given."""
        size = min(size, max(1, self.size))
        places = (*range(0, start, size), *(range(start, self.size, size) or (start,)))
        buffers = [bytearray(size) for _ in range(min(under_way + 1, len(places)))]
        with dataclasses.replace(self, pace=Pace(0)).open() as stream, ThreadPoolExecutor(1) as reader:

            def read(number: int) -> bytearray:
                at, buffer = places[number], buffers[number % len(buffers)]
                count = stream.fill(memoryview(buffer)[: start - at if at < start else size])
                return buffer if count == size else buffer[:count]

            ahead = read(0)
            for number, at in enumerate(places, 1):
                part, coming = ahead, reader.submit(read, number) if number < len(places) else None
                if at >= start:
                    self.pace.take(len(part))
                    yield part
                if coming is not None:
                    ahead = coming.result()


class Reader(io.RawIOBase):
    """A source file as a stream; at its end its digest is compared with the manifest's, before the last bytes are given."""

    def __init__(self, file: SourceFile, stream: Any) -> None:
        self._file, self._stream, self._digest, self._left = file, stream, hashlib.sha256(), file.size

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes. Raises Permanent where the file is not the manifest's."""
        view = memoryview(buffer)[:BLOCK]
        count: int = self._stream.readinto(view) or 0
        self._digest.update(view[:count])
        self._left -= count
        if self._left < 0 or (count == 0 and self._left) or (self._left == 0 and self._digest.hexdigest() != self._file.sha256):
            raise changed(self._file.source)
        self._file.pace.take(count)
        return count

    def fill(self, buffer: memoryview) -> int:
        """Read until the buffer is full or the file ends; gives the bytes. Raises as `readinto`."""
        count = 0
        while count < len(buffer) and (more := self.readinto(buffer[count:])):
            count += more
        return count

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        super().close()


@dataclass(frozen=True)
class Version:
    """What is carried of one export."""

    export: str
    """The export's id."""
    run: str
    step: int
    folder: Path
    variants: tuple[str, ...]
    files: tuple[SourceFile, ...]
    """The manifest not among them: targets that keep files write it last (`manifest`)."""
    manifest: Json
    verdicts: Json
    """Variant → passed, failed or unverified."""

    @property
    def digest(self) -> str:
        """SHA-256 over names and contents: two versions with the same one are the same, whatever export they are of."""
        lines = "".join(f"{file.sha256} {file.size} {file.path}\n" for file in sorted(self.files, key=lambda file: file.path))
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def name(self) -> str:
        """`RUN-STEP-DIGEST8`, of letters, digits, `.`, `_` and `-`, at most 128: never used again for anything else."""
        return f"{long(self.run)}-{self.step}-{self.digest[:8]}"

    def of(self, variant: str) -> Version:
        """That variant alone, without what lies at the top."""
        return replace(self, variants=(variant,), files=tuple(file for file in self.files if file.path.split("/")[0] == variant))

    @property
    def why_not_followed(self) -> str:
        """Why the name that people follow does not move to it by itself: something of it has not passed; "" where all has."""
        others = [f"{quoted(name)} is {self.verdicts.get(name, 'without a verdict')}" for name in self.variants
                  if self.verdicts.get(name) != "passed"]  # fmt: skip
        return f"the name that people follow moves to what passed, and {', '.join(others)}" if others else ""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def read_version(folder: Path, variants: Sequence[str], pace: Pace, report: Json) -> Version:
    """The version that a published export's folder holds, by its manifest. `variants`: those alone, with what lies at the top; none: all.
    The live model's answers stay in the export. `report`: the export's report.json, or {}.

    Raises Permanent where it is no export any more, or lacks a variant, Retryable where it is away.
    """
    try:
        manifest = read_manifest(folder)
    except OSError as error:
        raise gone(folder / MANIFEST, error) from error
    except ValueError as error:
        raise Permanent(FaultCode.DELIVERY_SOURCE, READ, f"{MANIFEST} {error}", "export it again", path=folder) from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), list):
        raise Permanent(FaultCode.DELIVERY_SOURCE, READ, f"{MANIFEST} is none of an export", "export it again", path=folder)
    files = tuple(_files(folder, manifest, pace))
    there = tuple(sorted({PurePosixPath(file.path).parts[0] for file in files if "/" in file.path} - {ANSWERS}))
    chosen = tuple(variants) or there
    if missing := [name for name in chosen if name not in there]:
        raise Permanent(
            FaultCode.DELIVERY_SOURCE, READ, f"it has no {quoted(missing[0])}, only {', '.join(there) or 'no variant'}",
            "name published variants in the target's `variants`, or in export.variants what is to be made", path=folder,
        )  # fmt: skip
    rows = report.get("artifacts")
    verdicts = {str(row.get("variant")): str(row.get("verdict")) for row in rows if isinstance(row, dict)} if isinstance(rows, list) else {}
    return Version(
        export=str(manifest.get("export_id", "")), run=str(manifest.get("run", "")), step=int(str(manifest.get("step", 0))), folder=folder,
        variants=chosen, files=tuple(file for file in files if "/" not in file.path or file.path.split("/")[0] in chosen),
        manifest=manifest, verdicts=verdicts,
    )  # fmt: skip


def first_that_fits(patterns: Sequence[str], there: Sequence[str]) -> str | None:
    """The variant that a kind of target takes first; None where it can take none."""
    return next((name for pattern in patterns for name in there if fnmatch.fnmatchcase(name, pattern)), None)


def _files(folder: Path, manifest: Json, pace: Pace) -> list[SourceFile]:
    files = []
    for entry in manifest["files"] if isinstance(manifest["files"], list) else ():
        path = PurePosixPath(str(entry["path"]))
        if path.is_absolute() or ".." in path.parts:
            raise Permanent(FaultCode.DELIVERY_SOURCE, READ, f"{MANIFEST} names {quoted(path)}", "export it again", path=folder)
        files.append(SourceFile(str(path), folder / path, int(entry["size"]), str(entry["sha256"]), pace))
    return files


def changed(path: Path) -> Permanent:
    """The error of a file that is not the manifest's any more."""
    return Permanent(
        FaultCode.DELIVERY_SOURCE, READ, "its contents are no longer those of the manifest",
        "run `ckptd verify`, and export the checkpoint again", path=path,
    )  # fmt: skip


def gone(path: Path, error: OSError) -> Permanent | Retryable | Exception:
    """The error of a file that can't be read: one that is not there was removed or replaced, everything else is the system's."""
    if isinstance(error, FileNotFoundError) and path.parent.is_dir():
        return Permanent(FaultCode.DELIVERY_SOURCE, READ, "the export was removed or replaced", "export the checkpoint again", path=path)
    return from_oserror(error, READ, str(path))
