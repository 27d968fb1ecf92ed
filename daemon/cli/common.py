"""What every verb of the command line shares: its options, the settings they name, answers for programs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.views.markup import say_error, say_lines
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.text import is_text, printable
from daemon.contract.language.catalog import speak_english, translated_text
from daemon.contract.light import dataclass

if TYPE_CHECKING:
    from daemon.config.known import AnySettings
    from daemon.config.layers import Files, Source
    from daemon.config.places.instances import Instance
    from daemon.config.settings import Settings

SYSTEM_CONFIG = Path("/etc/ckptd/config.toml")
WRONG_FILE = (FaultCode.CONFIG_INVALID, FaultCode.CONFIG_MISSING, FaultCode.CONFIG_UNREADABLE)
"""Why a configuration can't be used, though a daemon that has read it before may run."""
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        readable=False,
        help="Configuration file. Default: $CKPTD_CONFIG, then ~/.config/ckptd/config.toml, then /etc/ckptd/config.toml.",
    ),
]


def _in_english(wanted: bool) -> bool:
    """Whether JSON is wanted, which is English in every locale, as what it is made of; so are errors of such a command."""
    if wanted:
        speak_english()
    return wanted


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.", callback=_in_english, is_eager=True)]


def own_config() -> Path:
    """Where this user's own configuration lies, if there is one."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "ckptd" / "config.toml"


def configuration_of(config: Path | None, *, of_daemon: bool = False) -> Path | None:
    """The configuration file: what --config names, else $CKPTD_CONFIG, else this user's own, else the system's, if there is one.

    `of_daemon`: the verb asks about a daemon or steers it: where none is found, that of the daemon that runs. Raises UsageError where
    several run.
    """
    if config is None and os.environ.get("CKPTD_CONFIG"):
        config = Path(os.environ["CKPTD_CONFIG"])
    config = config or next((file for file in (own_config(), SYSTEM_CONFIG) if file.exists()), None)
    return _config_of_running() if config is None and of_daemon else config


def load_settings(
    config: Path | None, *, need_roots: bool = False, serves: bool = False, of_daemon: bool = False, own_state: bool = False,
    files: Files | None = None,
) -> Settings:  # fmt: skip
    """Settings from the file that `configuration_of` finds, else the defaults; the state is that of the daemon which runs on it.

    `serves`: the caller is that daemon. `of_daemon`: the verb asks about a daemon or steers it: where no file is named, the file of the one
    that runs. `own_state`: the verb works without the daemon's state, so that a user who has no access to it gets a state of his own.
    `files`: that configuration, where it has been read already.

    Raises UsageError for what is wrong in them, where several daemons run and none is named, and where this user has no access to the
    state directory.
    """
    from daemon.config.loading import load
    from daemon.config.settings import StateSettings

    config = configuration_of(config, of_daemon=of_daemon)
    settings = load(config, need_roots=need_roots and config is not None, ask_running=not serves, sends=not of_daemon, files=files)
    if need_roots and config is None and not settings.watch.roots:
        raise _nothing_found()
    state = _usable(settings.state_directory, config, own_state=own_state)
    return settings if state == settings.state_directory else settings.model_copy(update={"state": StateSettings(directory=state)})


def known_settings(config: Path | None) -> AnySettings:
    """The settings of a daemon for a verb that only looks, and works without the daemon's state: as the daemon knows them, where it has
    read the configuration as it is now, else as `load_settings` gives them. Raises UsageError as that does."""
    from daemon.config import layers
    from daemon.operating.monitoring.as_read import settings_as_read

    file = configuration_of(config, of_daemon=True)
    files = layers.read(file)
    known = settings_as_read(file, files)
    if known is None:
        return load_settings(file, of_daemon=True, own_state=True, files=files)
    return dataclasses.replace(known, state_directory=_usable(known.state_directory, file, own_state=True))


def for_somebody_who_waits(settings: Settings) -> Settings:
    """The settings with the priority of other work, unless a priority is configured: as a service, exports give way to the training."""
    if "priority" in settings.limits.model_fields_set:
        return settings
    return settings.model_copy(update={"limits": settings.limits.model_copy(update={"priority": "normal"})})


class DaemonConfiguration:
    """The configuration by which this process serves: read at its start and for each reload."""

    def __init__(self, config: Path | None) -> None:
        """`config`: what --config names."""
        self._config = config
        self._source: Source | None = None

    def read(self) -> Settings:
        """The settings as they are now. Raises UsageError as `load_settings` does."""
        from daemon.config import layers

        file = configuration_of(self._config)
        files = layers.read(file)
        settings = load_settings(file, need_roots=True, serves=True, files=files)
        self._source = layers.Source.of(file, files)
        return settings

    def source(self) -> Source:
        """The files of the settings that were read last."""
        assert self._source is not None
        return self._source


@dataclass(frozen=True)
class DaemonPlace:
    """Where a daemon's state lies, for the verbs that need no more of its configuration."""

    state: Path
    config: Path | None
    """The configuration file by which it was found."""
    mistake: str | None = None
    """Why that can't be used now, and what to do, as a sentence; the state is that of the daemon that was started with it before."""


