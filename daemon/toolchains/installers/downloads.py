"""What was fetched for a toolchain, in a folder that outlives the attempt: an interrupted installation goes on with it.

The folder `.NAME.wheels-DIGEST` beside the toolchains belongs to one set of locked packages and one configuration of pip. Its record
gets a line when a wheel is whole, with the wheel's digest; what does not have it any more is fetched again. Used by `pip` beside this file,
under the toolchain's lock, and by `daemon.toolchains.install`, which removes the folder when the toolchain is there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.disk import failpoints
from daemon.contract.disk.files import files_below, fsync_directory, fsync_file, make_folders, remove_tree, sha256_file
from daemon.contract.values import digest_of
from daemon.toolchains.installers.attempt import Build


@dataclass(frozen=True)
class Fetched:
    """A wheel that came whole. `requirement`: the line that asked for it."""

    requirement: str
    file: str
    sha256: str
    size: int


def of(home: Path, name: str) -> list[Path]:
    """The folders of a toolchain's downloads; there is more than one only after a change of what is to be fetched."""
    return sorted(home.glob(f".{name}.wheels-*"))


def size_of(home: Path, name: str) -> int:
    """Bytes that lie in them."""
    return sum(path.stat().st_size for folder in of(home, name) for path in files_below(folder))


@dataclass(frozen=True)
class Downloads:
    """One such folder."""

    folder: Path

    @classmethod
    def begin(cls, build: Build, *what: object) -> Downloads:
        """The folder for what is to be fetched, with what an earlier attempt has left in it; those for anything else are removed."""
        digest = digest_of([build.definition.digest, *what])[:12]
        downloads = cls(build.folder.parent / f".{build.definition.name}.wheels-{digest}")
        for folder in of(build.folder.parent, build.definition.name):
            if folder != downloads.folder:
                remove_tree(folder)
        for folder in (downloads.passing, downloads.parts):
            remove_tree(folder)
            make_folders(folder)
        make_folders(downloads.wheels)
        return downloads

    @property
    def wheels(self) -> Path:
        """Whole wheels."""
        return self.folder / "wheels"

    @property
    def parts(self) -> Path:
        """A folder a wheel that is on its way."""
        return self.folder / "parts"

    @property
    def passing(self) -> Path:
        """Where large files pass through: on the disk that was looked at."""
        return self.folder / "tmp"

    @property
    def _record(self) -> Path:
        return self.folder / "fetched.jsonl"

    def kept(self) -> list[Fetched]:
        """What an earlier attempt has fetched and is as it was; the rest is removed."""
        recorded = {wheel.file: wheel for wheel in self._read_record()}
        whole = [wheel for wheel in recorded.values() if self._is_whole(wheel)]
        for path in self.wheels.iterdir():
            if path.name not in {wheel.file for wheel in whole}:
                path.unlink()
        return whole

    def _read_record(self) -> list[Fetched]:
        try:
            lines = self._record.read_text(errors="replace", encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        wheels = []
        for line in lines:
            try:
                wheels.append(Fetched(**json.loads(line)))
            except (ValueError, TypeError):
                continue  # the power failed while it was written
        return wheels

    def _is_whole(self, wheel: Fetched) -> bool:
        path = self.wheels / wheel.file
        return path.is_file() and path.stat().st_size == wheel.size and sha256_file(path) == wheel.sha256

    def take(self, requirement: str, part: Path) -> Fetched:
        """Put the wheel that lies whole in `part` to the others, and record it."""
        (file,) = part.glob("*.whl")
        wheel = Fetched(requirement, file.name, sha256_file(file), file.stat().st_size)
        fsync_file(file)
        os.replace(file, self.wheels / file.name)
        fsync_directory(self.wheels)
        with open(self._record, "a", encoding="utf-8") as stream:
            stream.write("\n" + json.dumps(vars(wheel)))
            stream.flush()
            os.fsync(stream.fileno())
        remove_tree(part)
        failpoints.point("toolchain.fetched")
        return wheel

    def write(self, name: str, lines: Sequence[str]) -> Path:
        """A file of lines in the folder."""
        path = self.folder / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path
