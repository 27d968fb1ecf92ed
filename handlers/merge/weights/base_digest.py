"""The digest of a base model: SHA-256 over its weight files and config.json, remembered between jobs.

Called by the merge. A base of many gigabytes is read once and not for every checkpoint: the digests of its files are kept
under a key of device, inode, size and modification time. A file changed within the clock's resolution and at
equal size is not noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from daemon.contract.files import write_atomic
from daemon.contract.values import digest_of
from handlers.models.files import file_key, weight_files

CACHE = "digests.json"
KEPT = 2000
"""Entries that the cache holds at most; the oldest go first."""
BLOCK = 1 << 20

Beat = Callable[[int], None]
"""Is told the bytes of each step; what it raises ends the work."""


def digest_file(path: Path, beat: Beat | None = None) -> str:
    """SHA-256 of a file's contents, in hex."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK))
    with open(path, "rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
            if beat is not None:
                beat(count)
    return digest.hexdigest()


def _remembered(path: Path) -> dict[str, str]:
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def _remember(path: Path, key: str, digest: str) -> None:
    """Noted file by file, so that an interruption costs one file's reading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    merged = {**_remembered(path), key: digest}
    write_atomic(path, json.dumps(dict(list(merged.items())[-KEPT:]), indent=0), durable=False)


def base_digest(folder: Path, cache: Path | None = None, beat: Beat | None = None) -> str:
    """Digest, in hex, of the model in `folder`, from the names and contents of its weight files, index and config.json."""
    files = weight_files(folder)
    names = [*files.names, *([files.index] if files.index else []), "config.json"]
    store = cache / CACHE if cache else None
    known = _remembered(store) if store else {}
    digests: dict[str, str] = {}
    for name in sorted(names):
        key = file_key(folder / name)
        if key not in known:
            known[key] = digest_file(folder / name, beat)
            if store:
                _remember(store, key, known[key])
        digests[name] = known[key]
    return digest_of(digests)
