"""What a model hub knows of a base: the name by which others load it, and its license.

Read by the stages `pytorch-adapter` and `report`. A folder's name means something on one box only, so that a base is named by its hub's
name or not at all. Nothing is asked over the network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from daemon.contract.disk.files import open_plain
from daemon.contract.faults.errors import CkptdError
from daemon.contract.values import Json
from handlers.models.files import read_json

HEAD_BYTES = 64 << 10
"""Bytes of a README.md within which its metadata must end."""
_SNAPSHOT = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})(/|$)")
"""Where the hub's cache keeps a model: the one folder whose path says which model it holds."""
_REPOSITORY = re.compile(r"(?!.*(--|\.\.))(?:[A-Za-z0-9_][\w.-]{0,95}/)?[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?", re.ASCII)
"""A hub's rule for names of repositories."""
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
_METADATA = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class BaseName:
    """What an adapter's base is called."""

    name: str | None
    """For adapter_config.json: a hub's name where one is known, else what training wrote."""
    commit: str | None = None
    """The hub's commit, where the base was read from its cache."""
    local: bool = False
    """The name is a folder of this box, which means nothing elsewhere."""

    @property
    def repository(self) -> str | None:
        """The name where a hub could have a repository of it; None for a folder of this box."""
        return self.name if self.name and not self.local and _REPOSITORY.fullmatch(self.name) else None


@dataclass(frozen=True)
class License:
    """A license as model cards name it."""

    license: str
    """A hub's short name, for example `apache-2.0`; `other` for one that has none."""
    license_name: str | None = None
    license_link: str | None = None
    """Both of `other` alone. The link is a whole address."""


def name_of(named: str | None, folder: Path) -> BaseName:
    """Return the name of the base in `folder`, which the adapter calls `named`.

    What the base states of itself is `repository_of`'s: here it would become the name that servers load.
    """
    cached = _SNAPSHOT.search(str(folder))
    commit = cached["commit"] if cached else None
    if not _is_folder(named):
        return BaseName(named, commit if cached and named == _hub_name(cached) else None)
    written = _SNAPSHOT.search(str(named)) or cached
    if written is None:
        return BaseName(named, local=named is not None)
    return BaseName(_hub_name(written), written["commit"])


def repository_of(named: BaseName, folder: Path) -> str | None:
    """Return the repository of the base in `folder`: by its name, else as the base states it itself. Raises nothing.

    Its `_name_or_path` and its card's `base_model` often name what it was made of: they count where the folder is called as they say.
    """
    if named.repository:
        return named.repository
    try:
        stated = [read_json(folder / "config.json", "read the base's name").get("_name_or_path")]
    except (CkptdError, OSError, ValueError):
        stated = []
    parents = _metadata(folder / "README.md").get("base_model")
    stated += parents if isinstance(parents, list) else [parents]
    names = [name for name in stated if isinstance(name, str) and "/" in name and _REPOSITORY.fullmatch(name)]
    return next((name for name in names if PurePosixPath(name).name.casefold() == folder.name.casefold()), None)


def _hub_name(match: re.Match[str]) -> str:
    return f"{match['owner']}/{match['name']}"


def _is_folder(name: str | None) -> bool:
    """Return whether a base's name can't be a hub's, which has one slash at most and no dots or ~ for a folder."""
    if not name:
        return True
    parts = PurePosixPath(name).parts
    return len(parts) not in (1, 2) or parts[0] in ("/", ".", "..", "~") or name.startswith(("/", "./", "~"))


def license_of(folder: Path, repository: str | None) -> License | None:
    """Return the license that a model's README.md names in its metadata, else its config.json; None where neither does. Raises nothing.

    `repository`: the model's name at the hub, which makes a whole address of a link to one of its files.
    """
    metadata = _metadata(folder / "README.md")
    if (given := _license(metadata, repository)) is not None:
        return given
    try:
        return _license(read_json(folder / "config.json", "read the base's license"), repository)
    except (CkptdError, OSError, ValueError):
        return None


def _metadata(path: Path) -> Json:
    """Return the metadata at the top of a model card, all scalars as texts; {} where there is none."""
    try:
        with open_plain(path) as stream:
            head = stream.read(HEAD_BYTES).decode("utf-8", "replace")
        match = _METADATA.match(head)
        # BaseLoader makes no objects, and follows no merge keys, of which a small file can make a large one.
        value = yaml.load(match[1], Loader=yaml.BaseLoader) if match else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return value if isinstance(value, dict) else {}


def _license(metadata: Json, repository: str | None) -> License | None:
    named: Any = metadata.get("license")
    named = named[0] if isinstance(named, list) and named else named
    if not isinstance(named, str) or not _LICENSE.fullmatch(short := named.strip().lower()):
        return None
    if short != "other":
        return License(short)
    name, link = (
        value if isinstance(value := metadata.get(key), str) and value.isprintable() else None for key in ("license_name", "license_link")
    )
    if link is not None and not link.startswith("https://"):
        link = f"https://huggingface.co/{repository}/blob/main/{link}" if repository and re.fullmatch(r"[\w.-]+", link) else None
    return License(short, name, link)
