"""What an export's folder may be called: names of runs made safe beside our own words. Pure functions of names.

Called by `daemon.watching.taking.places`, which asks the journal and the disk too, by `daemon.publishing` and `ckptd status`. Names come
from directories that anybody who trains can make, and are used beside names of ours: links, failed exports, staging, manifests.
"""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.values import digest_of

LONGEST = 180
"""Bytes of a name that a run gives: a file system's 255 less what we put around it (`~digest`, a step, `-digest`, `.failed`, set aside)."""
MARK = 6
"""Hexadecimal digits that tell two names apart."""
FAILED_SUFFIX = ".failed"
KEEP = ".keep-"
"""What the name of the link begins with by which an export is kept (`daemon.publishing.keeping`)."""
_OURS = re.compile(r"latest|best|final(?:-[0-9a-f]{8})?|step-[0-9]+(?:-[0-9a-f]{8})?|.*\.failed|.*\.before-ckptd-.*")
"""Names that lie in a run's folder."""
_MARKED = re.compile(rf".*~[0-9a-f]{{{MARK}}}", re.DOTALL)


def folder_of(target: Path, state: str) -> Path:
    """Where an export goes that ends so. A failed one never takes the place of a good one."""
    return target.with_name(target.name + FAILED_SUFFIX) if state == "failed" else target


def is_kept(export: Path) -> bool:
    """Whether `ckptd prune --keep` named an export."""
    link = export.with_name(KEEP + export.name)
    return link.is_symlink() and os.path.realpath(link) == os.path.realpath(export)


def folded(name: str) -> str:
    """What file systems that don't tell cases, spellings of a letter, invisible characters or trailing dots apart make of a name."""
    if not name.isascii():
        name = unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())
        name = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return name.casefold().rstrip(" .")


def marked(name: str, *origin: str) -> str:
    """The name with a digest of `origin` at its end, cut so that it is no longer than `LONGEST` bytes."""
    mark = f"~{digest_of([ascii(part) for part in origin])[:MARK]}"
    return _cut(name, LONGEST - len(mark)) + mark


def is_marked(name: str) -> bool:
    """Whether a name ends as `marked` makes it."""
    return _MARKED.fullmatch(name) is not None


def clipped(name: str) -> str:
    """The name; one that is longer than `LONGEST` bytes is cut and marked."""
    return name if len(_bytes(name)) <= LONGEST else marked(name, name)


def safe_run(run: str, naming: str) -> str:
    """A run's name as its exports' folder by `output.naming`: below the output, no word of ours, and short enough.

    Where a run lies in another one, its name could be that of the other's export or link; a first part has nobody beside it but runs,
    unless `naming` puts runs into folders.
    """
    parts, inner = run.split("/"), "/{run}" in naming
    return "/".join(_safe(part, "/".join(parts[: number + 1]), inner=inner or number > 0) for number, part in enumerate(parts))


def safe_part(text: str) -> str:
    """Any text as one part of an export's path, below others."""
    return _safe(text.replace("/", "-"), text, inner=True)


def _safe(part: str, path: str, *, inner: bool) -> str:
    key = folded(part)
    if not key or key.startswith(".") or key == folded(MANIFEST) or "\0" in part or (inner and _OURS.fullmatch(key)):
        return marked(part.replace("\0", "").lstrip(" .") or "run", path)
    return part if len(_bytes(part)) <= LONGEST else marked(part, path)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _cut(name: str, size: int) -> str:
    """As many whole letters as fit into so many bytes."""
    return _bytes(name)[:size].decode("utf-8", "ignore") if len(_bytes(name)) > size else name
