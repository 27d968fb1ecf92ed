"""What the tests of the verbs share."""

from __future__ import annotations

from tests.runner.conftest import make_toy
from tests.selection.conftest import desk

__all__ = ["desk", "make_toy"]
