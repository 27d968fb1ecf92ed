"""The digest of a base model: SHA-256 over its weight files and config.json, remembered between jobs.

Called by the merge. A base of many gigabytes is read once and not for every checkpoint: the digests of its files are kept
under a key of device, inode, size and modification time. A file changed within the clock's resolution and at
equal size is not noticed.
"""

from __future__ import annotations

import json
from pathlib import Path

from daemon.contract import digest_of
from daemon.durable import sha256_file, write_atomic
from handlers.model_files import file_key, weight_files

CACHE = "digests.json"
KEPT = 2000
"""Entries that the cache holds at most; the oldest go first."""


def _remembered(path: Path) -> dict[str, str]:
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def base_digest(folder: Path, cache: Path | None = None) -> str:
    """Digest, in hex, of the model in `folder`, from the names and contents of its weight files, index and config.json."""
    files = weight_files(folder)
    names = [*files.names, *([files.index] if files.index else []), "config.json"]
    store = cache / CACHE if cache else None
    known = _remembered(store) if store else {}
    fresh: dict[str, str] = {}
    digests: dict[str, str] = {}
    for name in sorted(names):
        key = file_key(folder / name)
        if key not in known:
            fresh[key] = sha256_file(folder / name)
        digests[name] = known.get(key) or fresh[key]
    if store and fresh:
        store.parent.mkdir(parents=True, exist_ok=True)
        merged = {**_remembered(store), **fresh}
        write_atomic(store, json.dumps(dict(list(merged.items())[-KEPT:]), indent=0), durable=False)
    return digest_of(digests)
