"""What all halls of the museum are; see `halls`."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from pathlib import Path

from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.thresholds import Thresholds
from handlers.validate.checks.examination import Examination
from tests.validate.bench import Bench


class Hall(ABC):
    """Models of one kind below a folder; see `exhibit.Source`."""

    twins = False
    """Forms are compared with the models that their own weights give, too."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder, self.scratch = folder, scratch

    @property
    @abstractmethod
    def base(self) -> Path:
        """The base model."""

    @property
    @abstractmethod
    def pin(self) -> Path:
        """The checkpoint."""

    @abstractmethod
    def made(self, source: str, variant: str) -> Path:
        """Return an artifact. Read only."""

    @abstractmethod
    def measured(self, scratch: Path) -> Bench:
        """Return the live model, measured."""

    @functools.cached_property
    def bench(self) -> Bench:
        """The live model, measured once."""
        return self.measured(self.scratch / "bench")

    def source(self, variant: str) -> Path | None:
        """Return what a form was made of."""
        return None

    def thresholds(self, variant: str) -> Thresholds:
        """Return what an artifact must reach."""
        return catalog().thresholds[variant]

    def examined(self, bench: Bench, variant: str, folder: Path, source: Path | None, result: Examination) -> None:
        """Examine a folder as its check does."""
        bench.examined(variant, folder, source, result)