def daemon_place(config: Path | None, *, own_state: bool = False) -> DaemonPlace:
    """The state of a daemon, also where its configuration has mistakes now: those are said, and are no reason not to look at it.

    Raises UsageError as `load_settings` does; for mistakes only where an option of this command is wrong, or nothing tells where the
    state is.
    """
    from daemon.config import layers
    from daemon.operating.monitoring.as_read import state_as_read

    file = configuration_of(config, of_daemon=True)
    try:
        files = layers.read(file)
        if (known := state_as_read(file, files)) is not None:
            return DaemonPlace(_usable(known, file, own_state=own_state), file)
        return DaemonPlace(load_settings(file, of_daemon=True, own_state=own_state, files=files).state_directory, file)
    except UsageError as error:
        from daemon.config.loading import WrongValues, state_despite, used_before
        from daemon.config.places.paths import StatePaths
        from daemon.system.elsewhere import elsewhere
        from daemon.system.lock import is_locked

        if error.fault.code not in WRONG_FILE or (isinstance(error, WrongValues) and error.of_the_command):
            raise
        state = state_despite(file)
        if state is None:
            raise
        if (closed := _closed(state)) is not None:
            raise no_access(closed) from None
        why = "; ".join(error.problems) if isinstance(error, WrongValues) else error.fault.cause
        command = "ckptd check" if file is None else f"ckptd check --config {shlex.quote(str(file))}"
        return DaemonPlace(
            state, file, used_before(file, why, command, runs=is_locked(StatePaths(state).lock) or elsewhere(state) is not None)
        )


def daemon_state(config: Path | None, *, own_state: bool = False) -> Path:
    """The state directory of `daemon_place`; mistakes in the configuration are said on stderr."""
    place = daemon_place(config, own_state=own_state)
    if place.mistake:
        say_error(f"ckptd: {printable(translated_text(place.mistake))}")
    return place.state


def _usable(state: Path, config: Path | None, *, own_state: bool) -> Path:
    """The state directory; with `own_state`, this user's own in place of one of the system's that he can't use. Raises UsageError."""
    from daemon.config.places import states

    closed = _closed(state)
    if own_state and (closed or not _is_writable(state)) and state == states.state_of_system(config):
        return states.own_state()
    if closed is not None:
        raise no_access(closed)
    return state


def _closed(folder: Path) -> Path | None:
    """The folder on the way to a state directory that this user may not enter."""
    return next((parent for parent in (folder, *folder.parents) if os.path.isdir(parent) and not os.access(parent, os.X_OK)), None)


def _nothing_found() -> UsageError:
    return UsageError(
        FaultCode.CONFIG_MISSING, "find a configuration",
        f"--config is not given, the variable CKPTD_CONFIG is not set, and there is neither {own_config()} nor {SYSTEM_CONFIG}",
        f"run `ckptd init`, which writes {own_config()}; or name your own file with --config",
    )  # fmt: skip


def _is_writable(folder: Path) -> bool:
    from daemon.system.filesystems.disks import nearest_existing

    return os.access(nearest_existing(folder), os.W_OK | os.X_OK)


def _config_of_running() -> Path | None:
    from daemon.config.places.instances import running

    daemons = [daemon for daemon in running() if daemon.trusted]
    if len(daemons) > 1:
        listing = "\n".join(f"  {command_for(daemon)}" for daemon in daemons) + "\n"
        raise UsageError(
            FaultCode.SEVERAL_DAEMONS, "choose a daemon", f"{len(daemons)} run here:\n{listing}",
            "give the configuration of one with --config"
        )  # fmt: skip
    return daemons[0].config if daemons else None


def command_for(daemon: Instance, verb: str = "status") -> str:
    """The command line that asks a certain daemon."""
    user = "" if daemon.trusted and daemon.user in (os.geteuid(), 0) else f"sudo -u {shlex.quote(daemon.user_name)} "
    if daemon.config is None:
        return f"{user}env CKPTD_STATE__DIRECTORY={shlex.quote(str(daemon.state))} ckptd {verb}"
    return f"{user}ckptd {verb} --config {shlex.quote(str(daemon.config))}"


def no_access(path: Path) -> UsageError:
    """The error for a file or folder that this user may not read: the state of another user's daemon, as a rule."""
    try:
        owner = f"as its user, {path.owner()}"
    except (KeyError, OSError):
        owner = "as the user of the daemon"
    return UsageError(
        FaultCode.NO_PERMISSION, "read", "this user has no access to it", f"run ckptd {owner}, or give another configuration with --config",
        path=path,
    )  # fmt: skip


def refuse_undecodable(path: Path, operation: str) -> None:
    """Raise UsageError for a path that no journal and no report can hold."""
    whole = Path(os.path.abspath(path))
    if not is_text(str(whole)):
        raise _undecodable(whole, operation)


def _undecodable(path: Path, operation: str) -> UsageError:
    cause, remedy = "the name is not UTF-8", "rename it to have it exported"
    with contextlib.suppress(UnicodeDecodeError):
        os.fsencode(path).decode()
        cause, remedy = f"the name can't be read in the encoding of this locale, {sys.getfilesystemencoding()}", "set LC_ALL=C.UTF-8"
    return UsageError(FaultCode.BAD_OPTION, operation, cause, remedy, path=path)


def of_surrogates(error: UnicodeEncodeError) -> UsageError:
    """What a name that is no text comes to where it was not refused before."""
    return UsageError(
        FaultCode.BAD_OPTION, "go on", f"{error.object[:200]!r} holds a name that is not UTF-8, or not in the encoding of this locale",
        "rename it, and set LC_ALL=C.UTF-8",
    )  # fmt: skip


def print_json(value: Any) -> None:
    """The answer of a verb under --json; a dataclass is an object of its fields."""
    say_lines(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)
