"""The real toolchain, and its libraries beside those of the main environment."""

from tests.toolchains import real
from tests.toolchains.real import lab, run  # noqa: F401

state, toolchain, libraries = real.fixtures("executorch")
