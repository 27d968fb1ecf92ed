"""Chooses between uv and pip for one installation, visibly, and has the packages installed.

Called by `daemon.toolchains.build`. uv is used where it is there and leads to the packages that pip would bring; else pip, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.toolchains.installers import pip, pip_settings, uv
from daemon.toolchains.installers.attempt import Build
from daemon.toolchains.installers.pip_settings import UnlikePip
from daemon.toolchains.order import Installer


@dataclass(frozen=True)
class Used:
    """What installed the packages, and what it installed."""

    installer: str
    """Name and version."""
    why: str
    """Why it is not uv, where that was to be used if possible; "" where it is as was asked."""
    wheels: dict[str, str]
    """File → SHA-256."""


def put_in(build: Build, wanted: Installer) -> Used:
    """Install the locked packages into the environment. Raises CkptdError."""
    settings, why = pip_settings.read(build), ""
    if wanted != "pip":
        try:
            tool = uv.find()
            build.say(f"using uv {tool.version}")
            return Used(f"uv {tool.version}", "", uv.install(build, settings, tool))
        except UnlikePip as reason:
            why = str(reason)
        if wanted == "uv":
            raise Permanent(
                FaultCode.INSTALLER_UNUSABLE, build.operation, f"toolchains.installer is 'uv', and {why}",
                "correct that, or set toolchains.installer to 'auto', which uses pip then",
            )  # fmt: skip
    version = _pip_version(build)
    build.say(f"using pip {version}" + (f", since {why}" if why else ""))
    return Used(f"pip {version}", why, pip.install(build, settings, version))


def _pip_version(build: Build) -> str:
    folders = sorted(build.folder.glob("lib/python*/site-packages/pip-*.dist-info"))
    return folders[-1].name.removeprefix("pip-").removesuffix(".dist-info") if folders else ""
