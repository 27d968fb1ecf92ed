"""What every verb of the command line shares: its options, the settings they name, answers for programs."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.contract.errors import UsageError
from daemon.contract.fault_codes import FaultCode

if TYPE_CHECKING:
    from daemon.config.settings import Settings

SYSTEM_CONFIG = Path("/etc/ckptd/config.toml")
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Configuration file. Default: $CKPTD_CONFIG, then /etc/ckptd/config.toml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")]


def config_file(named: Path | None) -> Path | None:
    """The file that --config, $CKPTD_CONFIG or /etc names; None where there is none."""
    if named is None and os.environ.get("CKPTD_CONFIG"):
        return Path(os.environ["CKPTD_CONFIG"])
    return SYSTEM_CONFIG if named is None and SYSTEM_CONFIG.exists() else named


def load_settings(config: Path | None, *, need_roots: bool = False) -> Settings:
    """Settings from the file that --config, $CKPTD_CONFIG or /etc names, else the defaults.

    Raises UsageError for what is wrong in them, and where this user has no access to the state directory.
    """
    from daemon.config.loading import load

    settings = load(config_file(config), need_roots=need_roots)
    folder = settings.state_directory
    closed = next((one for one in (folder, *folder.parents) if os.path.isdir(one) and not os.access(one, os.X_OK)), None)
    if closed is not None:
        raise no_access(closed)
    return settings


def no_access(path: Path) -> UsageError:
    """The error for a file or folder that this user may not read: the state of another user's daemon, as a rule."""
    try:
        owner = f"as its user, {path.owner()}"
    except (KeyError, OSError):
        owner = "as the user of the daemon"
    return UsageError(
        FaultCode.NO_PERMISSION, "read", "this user has no access to it", f"run ckptd {owner}, or name another configuration with --config",
        path=path,
    )  # fmt: skip


def print_json(value: Any) -> None:
    """The answer of a verb under --json; a dataclass is an object of its fields."""
    print(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)
