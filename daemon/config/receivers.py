"""Who gets notifications: the services of `[notify]`, with URLs out of the configuration and out of files for secrets.

Called when a configuration is loaded. The files keep URLs out of the configuration, and out of the reach of who may read that.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from daemon.contract.disk.files import read_bounded
from daemon.contract.faults.secret_url import SecretUrl
from daemon.contract.faults.secrets import scheme_of

CREDENTIAL = "notify-urls"
"""Name of the credential by which a service manager gives the URLs: `LoadCredential=notify-urls:PATH` (systemd.exec(5))."""
MOST_BYTES = 1 << 16
"""Of a file with URLs."""
MOST_URLS = 100
SIGNING = "whsec_"
"""What a secret begins with by which messages are signed, as Standard Webhooks has it; the rest is base64."""
LEAST_SECRET, MOST_SECRET = 24, 64
"""Bytes of such a secret."""
Event = Literal[
    "found", "succeeded", "partial", "failed", "rejected", "delivered", "delivery_failed", "stuck", "disk_low", "daemon_unwell",
    "recovered", "digest",
]  # fmt: skip
Kind = Literal["url", "webhook", "command", "heartbeat", "tensorboard", "mlflow", "wandb"]
TRACKERS: tuple[Kind, ...] = ("tensorboard", "mlflow", "wandb")
"""The kinds that get an export's figures and no messages."""
ENDS = frozenset({"succeeded", "partial", "failed", "rejected"})
"""The events that they get something of."""
_URL = re.compile(r"[A-Za-z0-9+.-]{1,32}://.+")
"""What every URL of a service looks like to Apprise; whether there is such a service, only Apprise knows (`ckptd check`)."""


@dataclass(frozen=True)
class Tracker:
    """What an experiment tracker is asked to keep, and by which names."""

    python: str
    """An interpreter that has its library."""
    folder: str = ""
    """Where TensorBoard's event files, or W&B's files, are written."""
    project: str = ""
    """W&B's: PROJECT or ENTITY/PROJECT."""
    offline: bool = False
    """Whether W&B's files are written and nothing is sent."""
    experiment: str = ""
    """MLflow's."""
    model: str = ""
    """MLflow's registered model, which gets a version of each export; "": none is registered."""
    alias: str = ""
    """What that model's newest version that passed is called; "": nothing."""
    variant: str = ""
    """The artifact that a version stands for; "": the whole export."""


@dataclass(frozen=True)
class Receiver:
    """A service that gets notifications."""

    place: str
    """What people know it by, without its secrets: `notify.urls.0 (slack)`."""
    url: SecretUrl
    """Of what it is; empty for a command."""
    name: str = ""
    """By which it stays the same, whatever else is changed; "": by its URL."""
    kind: Kind = "url"
    secret: SecretUrl | None = None
    """By which messages to it are signed; of a tracker its API key."""
    command: tuple[str, ...] = ()
    limit: float = 0.0
    """Seconds that its command may run."""
    minutes: float = 0.0
    """Between two signs of life."""
    on: frozenset[str] = frozenset()
    """Events that it is told of."""
    runs: tuple[str, ...] = ()
    """Patterns of the runs that it is told of; none: all."""
    quiet: str = ""
    """Hours of the day in which it gets nothing else than `urgent`: "22:00-07:00"."""
    urgent: frozenset[str] = frozenset()
    tracker: Tracker | None = None


def database_of(uri: str) -> Path | None:
    """The database of a store of MLflow; None where it has none, or is a server's."""
    path = re.match(r"sqlite:///(/[^?]+)", uri)
    return Path(path[1]) if path else None


def store_folder_of(uri: str) -> Path | None:
    """The folder in which MLflow writes without a server; None where there is one."""
    path = re.match(r"(?:file:(?://)?)?(/.*)", uri)
    database = database_of(uri)
    return database.parent if database else Path(path[1]) if path else None


def place_of(key: str, number: int, url: SecretUrl) -> str:
    """What people know a URL of `[notify]` by, without its secrets: its key, and its scheme where that looks like one."""
    scheme = scheme_of(url.get_secret_value())
    return f"notify.{key}.{number}" + (f" ({scheme})" if scheme else "")


