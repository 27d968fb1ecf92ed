"""Which base an adapter belongs to: by the name that others know it by, and by the digest of its weights.

Called by the stage. A name alone is no proof: hubs replace files, and a folder's name means something on one box only. The digest is the
one of report.json (`base.digest`), over the base's weight files, their index and config.json.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from daemon.contract.values import Json

FILE = "adapter_base.json"
_SNAPSHOT = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})(/|$)")
"""Where the hub's cache keeps a model: the one folder whose path says which model it holds."""


@dataclass(frozen=True)
class BaseName:
    """What an adapter's base is called."""

    name: str | None
    """For adapter_config.json: a hub's name where one is known, else what training wrote."""
    commit: str | None = None
    """The hub's commit, where the base was read from its cache."""
    local: bool = False
    """The name is a folder of this box, which means nothing elsewhere."""


def name_of(named: str | None, folder: Path) -> BaseName:
    """The name of the base in `folder`, which the adapter calls `named`.

    Not taken from the base's own config.json: `_name_or_path` there is what the base itself was once made of.
    """
    cached = _SNAPSHOT.search(str(folder))
    commit = cached["commit"] if cached else None
    if not _is_folder(named):
        return BaseName(named, commit if cached and named == _hub_name(cached) else None)
    written = _SNAPSHOT.search(str(named)) or cached
    if written is None:
        return BaseName(named, local=named is not None)
    return BaseName(_hub_name(written), written["commit"])


def _hub_name(match: re.Match[str]) -> str:
    return f"{match['owner']}/{match['name']}"


def _is_folder(name: str | None) -> bool:
    """Whether a base's name can't be a hub's, which has one slash at most and no dots or ~ for a folder."""
    if not name:
        return True
    parts = PurePosixPath(name).parts
    return len(parts) > 2 or parts[0] in ("/", ".", "..", "~") or name.startswith(("/", "./", "~"))


def written(base: BaseName, config: Json, digest: str, values: str) -> Json:
    """The content of adapter_base.json. `values`: what `merge.base` came to, on which the adapter was verified."""
    return {
        "base_model_name_or_path": base.name,
        "revision": config.get("revision"),
        "commit": base.commit,
        "digest": digest,
        "digest_of": "names and SHA-256 of the base's weight files, their index and config.json; report.json has it as base.digest",
        "values": values,
        "peft_version": config.get("peft_version"),
    }
