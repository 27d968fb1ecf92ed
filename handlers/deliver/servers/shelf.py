"""The folder from which a server loads models: contents by digest while they are sent, then a folder a version, made whole by one rename.

The folder may be one that this machine shares with the server's; `seen_at` of the target says what the server calls it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from daemon.contract.delivering.orders import Listed
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.deliver.locks import has_name, locked
from handlers.deliver.version import BLOCK, SourceFile, Version

PARTS = ".parts"
"""Contents by digest; version folders have links to them."""
ABOUT = ".ckptd.json"
"""In each version folder that is ours: run, step and export."""
LOCK = ".lock"
OLD = 86_400.0
"""Seconds after which what an attempt left is let go."""


class Shelf:
    """That folder."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def look(self) -> None:
        """Raise Permanent where it can't be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            remedy = "give the service's user the right to write there (`ReadWritePaths=` too), or name another folder"
            cause = f"it can't be written: {error.strerror or error}"
            raise Permanent(FaultCode.DELIVERY_REFUSED, "look at the server's folder", cause, remedy, path=self.folder) from error

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Let the contents lie there; gives bytes that did already."""
        place = self._part(file)
        if place.is_file() and place.stat().st_size == file.size:
            return file.size
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_name(f".new-{file.sha256}")  # whoever is killed leaves it to the next attempt
        while True:
            with locked(new, 0o600) as handle:
                if not has_name(handle, new):
                    continue
                if place.is_file() and place.stat().st_size == file.size:  # another process wrote it meanwhile
                    new.unlink()
                    return file.size
                try:
                    self._fill(handle, file, sent)
                except BaseException:
                    new.unlink()
                    raise
                new.replace(place)
                return 0

    @staticmethod
    def _fill(handle: int, file: SourceFile, sent: Callable[[int], None]) -> None:
        os.ftruncate(handle, 0)
        with open(handle, "wb", closefd=False) as target, file.open() as source:
            while part := source.read(BLOCK):
                target.write(part)
                sent(len(part))
        # The server may run as another user: what the export lets others read, this does too.
        os.fchmod(handle, file.source.stat().st_mode & 0o666)
        os.fsync(handle)

    def read(self, file: SourceFile) -> Iterator[bytes]:
        """The contents as they lie there."""
        with self._part(file).open("rb") as source:
            while part := source.read(BLOCK):
                yield part

    def make(self, version: Version) -> Path:
        """Make the version's folder, whole or not at all; gives it. One that is there is the same by its name."""
        folder = self.folder / version.name
        if (folder / ABOUT).is_file():
            return folder
        new = Path(tempfile.mkdtemp(dir=self.folder, prefix=".new-"))
        try:
            for file in version.files:
                target = new.joinpath(*PurePosixPath(file.path).parts[1:])
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(self._part(file), target)
            about = {"run": version.run, "step": version.step, "export": version.export}
            (new / ABOUT).write_text(json.dumps(about), encoding="utf-8")
            new.chmod((version.folder / version.variants[0]).stat().st_mode & 0o777)
            try:
                new.rename(folder)
            except OSError:
                if not (folder / ABOUT).is_file():  # another process made it, or something of somebody else's lies there
                    raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return folder

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process of this machine changes what is served."""
        with locked(self.folder / LOCK):
            yield

    def tidy(self) -> None:
        """Let go of what ended attempts left: folders at once, as they are made by who is alone, and contents after a day."""
        for path in (*self.folder.glob(".new-*"), *self.folder.glob(".old-*")):
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.folder / PARTS).glob("*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                if time.time() - status.st_mtime > OLD and status.st_nlink == 1:
                    path.unlink()

    def about(self, name: str) -> Json | None:
        """What is known of a version; None where it is none of ours."""
        path = PurePosixPath(name)
        if len(path.parts) != 1 or name.startswith("."):
            return None
        try:
            about = json.loads((self.folder / name / ABOUT).read_bytes())
        except (OSError, ValueError):
            return None
        fitting = isinstance(about, dict) and isinstance(about.get("run"), str) and isinstance(about.get("step"), int)
        return about if fitting else None

    def versions(self, run: str, is_current: Callable[[str, str], bool]) -> list[Listed]:
        """Those of a run, or all, oldest first. `is_current`: whether people are served that version of that run."""
        rows = []
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            if (about := self.about(folder.name)) is not None and run in ("", about["run"]):
                current = is_current(folder.name, about["run"])
                rows.append(
                    Listed(version=folder.name, run=about["run"], step=about["step"], export=str(about.get("export")), current=current)
                )
        return sorted(rows, key=lambda row: (row.step, row.version))

    def remove(self, name: str, keep_contents: bool = False) -> None:
        """Take a version's folder away, and contents that no other has; nothing where it is none of ours."""
        if self.about(name) is None:
            return
        gone = Path(tempfile.mkdtemp(dir=self.folder, prefix=".old-"))
        (self.folder / name).rename(gone / name)
        inodes = set() if keep_contents else {path.stat().st_ino for path in gone.rglob("*") if path.is_file()}
        shutil.rmtree(gone, ignore_errors=True)
        for part in (self.folder / PARTS).glob("*") if inodes else ():
            with contextlib.suppress(OSError):
                if (status := part.stat()).st_ino in inodes and status.st_nlink == 1:
                    part.unlink()

    def newer(self, version: Version, name: str) -> str:
        """Why people who are served that version must not be served this one, as a clause; "" where they may."""
        about = self.about(name) if name else None
        if about and about["run"] == version.run and about["step"] > version.step:
            return f"people are served step {about['step']}, which is later"
        return ""

    def _part(self, file: SourceFile) -> Path:
        return self.folder / PARTS / file.sha256
