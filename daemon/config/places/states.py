"""Where the state of a configuration's daemon lies: what the service and the verbs agree on."""

from __future__ import annotations

import os
from pathlib import Path

from daemon.config.places import instances

ETC, VAR_LIB = Path("/etc"), Path("/var/lib")


def state_of(path: Path | None, configured: Path | None, *, ask_running: bool) -> Path:
    """The state directory of a configuration: the one that it names, else systemd's, else the user's own.

    `ask_running`: that of the daemon that runs on this configuration, if one does, before all of them.
    """
    state = configured or state_of_service() or state_of_system(path) or own_state()
    return instances.state_of(path, state) if ask_running else state


def state_of_service() -> Path | None:
    """The state directory that systemd gives a service; None outside of one."""
    given = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(given) if given else None


def state_of_system(path: Path | None) -> Path | None:
    """/var/lib/NAME for a configuration in /etc/NAME, as systemd pairs the two; None for one that lies elsewhere."""
    if path is None:
        return None
    real = Path(os.path.realpath(path))
    if ETC not in real.parents:
        return None
    inside = real.relative_to(ETC).parts
    return VAR_LIB / (inside[0] if len(inside) > 1 else "ckptd")


def own_state() -> Path:
    """The state directory of a user who has configured none."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "ckptd"
