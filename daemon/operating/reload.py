"""A new configuration for a running daemon: reading it, what it can't change, and asking for it from outside."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from daemon.config import layers
from daemon.config.deliver.targets import differences
from daemon.config.places.paths import StatePaths
from daemon.config.settings import Settings
from daemon.contract.faults.errors import CkptdError, Retryable, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.secrets import PLAIN, SECTIONS, censored
from daemon.contract.faults.text import local_time, one_line
from daemon.operating.monitoring.live import read_live
from daemon.system.elsewhere import refuse_elsewhere
from daemon.system.lock import is_locked
from daemon.system.processes.threads import reason_of

PATIENCE_SECONDS = 30.0


def reread(load: Callable[[], Settings]) -> tuple[Settings | None, str | None]:
    """The configuration as it is now, or what is wrong with it."""
    try:
        return load(), None
    except CkptdError as error:
        return None, one_line(str(error))
    except OSError as error:
        return None, censored(f"it can't be read: {error}")
    except Exception as error:
        return None, f"an unexpected error occurred while reading it: {reason_of(error)}"


def changed_for_good(old: Settings, new: Settings) -> str | None:
    """What of a new configuration only a restart can bring, None where nothing is."""
    fixed = {
        "state.directory": (old.state_directory, new.state_directory),
        "output.directory": (old.output.directory, new.output.directory),
        "pin.directory": (old.pin.directory, new.pin.directory),
        "cluster": (old.cluster, new.cluster),
    }
    changed = [key for key, (before, after) in fixed.items() if before != after]
    return f"{', '.join(changed)} can't be changed while the daemon runs; restart it" if changed else None


def changes(old: Settings, new: Settings) -> tuple[str, ...]:
    """Each key whose value differs, as "KEY: OLD → NEW"; of a key that may hold a secret only that it differs."""
    before, after = (dict(_leaves(settings.model_dump(mode="json"))) for settings in (old, new))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    direct = [key for key in keys if not key.startswith(_DERIVED)]
    if any(key.startswith(_DECIDES) for key in direct):
        keys = direct  # what follows from these for each variant is in `ckptd config show validate.thresholds`
    lines = [f"{key}: {_said(key, before.get(key))} → {_said(key, after.get(key))}" for key in keys if not _is_secret(key)]
    lines += [*old.notify.differences(new.notify), *differences(old.deliver, new.deliver)]
    if not old.page.has_tokens_of(new.page) and not {"page.token_file", "page.peer_tokens"} & {*keys}:
        lines.append("page.token_file: what it, or the file of page.peer_tokens, holds changed")
    return tuple(censored(line) for line in lines)


_DERIVED, _DECIDES = "validate.thresholds.", ("validate.limits", "validate.strictness")
_MOST_SHOWN = 100
"""Characters of a value that a line shows."""


def _is_secret(key: str) -> bool:
    return key.partition(".")[0] in SECTIONS and key.partition(".")[2] not in PLAIN


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything that is no table; an empty table is none."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _said(key: str, value: Any) -> str:
    """A value as the file writes it; None, which is none: "" for a key of ours, and nothing below a table whose keys are free."""
    if value is None:
        return "(not set)" if key.startswith((*_DECIDES, "base.map")) else '""'
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def unread_change(state: Path) -> str | None:
    """The sentence that the files of the running daemon's configuration say something else than when it read them."""
    loaded = read_live(StatePaths(state).live).configuration if is_locked(StatePaths(state).lock) else None
    if loaded is None or loaded.file is None or loaded.digest is None or not os.path.isfile(loaded.file):
        return None
    try:
        now = layers.read(Path(loaded.file)).digest
    except UsageError:
        return None
    if now == loaded.digest:
        return None
    return (
        f"The configuration file {loaded.file} was changed since the daemon read it (at {local_time(loaded.at)}): the daemon works with the"
        f" earlier values. To use the new ones, run `ckptd reload --config {shlex.quote(loaded.file)}` first."
    )


def ask_for_reload(state: Path, config: Path | None = None) -> tuple[str, ...] | None:
    """Let the running daemon read its configuration again, and wait until it has; gives what that changed, as `changes`, None for nothing.

    `config`: the file that is meant. Raises UsageError where none runs, it works on another file or it refuses, Retryable where it does not
    answer.
    """
    operation = "reload the configuration"
    refuse_elsewhere(state, operation)
    if not is_locked(StatePaths(state).lock):
        raise UsageError(FaultCode.NOT_RUNNING, operation, "no daemon runs on this state directory", "start it: `ckptd run`", path=state)
    pid, live = _daemon_of(StatePaths(state).lock), read_live(StatePaths(state).live)
    before, wanted = live.configuration, None if config is None else str(config.absolute())
    if before and wanted and live.pid == pid and before.is_of_another_file(wanted):
        if before.file is None:
            cause, remedy = f"the daemon (pid {pid}) was started without a configuration file", "restart it"
        else:
            cause = f"the daemon (pid {pid}) works on {before.file}, not on {wanted}"
            remedy = f"run `ckptd reload --config {shlex.quote(before.file)}`; to use the other file, stop the daemon"
        remedy += f", then start it with `ckptd run --config {shlex.quote(wanted)}`"
        raise UsageError(FaultCode.RELOAD_REFUSED, operation, cause, remedy, path=state)
    os.kill(pid, signal.SIGHUP)
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        now = read_live(StatePaths(state).live).configuration
        answered = now is not None and (now.problem is not None or now.changed is not None)  # else it says what it read at its start
        if now is not None and answered and now.at != (before and before.at):
            if now.problem:
                raise UsageError(
                    FaultCode.RELOAD_REFUSED, operation, one_line(now.problem).rstrip("."), "correct it and reload again", path=state
                )
            return None if now.changed is False else now.changes
        time.sleep(0.1)
    raise Retryable(FaultCode.NO_ANSWER, operation, "the daemon did not answer in time", "see `ckptd logs`", path=state)


def _daemon_of(lock: Path) -> int:
    """The pid in a lock that is held. Raises UsageError where it is not a process of the file's owner: nobody else's gets a signal."""
    text, owner = lock.read_text(encoding="utf-8"), lock.stat().st_uid
    try:
        pid = int(text)
        if pid > 1 and os.stat(f"/proc/{pid}").st_uid == owner:
            return pid
    except (ValueError, OSError):
        pass
    raise UsageError(
        FaultCode.NOT_RUNNING, "reload the configuration", f"the lock file does not name a process of its owner: {text[:40]!r}",
        "restart the daemon that uses this state directory", path=lock,
    )  # fmt: skip
