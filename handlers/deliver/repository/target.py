"""A folder of models as a target: versions are put together beside it and renamed into it, whole; then one small file or link moves.

Contents lie by digest in the folder beside the repository, and versions have links of them: nothing lies there twice. A lock there lets
deliveries of this kind move the name one after the other, and keeps contents from being taken away that another delivery has just put.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from daemon.contract.delivering.orders import Listed, Move, Receipt
from daemon.contract.disk.files import fsync_directory
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.locks import locked
from handlers.deliver.names import of_run
from handlers.deliver.repository import signature, triton
from handlers.deliver.repository.declaration import KIND, RepositoryOptions
from handlers.deliver.servers.shelf import ABOUT, PARTS, Shelf
from handlers.deliver.target import Setting
from handlers.deliver.version import SourceFile, Version, first_that_fits

LATEST = "latest"
WRITE = "write into the model repository"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Repository:
    """The target."""

    def __init__(self, setting: Setting) -> None:
        self._options = RepositoryOptions.model_validate(setting.options)
        self._folder = Path(self._options.folder)
        self._shelf = Shelf(str(self._options.workplace))
        self._using: Any = None

    def close(self) -> None:
        """Let contents that nobody has be taken away again."""
        if self._using is not None:
            self._using.close()

    def look(self) -> None:
        """Find out whether both folders can be written, and lie on one file system. Raises Permanent."""
        for folder in (self._folder, self._shelf.folder.parent):
            if not os.access(folder, os.W_OK | os.X_OK):
                raise _refused(f"{folder} is not there or can't be written")
        if self._folder.stat().st_dev != self._shelf.folder.parent.stat().st_dev:
            raise _refused(f"{self._shelf.folder.parent} is on another file system")

    def part(self, version: Version) -> Version:
        """The variant that is served. Raises Permanent where there is none."""
        is_triton = self._options.layout == "triton"
        variant = first_that_fits([each for each in KIND.variants if not is_triton or "genai" not in each], version.variants)
        if variant is None:
            raise _source(f"the export has only {', '.join(version.variants)}", version)
        return version.of(variant)

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Let the contents lie beside the repository."""
        if self._using is None:
            self.look()
            self._shelf.folder.mkdir(exist_ok=True)
            self._using = (self._shelf.folder / "used").open("wb")
            fcntl.flock(self._using, fcntl.LOCK_SH)
        return self._shelf.put(file, sent)

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        """They as they lie there."""
        return self._shelf.read(file)

    def finish(self, version: Version, move: Move) -> Receipt:
        """Rename the version into the repository, and serve it."""
        is_triton, model = self._options.layout == "triton", of_run(self._options.model, version.run)
        name = str(version.step) if is_triton else version.name
        text = self._config(model, version) if is_triton else ""
        place = self._folder / model / name
        with self._alone():
            self._rename_in(version, place, text, move)
            why = self._move(version, place, text, move)
            self._shelf.tidy()
        shown = f"model_name={model}, version {name}" if is_triton else f"og.Model({str(place)!r})"
        return Receipt(version=f"{model}/{name}", place=str(place), moved=not why, why_not_moved=why, usage=shown)

    def _config(self, model: str, version: Version) -> str:
        """Triton's configuration. Raises Permanent for what its backend can't run as it is."""
        if version.step < 1:
            raise _source("Triton's versions begin with 1, and this is step 0", version)
        (variant,) = version.variants
        graphs = [file for file in version.files if file.path.endswith(".onnx")]
        if [file.path for file in graphs] != [f"{variant}/{triton.GRAPH}"]:
            raise _source(f"{variant} has {len(graphs)} graphs where Triton takes one {triton.GRAPH}", version)
        try:
            return triton.config(model, *signature.ports(self._shelf.folder / PARTS / graphs[0].sha256), version.step)
        except ValueError as error:
            raise _source(f"{graphs[0].path} can't be served: {error}", version) from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Alone among deliveries to this repository."""
        self._shelf.folder.mkdir(exist_ok=True)
        with locked(self._shelf.folder / "lock"):
            yield

    def _rename_in(self, version: Version, place: Path, text: str, move: Move) -> None:
        """Let the version lie in its place, with its model's folder if that is not there. Raises Permanent where another has the place."""
        if os.path.lexists(place):
            if (about := Shelf(str(place.parent)).about(place.name)) is None or about.get("digest") != version.digest:
                raise Permanent(
                    FaultCode.DELIVERY_CONFLICT, WRITE, f"{place} is another version", "remove that version",
                    path=place,
                )  # fmt: skip
            return
        made = self._shelf.make(version)
        self._sign(made, version)
        if place.parent.is_dir():
            made.rename(place)
            fsync_directory(place.parent)
            return
        with tempfile.TemporaryDirectory(dir=self._shelf.folder, prefix=".new-") as scratch:
            (fresh := Path(scratch) / place.parent.name).mkdir()
            fresh.chmod(made.stat().st_mode & 0o777)
            made.rename(fresh / place.name)
            if text:
                # A model without a configuration is served as Triton thinks best; 0 is no version.
                (fresh / triton.FILE).write_text(triton.serving(text, 0 if move == "keep" else version.step), encoding="utf-8")
            fresh.rename(place.parent)
        fsync_directory(self._folder)

    @staticmethod
    def _sign(made: Path, version: Version) -> None:
        """Let the version's record say which contents it has."""
        about = {"run": version.run, "step": version.step, "export": version.export, "digest": version.digest}
        (made / f"{ABOUT}.new").write_text(json.dumps(about), encoding="utf-8")
        (made / f"{ABOUT}.new").replace(made / ABOUT)

    def _move(self, version: Version, place: Path, text: str, move: Move) -> str:
        """Serve the version; gives why not, "" where it is served."""
        current = self._current(place.parent)
        if move == "keep" and current != place.name:
            return "the order leaves what is served as it is"
        about = Shelf(str(place.parent)).about(current) if current else None
        if move == "move" and about and about.get("run") == version.run and int(about.get("step", 0)) > version.step:
            return f"step {about['step']} is served, which is later"
        if move == "move" and current is None and self._is_theirs(place.parent):
            return f"{triton.FILE if text else LATEST} is not ckptd's"
        if current != place.name or text:
            self._lead(place, text)
        return ""

    def _current(self, model: Path) -> str | None:
        """The version that is served; None where that is not known."""
        try:
            if self._options.layout == "genai":
                return os.readlink(model / LATEST)
            number = triton.served((model / triton.FILE).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return None if number is None else str(number)

    def _is_theirs(self, model: Path) -> bool:
        return os.path.lexists(model / (LATEST if self._options.layout == "genai" else triton.FILE))

    def _lead(self, place: Path, text: str) -> None:
        """Let the link or the configuration name the version; a reader sees the one before or this."""
        with tempfile.TemporaryDirectory(dir=self._shelf.folder, prefix=".new-") as scratch:
            fresh, goal = Path(scratch) / "fresh", place.parent / (triton.FILE if text else LATEST)
            if text:
                old = goal.read_text("utf-8") if goal.is_file() else ""
                same = triton.served(old) is not None and all(block in old for block in text.split("\n", 4)[4:])
                fresh.write_text(triton.serving(old, int(place.name)) if same else text, encoding="utf-8")
                if same and old == fresh.read_text("utf-8"):
                    return
            else:
                fresh.symlink_to(place.name)
            fresh.replace(goal)
        fsync_directory(place.parent)

    def list(self, run: str) -> Sequence[Listed]:
        """Folders with our record."""
        rows = []
        for model in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            if not model.is_dir() or model.is_symlink():
                continue
            current = self._current(model)
            for row in Shelf(str(model)).versions(run, lambda name, of: False):
                if row.version == LATEST:  # the link
                    continue
                rows.append(row.model_copy(update={"version": f"{model.name}/{row.version}", "current": row.version == current}))
        return sorted(rows, key=lambda row: (row.run, row.step, row.version))

    def remove(self, version: str) -> None:
        """Take a version away, and contents that no other has."""
        model, _, name = version.partition("/")
        if not NAME.fullmatch(model) or not NAME.fullmatch(name) or name == LATEST or Shelf(str(self._folder / model)).about(name) is None:
            return
        with self._alone():
            if self._current(self._folder / model) == name:
                cause = "it is served"
                raise Permanent(FaultCode.DELIVERY_CONFLICT, f"remove {version}", cause, "let another version be served first")
            with tempfile.TemporaryDirectory(dir=self._shelf.folder, prefix=".old-") as scratch:
                (self._folder / model / name).rename(Path(scratch) / "old")
            self._clear()

    def _clear(self) -> None:
        """Take contents away that no version has, unless another delivery is at work."""
        with (self._shelf.folder / "used").open("wb") as used:
            try:
                if self._using is not None:
                    fcntl.flock(self._using, fcntl.LOCK_EX | fcntl.LOCK_NB)
                else:
                    fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            for part in (self._shelf.folder / PARTS).glob("*"):
                if part.stat().st_nlink == 1:
                    part.unlink()
            for left in self._shelf.folder.glob("*-*"):  # of deliveries that were killed
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)


def _refused(cause: str) -> Permanent:
    remedy = "make the folder, give the service's user the right to write there (`ReadWritePaths=` too), or set the target's `staging`"
    return Permanent(FaultCode.DELIVERY_REFUSED, WRITE, cause, remedy)


def _source(cause: str, version: Version) -> Permanent:
    remedy = "name another variant in the target's `variants`, or add one to export.variants"
    return Permanent(FaultCode.DELIVERY_SOURCE, WRITE, cause, remedy, path=version.folder)
