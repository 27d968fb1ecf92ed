"""Who gets notifications: the services of `[notify]`, with URLs out of the configuration and out of a file for secrets.

Called when a configuration is loaded. The file keeps the URLs out of the configuration, and out of the reach of who may read that.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.disk.files import read_bounded
from daemon.contract.faults.secret_url import SecretUrl
from daemon.contract.faults.secrets import scheme_of

CREDENTIAL = "notify-urls"
"""Name of the credential by which a service manager gives the URLs: `LoadCredential=notify-urls:PATH` (systemd.exec(5))."""
MOST_BYTES = 1 << 16
"""Of a file with URLs."""
MOST_URLS = 100
_URL = re.compile(r"[A-Za-z0-9+.-]{1,32}://.+")
"""What every URL of a service looks like to Apprise; whether there is such a service, only Apprise knows (`ckptd check`)."""


@dataclass(frozen=True)
class Receiver:
    """A service that gets notifications."""

    place: str
    """What people know it by, without its secrets: `notify.urls.0 (slack)`."""
    url: SecretUrl


def place_of(key: str, number: int, url: SecretUrl) -> str:
    """What people know a URL of `[notify]` by, without its secrets: its key, and its scheme where that looks like one."""
    scheme = scheme_of(url.get_secret_value())
    return f"notify.{key}.{number}" + (f" ({scheme})" if scheme else "")


def credential() -> Path | None:
    """The file of URLs that the service manager gives this process; None without one."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(folder) / CREDENTIAL if folder else None
    return path if path is not None and os.path.isfile(path) else None


def file_of(configured: Path | None) -> Path | None:
    """Where the URLs are read from: the file of the configuration, or what the service manager gives this process where there is none, or
    where this process may not read it: such a file stays its owner's. None: from nowhere.

    systemd may close the credentials to a service's reload command, which then uses none; the daemon itself has them.
    """
    given = credential()
    if configured is None or (is_closed(configured) and (given is not None or _is_kept_back())):
        return given
    return configured


def _is_kept_back() -> bool:
    """Whether there are credentials that this process may not see."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return bool(folder) and is_closed(Path(str(folder), CREDENTIAL))


def is_closed(path: Path) -> bool:
    """Whether a file is one that this user may not read."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(path, os.R_OK)


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
        raise ValueError(f"the file can't be read ({error.strerror or 'it is no plain file'}); let the daemon's user read it") from None
    except ValueError:
        raise ValueError(f"the file is no plain file of at most {MOST_BYTES >> 10} KiB; write one Apprise URL a line") from None
    return urls_in(text)


def urls_in(text: str) -> tuple[SecretUrl, ...]:
    """The URLs of such a text. Raises ValueError as `read`: with the number of the first line that is none."""
    lines = {number: line.strip() for number, line in enumerate(text.splitlines(), 1)}
    lines = {number: line for number, line in lines.items() if line and not line.startswith("#")}
    if len(lines) > MOST_URLS:
        raise ValueError(f"the file has {len(lines)} URLs; at most {MOST_URLS} can be used")
    if wrong := [number for number, line in lines.items() if not _URL.fullmatch(line)]:
        raise ValueError(f"line {wrong[0]} is no URL; write one Apprise URL a line, for example ntfys://ntfy.sh/TOPIC")
    return tuple(map(SecretUrl, lines.values()))
