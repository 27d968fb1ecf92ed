"""Environments of their own for exporters whose requirements contradict ours: the code that runs there, and the one that no format owns.

NAME.toml says what a toolchain is, NAME.txt locks its packages, both in the folder of its format; `daemon.toolchains.registry` installs it.
`bootstrap.py` is what its Python is started with; every other module but `use` runs inside, and may import only what is installed there,
`daemon.contract.jobs.messages` with what that needs, and the light modules of `handlers`.
"""
