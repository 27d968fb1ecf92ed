"""First thing that a toolchain's Python runs: `PYTHON -I -u bootstrap.py MODULE [ARGUMENT…]` runs MODULE of ours in that environment.

Started by `daemon.running.workers.worker` (MODULE is `handlers`, the entry of every stage), by what a stage starts with
`handlers.toolchains.use`, and by the probe. Of the environment that ckptd itself is installed in it makes the packages `daemon` and
`handlers` importable and nothing else, even where they lie beside a torch of another version. It holds a shared lock on the toolchain's
file `in-use` as long as the process lives, so that a toolchain is not removed below it. Imports the standard library alone.
"""

from __future__ import annotations

import fcntl
import importlib.machinery
import os
import runpy
import sys

OURS = ("daemon", "handlers")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXIT_NO_TOOLCHAIN = 69


class _OurPackages:
    """Finds the packages of ckptd, and nothing that lies beside them."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of one of `OURS`; their submodules are found by way of the package itself."""
        return importlib.machinery.PathFinder.find_spec(name, [ROOT]) if name in OURS else None


def hold() -> bool:
    """Lock this toolchain against removal until the process ends; False where it is being removed."""
    path = os.path.join(sys.prefix, "in-use")
    try:
        descriptor = os.open(path, os.O_RDONLY)  # left open: the lock lives as long as the process
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def main() -> None:
    """Run the module that the command line names, as `python -m` would."""
    if not hold():
        print(f"the toolchain {sys.prefix} is being removed, or is not complete", file=sys.stderr)
        sys.exit(EXIT_NO_TOOLCHAIN)
    for name in ("PYTHONPATH", "PYTHONHOME"):
        os.environ.pop(name, None)  # of the main environment; this Python ignores them, and what it starts must too
    sys.meta_path.insert(0, _OurPackages())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
