"""How the locked packages of Python come into a toolchain's environment: with uv or with pip, resumed after an interruption."""
