"""Compares a published export with its MANIFEST.json. Every difference is reported, not only the first.

Called by `ckptd verify`, by `daemon.operating.integrity.fsck` and by tests. The folder is opened once and read through that handle, so
that an export which is replaced meanwhile is never mixed with its successor; links are never followed, and a
manifest that names a path outside the folder is refused without touching it. Memory is bounded: files are hashed in
blocks. A manifest proves what was published, not who published it: it is not signed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from daemon.contract.disk.export_layout import MANIFEST, MANIFEST_LIMIT, MANIFEST_VERSION
from daemon.contract.disk.files import FileEntry
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json

_BLOCK = 1 << 22
_LOOKS = 5
_LINK = "symlink"


@dataclass(frozen=True)
class Problem:
    """One difference. `path` is relative to the export."""

    code: str
    path: str
    text: str
    remedy: str | None = None
    """What to do, if this is not to make the export again."""

    def sentence(self) -> str:
        """The difference in words."""
        return f"{self.path}: {self.text}" + (f". Fix: {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class Verification:
    """The result for one export. `files` and `bytes`: the number and size of the files in the manifest that were compared."""

    folder: Path
    export: str | None
    status: str | None
    problems: tuple[Problem, ...]
    files: int
    bytes: int
    seconds: float

    @property
    def sound(self) -> bool:
        """Whether nothing differs."""
        return not self.problems


@dataclass
class _Look:
    """The work on one open folder. `inside`: only what lies below this part of the export."""

    folder: Path
    root: int
    inside: str
    deep: bool
    on_bytes: Callable[[int], None]
    problems: list[Problem] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def add(self, code: str, path: str, text: str, remedy: str | None = None) -> None:
        self.problems.append(Problem(code, path, text, remedy))


def verify(folder: Path, *, inside: str = "", deep: bool = True, on_bytes: Callable[[int], None] = lambda count: None) -> Verification:
    """Compare the export in `folder` with its manifest.

    `inside`: only this folder of it. `deep`: contents too, not only names and sizes. `on_bytes` is called with the size of every block
    read. Raises OSError where the folder itself can't be opened.
    """
    began = time.monotonic()
    for left in reversed(range(_LOOKS)):
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            look = _Look(folder, root, inside.strip("/"), deep, on_bytes)
            manifest = _compare(look)
            if not look.problems or not left or _is_still(root, folder):
                break
        finally:
            os.close(root)
    name, status = manifest.get("export_id"), manifest.get("status")
    return Verification(
        folder, name if isinstance(name, str) else None, status if isinstance(status, str) else None,
        tuple(sorted(look.problems, key=lambda problem: problem.path)), look.files, look.bytes, round(time.monotonic() - began, 3),
    )  # fmt: skip


def _is_still(root: int, folder: Path) -> bool:
    """Whether the name still stands for what was opened; else it was replaced meanwhile, and the new one is looked at."""
    try:
        return os.path.samestat(os.fstat(root), os.stat(folder))
    except OSError:
        return False


def _compare(look: _Look) -> Json:
    names = _walk(look)
    manifest = _manifest(look, names)
    entries = _entries(look, manifest)
    if entries is None:
        return manifest
    others = _exports_inside(look, names - entries.keys() - {MANIFEST})
    for path in sorted(names - entries.keys() - {MANIFEST}):
        if _is_inside(look, path) and not any(path.startswith(f"{other}/") for other in others):
            look.add("extra", path, "exists, but the manifest does not name it")
    for path, entry in entries.items():
        if _is_inside(look, path):
            look.files += 1
            look.bytes += entry.size
            if path in names:
                _compare_file(look, entry)
            elif not any(problem.path == path for problem in look.problems):
                look.add("missing", path, "the manifest names it, but it does not exist")
    return manifest


def _exports_inside(look: _Look, unnamed: set[str]) -> list[str]:
    """Folders of exports that lie in this one, as people put them; each is a problem.

    Links that lead to them, the ones of their run, are a part of that problem.
    """
    names: list[str] = []
    for path in sorted((path for path in unnamed if path.endswith(f"/{MANIFEST}")), key=len):
        inner = path.removesuffix(f"/{MANIFEST}")
        if not any(inner.startswith(f"{other}/") for other in names):
            names.append(inner)
    for inner in filter(lambda inner: _is_inside(look, inner), names):
        there = look.folder.with_name(f"{look.folder.name}-{inner.replace('/', '-')}")
        move = f"`mv {shlex.quote(str(look.folder / inner))} {shlex.quote(str(there))}`, after which both can be verified"
        look.add("inside", inner, "is another export, complete or not, that was put into this one", move)
    links = {problem.path for problem in look.problems if problem.code == _LINK and _leads_to(look, problem.path) in names}
    look.problems = [
        replace(problem, text="is a link to an export inside this one", remedy=f"`rm {shlex.quote(str(look.folder / problem.path))}`")
        if problem.path in links else problem for problem in look.problems
    ]  # fmt: skip
    return names


def _leads_to(look: _Look, link: str) -> str:
    """Where a link below the export leads to, as a path below it; "" for one that can't be read."""
    try:
        return os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link, dir_fd=look.root)))
    except OSError:
        return ""


def _is_inside(look: _Look, path: str) -> bool:
    return not look.inside or path.startswith(look.inside + "/")


