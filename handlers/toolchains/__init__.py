"""Environments of their own for exporters whose requirements contradict ours: what belongs into each, and the code that runs there.

NAME.toml says what a toolchain is, NAME.txt locks its packages; `daemon.toolchains.registry` installs it. `bootstrap.py` is what its Python
is started with; every other module but `use` runs inside, and may import only what is installed there, `daemon.contract.jobs.messages`
with what that needs, and the light modules of `handlers`.
"""
