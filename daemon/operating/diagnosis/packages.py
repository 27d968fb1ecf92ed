"""The packages that ckptd builds on: whether those of this environment are the versions that its own metadata asks for.

pip sees to that when ckptd is installed, and not when another package is installed after it, nor in a copy that was put on PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys

from daemon.contract.version import __version__
from daemon.running.rules.resume_keys import library_version


def unsuitable() -> tuple[str, ...]:
    """What is installed in other versions than ckptd needs, as one sentence without its end; none of these packages is imported."""
    from packaging.requirements import Requirement  # here: what most exports have no need of
    from packaging.version import InvalidVersion, Version

    try:
        needed = [Requirement(line) for line in importlib.metadata.requires("ckptd") or ()]
    except importlib.metadata.PackageNotFoundError:
        return ()
    unfit = []
    for requirement in needed:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = library_version(requirement.name)
        if not version:
            continue  # each variant that can't be made without it says so
        with contextlib.suppress(InvalidVersion):  # of somebody's own build: nobody can tell
            if not requirement.specifier.contains(Version(version), prereleases=True):
                unfit.append((requirement, version))
    if not unfit:
        return ()
    installed = ", ".join(f"{requirement.name} {version}" for requirement, version in unfit)
    wanted = " ".join(f"'{requirement.name}{requirement.specifier}'" for requirement, _ in unfit)
    return (
        f"ckptd {__version__} needs other versions than the installed {installed}, and stages may fail with errors that do not say so;"
        f" install them: {sys.executable} -m pip install {wanted}",
    )
