"""A kind of delivery that another package could bring: a folder of this machine, in which a version is a folder and `latest` a link.

Installed for a test by `installed`, as pip would do it. With `stubborn` its far end refuses and tells the secret, as libraries do.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.delivering.orders import Listed, Move, Receipt
from daemon.contract.frozen import Frozen
from tests import verbs

ROOT = Path(__file__).parents[2]


class ShelfOptions(Frozen):
    """Keys of a shelf."""

    folder: Path
    """Where versions lie."""
    stubborn: bool = False
    """Whether it refuses everything."""
    slow: float = 0.0
    """Seconds that each call takes."""


KIND = DeliveryKind(name="shelf", about="a folder of this machine", options=ShelfOptions, entry="tests.deliver.shelf:Shelf")


def installed(folder: Path) -> dict[str, str]:
    """Install the kind into a folder, once; gives the variables by which ckptd and what it starts find it."""
    info = folder / "shelf-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[ckptd.deliveries]\nshelf = tests.deliver.shelf:KIND\n")
    verbs.OFTEN.add(path := f"{folder}{os.pathsep}{ROOT}")
    return {"PYTHONPATH": path, "CKPTD_LIMITS__PASS_ENVIRONMENT": "PYTHONPATH"}


class Shelf:
    """The target."""

    def __init__(self, setting: object) -> None:
        from handlers.deliver.target import Setting

        assert isinstance(setting, Setting)
        self._options, self._secret = ShelfOptions.model_validate(setting.options), setting.secret
        self._folder = self._options.folder

    def look(self) -> None:
        """Refuse, where it is stubborn; take its time, where it is slow."""
        from handlers.deliver.far_end import error_of

        time.sleep(self._options.slow)
        if self._options.stubborn:
            raise error_of(403, "look at the shelf", f"the key {self._secret} opens nothing", str(self._folder))

    def put(self, file: object, sent: Callable[[int], None]) -> int:
        """Copy it to where nobody looks."""
        from handlers.deliver.version import SourceFile

        assert isinstance(file, SourceFile)
        self.look()
        place = self._folder / ".parts" / file.sha256
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.source, place)
        sent(file.size)
        return 0

    def read_back(self, file: object) -> Iterator[bytes]:
        """What was copied."""
        yield (self._folder / ".parts" / getattr(file, "sha256")).read_bytes()  # noqa: B009

    def finish(self, version: object, move: Move) -> Receipt:
        """Rename a folder into place, and the link."""
        from handlers.deliver.version import Version

        assert isinstance(version, Version)
        place, whole = self._folder / version.name, self._folder / f".new-{version.name}"
        if not place.exists():
            for file in version.files:
                (whole / file.path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self._folder / ".parts" / file.sha256, whole / file.path)
            whole.rename(place)
        if move != "keep":
            (self._folder / ".link").symlink_to(version.name)
            (self._folder / ".link").rename(self._folder / "latest")
        return Receipt(version=version.name, place=str(place), moved=move != "keep", usage=f"ls {place}")

    def list(self, run: str) -> Sequence[Listed]:
        """The folders."""
        self.look()
        latest = self._folder / "latest"
        current = os.readlink(latest) if latest.is_symlink() else ""
        names = sorted(entry.name for entry in self._folder.iterdir() if entry.is_dir() and not entry.name.startswith((".", "latest")))
        rows = [(name, *name.rsplit("-", 2)[:2]) for name in names]
        return [Listed(version=name, run=of, step=int(step), current=name == current) for name, of, step in rows if run in ("", of)]

    def remove(self, version: str) -> None:
        """Remove a folder."""
        shutil.rmtree(self._folder / version, ignore_errors=True)

    def close(self) -> None:
        """Nothing is held."""
