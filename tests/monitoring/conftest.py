"""What the tests of the figures share."""

from __future__ import annotations

from tests.runner.conftest import make_toy

__all__ = ["make_toy"]
