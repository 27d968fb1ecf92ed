"""Whether an environment's files are those that its packages brought, by the record that each package has of its files.

Called by `build` when the packages are there, and by `daemon.toolchains.install` when it checks a toolchain.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from daemon.contract.disk.files import sha256_file

SHOWN = 3


def differing(folder: Path) -> dict[str, str]:
    """Path below the environment → what is wrong with it: "is missing", "was changed". What two packages bring is right as in either.

    What Python compiles and the commands in `bin`, which are left out of toolchains, are not looked at.
    """
    expected: dict[Path, set[str]] = {}
    for path, digest in _recorded(folder):
        expected.setdefault(path, set()).add(digest)
    faults = {}
    for path, digests in expected.items():
        if not path.is_file():
            faults[path] = "is missing"
        elif "" not in digests and not any(_has(path, digest) for digest in digests):
            faults[path] = "was changed"
    return {path.relative_to(folder).as_posix(): wrong for path, wrong in sorted(faults.items())}


def summarize(faults: dict[str, str]) -> str:
    """The same as the end of a sentence: the first files by name, and how many there are."""
    names = [f"{Path(name).relative_to(_above(name))} {wrong}" for name, wrong in list(faults.items())[:SHOWN]]
    more = f", and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    return f"{', '.join(names)}{more}"


def _above(name: str) -> Path:
    """What stands before the part of a path that says something: the folder of all packages."""
    return next((parent for parent in Path(name).parents if parent.name == "site-packages"), Path())


def _recorded(folder: Path) -> Iterator[tuple[Path, str]]:
    """File and digest ("" where there is none) of each line of all records."""
    for site in _sites(folder):
        for record in sorted(site.glob("*.dist-info/RECORD")):
            with open(record, newline="", encoding="utf-8", errors="replace") as stream:
                for name, digest, *_ in (row for row in csv.reader(stream) if len(row) >= 2):
                    path = Path(os.path.normpath(site / name))
                    if folder in path.parents and folder / "bin" not in path.parents and path.suffix != ".pyc":
                        yield path, digest


def _sites(folder: Path) -> Iterable[Path]:
    return (path for path in sorted(folder.glob("lib*/python*/site-packages")) if not path.parents[1].is_symlink())


def _has(path: Path, digest: str) -> bool:
    """Whether a file has the digest of a record: `sha256=…`, or another that hashlib knows, in base64 without its padding."""
    name, _, text = digest.partition("=")
    if name == "sha256":
        checksum = bytes.fromhex(sha256_file(path))
    elif name in hashlib.algorithms_available:
        with open(path, "rb", buffering=0) as stream:
            checksum = hashlib.file_digest(stream, name).digest()
    else:
        return True
    return base64.urlsafe_b64encode(checksum).rstrip(b"=").decode() == text.rstrip("=")
