"""The digest of a base model: SHA-256 over its weight files and config.json, remembered between jobs.

Called by the merge. A base of many gigabytes is read once and not for every checkpoint: the digests of its files are cached under a key
of device, inode, size and modification time. A file that changes without changing its size, within the resolution of the file system's
clock, is not noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from daemon.contract.values import digest_of
from handlers.child.hints import Hints
from handlers.models.folder import ModelFolder

CACHE = "digests.json"
KEPT = 2000
"""Entries that the cache holds at most; the oldest go first."""
BLOCK = 1 << 20

OnBytes = Callable[[int], None]
"""Called with the number of bytes of each step; an exception that it raises ends the work."""


def digest_file(path: Path, on_bytes: OnBytes) -> str:
    """SHA-256 of a file's contents, in hex."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK))
    with open(path, "rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
            on_bytes(count)
    return digest.hexdigest()


def base_digest(model: ModelFolder, cache: Path, on_bytes: OnBytes) -> str:
    """Digest, in hex, of the names and contents of the model's weight files, index and config.json."""
    known = Hints(cache / CACHE, KEPT)
    digests: dict[str, str] = {}
    for name in sorted((*model.weight_names, "config.json")):
        key = model.file_key(name)
        if (digest := known.get(key)) is None:
            digest = digest_file(model.path / name, on_bytes)
            Hints(cache / CACHE, KEPT).put({key: digest})  # after each file, and beside what others have put there meanwhile
        digests[name] = digest
    return digest_of(digests)
