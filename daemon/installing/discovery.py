"""What lies on this box that a first configuration can name: where trainings write, and where their base models are.

Called by `ckptd init`. It looks at the places where such things usually lie, within bounds; what it finds is a proposal and no more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from daemon.checkpoints.completeness import read_json
from daemon.checkpoints.models.base_models import is_model
from daemon.checkpoints.names import run_of
from daemon.contract.disk.answers import ask
from daemon.watching.origins import NOT_OF_A_TRAINING
from daemon.watching.scan import Found, Scanner, ScanRules

USUAL = ("/data", "/srv", "/mnt", "/media", "/workspace", "/scratch", "/opt", "/models", "/home", "/root")
DEPTH = 6
SECONDS = 3.0
"""For each place; a file system that does not answer is left after twice as many."""
MOST_ENTRIES = 200_000
"""That are listed below one place."""
_MOST = 500
"""Directories that are taken of one place."""


@dataclass(frozen=True)
class Root:
    """A directory to watch."""

    path: Path
    runs: int
    newest: float
    """When the newest checkpoint in it changed last, in seconds of the epoch."""


@dataclass(frozen=True)
class Proposal:
    """What was found, those with the newest checkpoints first."""

    roots: tuple[Root, ...] = ()
    searched: tuple[Path, ...] = ()
    """Folders that hold base models."""
    mapped: tuple[tuple[str, Path], ...] = ()
    """Bases that checkpoints name and that lie in a Hugging Face cache, with their folders."""
    missing: tuple[str, ...] = ()
    """Bases that checkpoints name and that were not found."""


def places() -> list[Path]:
    """Where to look: the working directory, the home, and where data usually lies on a training box; none inside another."""
    folders = [Path.cwd(), Path.home(), *map(Path, USUAL)]
    real = sorted({Path(os.path.realpath(place)) for place in folders if os.path.isdir(place)} - {Path("/"), Path("/tmp")})
    return [place for place in real if not any(other in place.parents for other in real)]


def look(where: Sequence[Path] | None = None, homes: Sequence[Path] | None = None) -> Proposal:
    """Look into the places `where`, and into the Hugging Face caches of `homes`; by default those of this box."""
    where = places() if where is None else where
    taken: list[Path] = []
    models: list[Path] = []
    for place in where:
        for candidate in _search(place):
            if not str(candidate.path).isprintable():
                continue
            if candidate.passed_over in NOT_OF_A_TRAINING:
                models.append(candidate.path)
            elif not candidate.passed_over:
                taken.append(candidate.path)
    stay = {*where, Path.home(), *(Path("/home").iterdir() if os.path.isdir("/home") else ())}
    roots = _roots(taken, stay)
    below = [root.path for root in roots]
    models = [model for model in models if not any(root in model.parents for root in below)]
    mapped, missing = _wanted(taken, models, _homes() if homes is None else homes)
    searched = dict.fromkeys(model.parent for model in models if "snapshots" not in model.parts)
    return Proposal(tuple(roots), tuple(searched), tuple(mapped.items()), tuple(missing))


def _search(place: Path) -> list[Found]:
    def walk() -> list[Found]:
        candidates: list[Found] = []
        for candidate in Scanner(ScanRules(DEPTH), MOST_ENTRIES, SECONDS).find(place, lambda _: None):
            candidates.append(candidate)
            if len(candidates) >= _MOST:
                break
        return candidates

    try:
        return ask(f"look into {place}", walk, 2 * SECONDS)
    except (TimeoutError, OSError):
        return []


def _roots(checkpoints: Iterable[Path], stay: Iterable[Path]) -> list[Root]:
    """The directories around the runs. One of `stay` is never proposed, since more than trainings lies there: its runs are instead."""
    fixed = set(stay)
    runs: dict[Path, set[Path]] = {}
    newest: dict[Path, float] = {}
    for checkpoint in checkpoints:
        run = run_of(checkpoint)
        root = run if run.parent in fixed or run in fixed else run.parent
        if root in fixed:
            continue
        runs.setdefault(root, set()).add(run)
        try:
            newest[root] = max(newest.get(root, 0.0), os.stat(checkpoint).st_mtime)
        except OSError:
            continue
    outer = [root for root in runs if not any(other in root.parents for other in runs)]
    inside = {root: [run for run in runs if run == root or root in run.parents] for root in outer}
    rows = [
        Root(root, len(set[Path]().union(*(runs[run] for run in inside[root]))), max(newest.get(run, 0.0) for run in inside[root]))
        for root in outer
    ]
    return sorted(rows, key=lambda root: -root.newest)


def _homes() -> list[Path]:
    """Homes whose Hugging Face cache is looked into."""
    homes = [Path.home()]
    if os.path.isdir("/home"):
        homes += sorted(Path("/home").iterdir())
    return list(dict.fromkeys(homes))


def _wanted(checkpoints: Iterable[Path], models: Iterable[Path], homes: Sequence[Path]) -> tuple[dict[str, Path], list[str]]:
    """The bases that the checkpoints name: those in a cache with their folders, and those that are nowhere."""
    names = {model.name for model in models}
    mapped: dict[str, Path] = {}
    missing: list[str] = []
    for name in dict.fromkeys(filter(None, map(_base_of, checkpoints))):
        if is_model(Path(name)) if os.path.isabs(name) else name.rpartition("/")[2] in names:
            continue
        cached = next(_cached(name, homes), None)
        if cached is not None:
            mapped[name] = cached
        else:
            missing.append(name)
    return mapped, missing


def _base_of(checkpoint: Path) -> str | None:
    """The base that an adapter names; None for what is none, or can't be read."""
    file = checkpoint / "adapter_config.json"
    try:
        value = ask(str(file), partial(read_json, file), SECONDS) if file.is_file() else {}
    except (OSError, ValueError):
        return None
    name = value.get("base_model_name_or_path") if isinstance(value, dict) else None
    return name if isinstance(name, str) and name and name.isprintable() else None


def _cached(name: str, homes: Sequence[Path]) -> Iterator[Path]:
    """Snapshots of `ORG/NAME` in the caches, the one that `main` names first."""
    hubs = [Path(folder) for folder in (os.environ.get("HF_HUB_CACHE"), _below(os.environ.get("HF_HOME"), "hub")) if folder]
    hubs += [home / ".cache" / "huggingface" / "hub" for home in homes]
    if any(part in ("", ".", "..") for part in name.split("/")):
        return
    for hub in hubs:
        repository = hub / f"models--{name.replace('/', '--')}"
        try:
            main = repository / "refs" / "main"
            first = [main.read_text(encoding="utf-8").strip()] if main.is_file() else []
            commits = [*first, *sorted(os.listdir(repository / "snapshots"))]
        except (OSError, ValueError):
            continue
        yield from (folder for commit in commits if is_model(folder := repository / "snapshots" / commit))


def _below(folder: str | None, name: str) -> str | None:
    return f"{folder}/{name}" if folder else None
