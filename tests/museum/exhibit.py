"""What an exhibit of the museum says: a published bug, the mutant that rebuilds it on a small real artifact, the gate's reason.

Each module of `rooms` (`merge`, `files`, …) holds those of one kind; `collected` gathers them. `halls.py` has the models and sound
artifacts that mutants are made of, `gate.py` judges them.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Damage = Callable[[Path], object]
"""What is done to a folder, in place."""


class Source(Protocol):
    """The models of a hall, as makers of mutants see them."""

    @property
    def base(self) -> Path:
        """The base model."""

    @property
    def pin(self) -> Path:
        """The checkpoint of the adapter, or the whole fine-tune."""

    def made(self, source: str, variant: str) -> Path:
        """An artifact of the sound model, or of another source. Read only."""


Make = Callable[[Source, str, Path], None]
"""(models, variant, folder that is not there yet) → the mutant, in the folder."""


@dataclass(frozen=True)
class Exhibit:
    """A published bug and its mutant."""

    bug: str
    """Repository and number of the issue or pull request."""
    name: str
    """What it was, in a few words."""
    happened: str
    """A sentence or two."""
    mutant: str
    """What is done to the artifact, as a clause."""
    hall: str
    """Whose models, of `halls.HALLS`."""
    variant: str
    make: Make
    check: str
    """The check that alone is enough to catch it, of `checks.CHECKS`."""
    words: str
    """Words of the reason, as a regular expression."""
    merge: bool = False
    """The mutant is what the merge itself gave, so that nothing can be compared with the merge's files."""
    quick: bool = False
    """Every run of the tests has it; the others are in the slow set."""


def damaged(damage: Damage = lambda folder: None, source: str = "sound") -> Make:
    """A copy of an artifact, damaged."""

    def make(models: Source, variant: str, target: Path) -> None:
        shutil.copytree(models.made(source, variant), target)
        damage(target)

    return make


def collected() -> dict[str, Exhibit]:
    """Room/name → the exhibit, in the order of their names."""
    rooms = sorted(path.stem for path in (Path(__file__).parent / "rooms").glob("[a-z]*.py"))
    exhibits = {room: importlib.import_module(f"{__package__}.rooms.{room}").EXHIBITS for room in rooms}
    return {f"{room}/{name}": exhibit for room, named in exhibits.items() for name, exhibit in sorted(named.items())}
