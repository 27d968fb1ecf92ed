"""A journal in a fresh folder, and what is entered into one."""

from __future__ import annotations

from tests.journal.entries import STAGES, WORK, enter, reference
from tests.selection.conftest import add, desk

__all__ = ["STAGES", "WORK", "add", "desk", "enter", "reference"]
