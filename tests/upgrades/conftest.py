"""Daemons with toy stages."""

from tests.runner.conftest import make_toy

__all__ = ["make_toy"]