def _walk(look: _Look) -> set[str]:
    """The regular files below the folder; links and special files are problems."""
    files = set[str]()

    def unreadable(error: OSError) -> None:
        look.add("unreadable", str(error.filename or "."), error.strerror or str(error))

    for directory, folders, names, handle in os.fwalk(".", dir_fd=look.root, onerror=unreadable):
        for name in [*names, *folders]:
            path = PurePosixPath(directory, name).as_posix()
            try:
                mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
            except OSError as error:
                look.add("unreadable", path, error.strerror or str(error))
                continue
            if stat.S_ISREG(mode):
                files.add(path)
            elif _is_inside(look, path) and stat.S_ISLNK(mode):
                look.add(_LINK, path, "is a symbolic link, which an export never contains")
            elif _is_inside(look, path) and not stat.S_ISDIR(mode):
                look.add("special", path, "is neither a file nor a folder")
    return files


@contextlib.contextmanager
def _opened(look: _Look, path: str) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=look.root)
    try:
        yield handle
    finally:
        os.close(handle)


def _manifest(look: _Look, names: set[str]) -> Json:
    """The manifest as an object; {} with the problem where it is none."""
    if MANIFEST not in names:
        if not any(problem.path == MANIFEST for problem in look.problems):
            look.add("no-manifest", MANIFEST, "is missing: this is not an export, or not a complete one")
        return {}
    try:
        with _opened(look, MANIFEST) as handle:
            if os.fstat(handle).st_size > MANIFEST_LIMIT:
                raise ValueError(f"it is larger than {MANIFEST_LIMIT >> 20} MiB")
            with open(handle, "rb", closefd=False) as stream:
                value = json.loads(stream.read(MANIFEST_LIMIT))
        if not isinstance(value, dict):
            raise ValueError("it is not an object")
        return value
    except OSError as error:
        look.add("unreadable", MANIFEST, error.strerror or str(error))
    except (ValueError, RecursionError) as error:
        look.add("manifest-malformed", MANIFEST, f"is not a manifest: {error}")
    return {}


def _entries(look: _Look, manifest: Json) -> dict[str, FileEntry] | None:
    """Path → what the manifest says of it; None where it can't be gone by at all."""
    if not manifest:
        return None
    version = manifest.get("manifest_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        look.add("manifest-malformed", MANIFEST, f"its manifest_version is {version!r}")
        return None
    if version > MANIFEST_VERSION:
        look.add("manifest-newer", MANIFEST, f"is of version {version}; this ckptd knows {MANIFEST_VERSION}: verify it with a newer one")
        return None
    if not isinstance(rows := manifest.get("files"), list):
        look.add("manifest-malformed", MANIFEST, "has no list of files")
        return None
    entries: dict[str, FileEntry] = {}
    for row in rows:
        try:
            entry = FileEntry.model_validate(row, strict=True)
        except ValidationError:
            look.add("manifest-malformed", MANIFEST, f"has an entry that can't be read: {json.dumps(row)[:200]}")
            continue
        if not _is_proper(entry.path):
            look.add("path-refused", entry.path, "is not a plain path inside the export; it was not checked")
        elif entry.path in entries:
            look.add("manifest-malformed", entry.path, "is named twice")
        else:
            entries[entry.path] = entry
    return entries


def _is_proper(path: str) -> bool:
    parts = path.split("/")
    return bool(path) and "\0" not in path and all(part not in ("", ".", "..") for part in parts) and path != MANIFEST


def _compare_file(look: _Look, entry: FileEntry) -> None:
    try:
        with _opened(look, entry.path) as handle:
            size = os.fstat(handle).st_size
            if size != entry.size:
                look.add("size", entry.path, f"has {size} bytes instead of {entry.size}")
            elif look.deep and (digest := _digest(handle, look.on_bytes)) != entry.sha256:
                look.add("content", entry.path, f"has other content (sha256 {digest[:16]}… instead of {entry.sha256[:16]}…)")
    except OSError as error:
        look.add("unreadable", entry.path, error.strerror or str(error))


def _digest(handle: int, on_bytes: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    while block := os.read(handle, _BLOCK):
        digest.update(block)
        on_bytes(len(block))
    return digest.hexdigest()


def _by_number(name: str) -> list[tuple[int, str]]:
    parts = enumerate(re.split(r"([0-9]+)", name))
    return [(int(part), "") if place % 2 else (-1, part) for place, part in parts]


def exports_below(path: Path) -> Iterator[Path]:
    """Every export below a folder (or the folder itself), step-2 before step-10; hidden folders and links below it are left out."""
    if os.path.lexists(path / MANIFEST):
        yield path
        return
    with os.scandir(path) as listed:
        entries = sorted(listed, key=lambda entry: _by_number(entry.name))
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            with contextlib.suppress(PermissionError, FileNotFoundError):
                yield from exports_below(Path(entry.path))


def to_verify(path: Path) -> list[tuple[Path, str]]:
    """What `ckptd verify PATH` means: (export, the folder in it or "") of an export, one folder of it, or all below.

    Raises UsageError where there is no such path, or no export at it.
    """
    operation = "verify"
    if not path.exists():
        raise UsageError(FaultCode.NO_SUCH_PATH, operation, "there is no such path", "check the path", path=path)
    if not path.is_dir():
        raise UsageError(FaultCode.NOT_A_DIRECTORY, operation, "it is a file", "give the folder of an export", path=path)
    if exports := list(exports_below(path)):
        return [(export, "") for export in exports]
    whole = Path(os.path.realpath(path))
    for parent in whole.parents:
        if os.path.lexists(parent / MANIFEST):
            return [(parent, whole.relative_to(parent).as_posix())]
    raise UsageError(
        FaultCode.NO_EXPORT, operation, f"there is no {MANIFEST} in it, below or above it",
        "give the folder of an export, of a run, or the output", path=path,
    )  # fmt: skip
