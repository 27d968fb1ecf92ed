"""What the tests of the verbs share."""

from __future__ import annotations

from tests.runner.conftest import add, make_toy
from tests.selection.conftest import desk

__all__ = ["add", "desk", "make_toy"]
