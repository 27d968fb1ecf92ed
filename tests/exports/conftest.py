"""The models that artifacts are made of."""

from tests.toolchains.real import lab  # noqa: F401
