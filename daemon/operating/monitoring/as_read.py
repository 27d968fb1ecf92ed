"""Whether a configuration is known to be right without being validated, which takes longer than all else that `ckptd status` does."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from daemon.config.known import KnownSettings, home
from daemon.config.layers import Files
from daemon.config.places.paths import StatePaths
from daemon.config.places.states import state_of
from daemon.config.sources import are_given_elsewhere
from daemon.contract.values import text_at
from daemon.contract.version import __version__
from daemon.operating.monitoring.live import LiveFile, read_live


def settings_as_read(file: Path | None, files: Files) -> KnownSettings | None:
    """What is known of the settings of a configuration that its daemon has read as it is now; None for any other."""
    if file is None or are_given_elsewhere() or (read := _read(file, files)) is None:
        return None
    state, live = read
    known = KnownSettings.read(live.known)
    if known is None or (known.home != home() and _names_home(files.values)) or not _is_beside(file, live):
        return None
    return replace(known, state_directory=state, file=file)


def state_as_read(file: Path | None, files: Files) -> Path | None:
    """The state directory of a configuration that there is none of, or that its daemon has read as it is now; None for any other.

    `files`: what the file says, and the parts beside it. Values from elsewhere are for `daemon.config.loading`.
    """
    if are_given_elsewhere():
        return None
    if file is None:
        return state_of(None, None, ask_running=True)
    read = _read(file, files)
    return read[0] if read else None


def _read(file: Path, files: Files) -> tuple[Path, LiveFile] | None:
    """The state directory of a configuration that its daemon has read as it is now, and what that daemon wrote; None for any other."""
    named = text_at(files.values, "state", "directory")
    configured = Path(os.path.normpath(file.absolute().parent / Path(named).expanduser())) if named else None
    state = state_of(file, configured, ask_running=True)
    live = read_live(StatePaths(state).live)
    if live.version != __version__ or live.configuration is None:
        return None
    return (state, live) if live.configuration.is_as_read(str(file), files.digest) else None


def _is_beside(file: Path, live: LiveFile) -> bool:
    """Whether a configuration has the folder of the daemon's: a link to it in another one has other relative paths."""
    read = live.configuration.file if live.configuration else None
    return read is not None and os.path.abspath(Path(read).parent) == os.path.abspath(file.parent)


def _names_home(value: Any) -> bool:
    """Whether a path below a home directory may be among the values."""
    if isinstance(value, dict | list):
        return any(map(_names_home, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and value.startswith("~")
