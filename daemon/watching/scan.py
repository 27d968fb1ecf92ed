"""Walks a root for checkpoint directories: events are only hints, and a scan is the reliable source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from daemon.checkpoints.names import holds_checkpoint, is_checkpoint_name, is_loose_name, may_make_checkpoint

_IGNORED = ("tmp-",)


def is_ignored(name: str) -> bool:
    """Hidden and temporary names, among them those that older trainers staged under."""
    return name.startswith((".", *_IGNORED)) or name.endswith("-tmp")


def find_checkpoints(root: Path, depth: int, on_error: Callable[[OSError], None]) -> Iterator[Path]:
    """Directories below `root`, at most `depth` levels deep, that are checkpoints by name or by what they hold.

    Links are not followed. Below a `checkpoint-N` nothing is looked for.
    """
    levels = [(str(root), "", 1)]
    while levels:
        folder, name, level = levels.pop()
        try:
            with os.scandir(folder) as listing:
                entries = {entry.name: entry.is_dir(follow_symlinks=False) for entry in listing}
        except OSError as error:
            on_error(error)
            continue
        if name and holds_checkpoint(name, entries):
            yield Path(folder)
        for entry, is_folder in entries.items():
            if not is_folder:
                continue
            if level <= depth and is_checkpoint_name(entry):
                yield Path(os.path.join(folder, entry))
            elif not is_ignored(entry) and (level < depth or (level == depth and is_loose_name(entry))):
                levels.append((os.path.join(folder, entry), entry, level + 1))


def checkpoint_of(root: Path, changed: str) -> Path | None:
    """The checkpoint directory below `root` in which `changed` lies, if any.

    Looks at a directory's listing only where the changed name may have made a checkpoint of it.
    """
    try:
        parts = Path(changed).relative_to(root).parts
    except ValueError:
        return None
    for index, part in enumerate(parts):
        if is_checkpoint_name(part):
            return root.joinpath(*parts[: index + 1])
        if is_ignored(part) and index + 1 < len(parts):
            return None
    if not parts or (is_ignored(parts[-1]) and changed.endswith("/")):
        return None
    for length in (len(parts), len(parts) - 1):
        if length > 0 and (is_loose_name(parts[length - 1]) or (length < len(parts) and may_make_checkpoint(parts[-1]))):
            folder = root.joinpath(*parts[:length])
            if holds_checkpoint(folder.name, _names_in(folder)):
                return folder
    return None


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # gone, no directory, or not readable: the next scan says which
