"""The documents of a store: where they lie, what they say, and which of them are ours. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from daemon.contract.values import Json
from handlers.deliver.names import long
from handlers.deliver.store.backend import LATEST
from handlers.deliver.version import Version

NAME = re.compile(r"[A-Za-z0-9._-]+-(\d+)-([0-9a-f]{8})")
FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def run_folder(run: str) -> str:
    """The folder of a run."""
    return long(run)


def begun(folder: str) -> str:
    """The key that says what a version will be."""
    return f"{folder.replace('/', '/.begun/')}.json"


def document(version: Version) -> bytes:
    """The export's manifest, with the files that are carried."""
    files = [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in version.files]
    return json.dumps({**version.manifest, "files": files}, indent=1).encode()


def object_of(body: bytes) -> Json:
    """A document; {} where it can't be read."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def files_of(manifest: Json) -> Sequence[Any]:
    """A manifest's rows, without those that lead out of its folder."""
    rows = manifest.get("files")
    return [
        row for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and {"path", "size", "sha256"} <= row.keys() and not {"", ".", ".."} & set(str(row["path"]).split("/"))
    ]  # fmt: skip


def ours(folder: str, body: bytes) -> Json:
    """A manifest; {} where the folder's name is not that of its contents."""
    manifest, parts = object_of(body), NAME.fullmatch(folder.partition("/")[2])
    lines = sorted((str(row["path"]), f"{row['sha256']} {row['size']} {row['path']}\n") for row in files_of(manifest))
    digest = hashlib.sha256("".join(line for _, line in lines).encode("utf-8", "surrogateescape")).hexdigest()
    return (
        manifest if parts and digest.startswith(parts.group(2)) and run_folder(str(manifest.get("run"))) == folder.partition("/")[0] else {}
    )


def step_of(name: str) -> int:
    """The step of a version by its name; 0 where it is none of ours."""
    parts = NAME.fullmatch(name)
    return int(parts.group(1)) if parts else 0


def why_ahead(known: Json, version: Version) -> str:
    """Why what `latest.json` says is not to be replaced; "" where it is."""
    if known.get("run") != version.run or not isinstance(known.get("step"), int):
        return f"{LATEST} is something that ckptd did not write"
    return f"it names the later step {known['step']}" if known["step"] > version.step else ""
