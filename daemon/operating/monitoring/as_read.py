"""Whether a configuration is known to be right without being validated, which takes longer than all else that `ckptd status` does."""

from __future__ import annotations

import os
from pathlib import Path

from daemon.config.layers import Files
from daemon.config.places.paths import StatePaths
from daemon.config.places.states import state_of
from daemon.config.sources import given_on_command_line
from daemon.contract.values import text_at
from daemon.contract.version import __version__
from daemon.operating.monitoring.live import read_live


def state_as_read(file: Path | None, files: Files) -> Path | None:
    """The state directory of a configuration that there is none of, or that its daemon has read as it is now; None for any other.

    `files`: what the file says, and the parts beside it. Values from elsewhere are for `daemon.config.loading`.
    """
    variables = (name.upper() for name in os.environ)
    if given_on_command_line or any(name.startswith(("CKPTD_", "EXPORT_")) and name != "CKPTD_CONFIG" for name in variables):
        return None
    if file is None:
        return state_of(None, None, ask_running=True)
    named = text_at(files.values, "state", "directory")
    configured = Path(os.path.normpath(file.absolute().parent / Path(named).expanduser())) if named else None
    state = state_of(file, configured, ask_running=True)
    live = read_live(StatePaths(state).live)
    if live.version != __version__ or live.configuration is None:
        return None
    return state if live.configuration.is_as_read(str(file), files.digest) else None