def credential(name: str = CREDENTIAL) -> Path | None:
    """The file, of URLs by default, that the service manager gives this process; None without one."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(folder) / name if folder else None
    return path if path is not None and os.path.isfile(path) else None


def file_of(configured: Path | None, name: str = CREDENTIAL) -> Path | None:
    """Where a secret is read from, the URLs by default: the file of the configuration, or what the service manager gives this process where
    there is none, or where this process may not read it: such a file stays its owner's. None: from nowhere.

    systemd may close the credentials to a service's reload command, which then uses none; the daemon itself has them.
    """
    given = credential(name)
    if configured is None or (is_closed(configured) and (given is not None or _is_kept_back(name))):
        return given
    return configured


def _is_kept_back(name: str) -> bool:
    """Whether there are credentials that this process may not see."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return bool(folder) and is_closed(Path(str(folder), name))


def is_closed(path: Path) -> bool:
    """Whether a file is one that this user may not read."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(path, os.R_OK)


def _unreadable(error: OSError) -> ValueError:
    return ValueError(f"the file can't be read ({error.strerror or 'it is no plain file'}); let the daemon's user read it")


def read(path: Path) -> tuple[SecretUrl, ...]:
    """The URLs of a file, one a line; empty lines and those that begin with # are left out.

    Raises ValueError, whose text holds nothing of the file, where it can't be read or used.
    """
    try:
        text = read_bounded(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8 text; write one Apprise URL a line") from None
    except FileNotFoundError:
        raise ValueError("there is no such file; make it, with one Apprise URL a line") from None
    except OSError as error:
        raise _unreadable(error) from None
    except ValueError:
        raise ValueError(f"the file is no plain file of at most {MOST_BYTES >> 10} KiB; write one Apprise URL a line") from None
    return urls_in(text)


def read_one(path: Path) -> SecretUrl:
    """The only URL of a file. Raises ValueError as `read`."""
    urls = read(path)
    if len(urls) != 1:
        raise ValueError(f"the file has {len(urls)} URLs; write the target's only one")
    return urls[0]


def read_secret(path: Path) -> SecretUrl:
    """The secret of a file by which messages are signed. Raises ValueError, whose text holds nothing of the file."""
    made = f"make it: printf '{SIGNING}%s' \"$(openssl rand -base64 32)\" > FILE"
    try:
        secret = read_bounded(path, MOST_BYTES).decode("ascii").strip()
        size = len(base64.b64decode(secret.removeprefix(SIGNING), validate=True))
    except FileNotFoundError:
        raise ValueError(f"there is no such file; {made}") from None
    except OSError as error:
        raise _unreadable(error) from None
    except (ValueError, binascii.Error):
        raise ValueError(f"the file is no secret of the form {SIGNING}BASE64; {made}") from None
    if not secret.startswith(SIGNING) or not LEAST_SECRET <= size <= MOST_SECRET:
        raise ValueError(f"the secret is not {SIGNING} and base64 of {LEAST_SECRET} to {MOST_SECRET} bytes; {made}")
    return SecretUrl(secret)


def read_key(path: Path) -> SecretUrl:
    """The API key of a file. Raises ValueError, whose text holds nothing of the file."""
    try:
        key = read_bounded(path, MOST_BYTES).decode("ascii").strip()
    except FileNotFoundError:
        raise ValueError("there is no such file; make it, with the API key alone") from None
    except OSError as error:
        raise _unreadable(error) from None
    except ValueError:
        key = ""
    if not key or len(key.split()) != 1:
        raise ValueError("the file is no API key; write the key alone, in one line")
    return SecretUrl(key)


def read_text(path: Path) -> str:
    """The secret of a file as it is, of one line or more. Raises ValueError, whose text holds nothing of the file."""
    try:
        text = read_bounded(path, MOST_BYTES).decode("utf-8-sig").strip()
    except FileNotFoundError:
        raise ValueError("there is no such file; make it, with the secret alone") from None
    except OSError as error:
        raise _unreadable(error) from None
    except ValueError:
        raise ValueError(f"the file is no text of at most {MOST_BYTES >> 10} KiB; write the secret alone") from None
    if not text:
        raise ValueError("the file is empty; write the secret into it")
    return text


def urls_in(text: str) -> tuple[SecretUrl, ...]:
    """The URLs of such a text. Raises ValueError as `read`: with the number of the first line that is none."""
    lines = {number: line.strip() for number, line in enumerate(text.splitlines(), 1)}
    lines = {number: line for number, line in lines.items() if line and not line.startswith("#")}
    if len(lines) > MOST_URLS:
        raise ValueError(f"the file has {len(lines)} URLs; at most {MOST_URLS} can be used")
    if wrong := [number for number, line in lines.items() if not _URL.fullmatch(line)]:
        raise ValueError(f"line {wrong[0]} is no URL; write one Apprise URL a line, for example ntfys://ntfy.sh/TOPIC")
    return tuple(map(SecretUrl, lines.values()))
