"""One notification to one service, by Apprise in a process of its own: `python -m daemon.publishing.sending`.

Apprise does not bound its time: a service that sends its answer byte by byte holds a call for ever, and a process can be ended. It costs
about 30 MB, which the daemon would keep. URL and message come by standard input, so that neither is in the list of processes; what the
services say comes back without any part of the URL, since that holds secrets.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from daemon.contract.secrets import SecretUrl
from daemon.journal.rows import Message

LIMIT_SECONDS = 60.0
"""Longest time for one attempt; Apprise gives a connection four seconds, some services need several."""
SAID = 400
"""Characters of what a service said that are kept."""
_ENVIRONMENT = re.compile(
    r"PATH|HOME|LANG|LC_\w+|TZ|TMPDIR|PYTHON\w+|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|((https?|all|no)_proxy)", re.IGNORECASE
)  # fmt: skip
"""What a sender inherits: nothing of the daemon's secrets, for example other notifications' URLs."""
_REJECTED = re.compile(r"\berror=(400|413|415|422)\b")
"""Answers by which a service says that the message, not the service, is the trouble."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    error: str | None
    """Without secrets; None: the service took it."""
    unknown: bool = False
    """The URL names no service: nothing sent to it can arrive."""
    rejected: bool = False
    """The service answers, and does not take this message."""


class Attempt(Protocol):
    """A message on its way to one service."""

    @property
    def wait_handle(self) -> int | None:
        """A file descriptor that becomes readable when there is something to poll for, if there is one."""

    def poll(self) -> Outcome | None:
        """How it ended, the same at every further call; None while it goes on."""

    def end(self) -> None:
        """End it now."""


class Sending:
    """An attempt that runs. `poll` until it gives an outcome."""

    def __init__(self, url: SecretUrl, message: Message) -> None:
        """Begin to send. Raises OSError where no process can be started."""
        order = json.dumps({"url": url.get_secret_value(), "kind": message.kind, "title": message.title, "body": message.body}).encode()
        with open(os.memfd_create("message"), "w+b") as file:
            file.write(order)
            file.flush()
            file.seek(0)
            # In our session: a child of ours that leads one counts as left behind by an attempt, and is ended with it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "daemon.publishing.sending"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                process_group=0, cwd="/", env={key: value for key, value in os.environ.items() if _ENVIRONMENT.fullmatch(key)},
            )  # fmt: skip
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self._deadline = time.monotonic() + LIMIT_SECONDS
        self._outcome: Outcome | None = None

    @property
    def wait_handle(self) -> int | None:
        """A file descriptor that becomes readable when there is something to poll for; None once it has ended."""
        return self._pipe.fileno() if self._outcome is None else None

    def poll(self) -> Outcome | None:
        """How it ended, the same at every further call; None while it goes on."""
        if self._outcome is None and (self._process.poll() is not None or time.monotonic() > self._deadline):
            late = self._process.returncode is None
            self._kill()
            self._outcome = Outcome(f"no answer within {LIMIT_SECONDS:.0f} s") if late else self._read()
            self._pipe.close()
        return self._outcome

    def end(self) -> None:
        """End it now. Whether the message arrived is not known then."""
        if self._outcome is None:
            self._kill()
            self._pipe.close()
            self._outcome = Outcome("the sending process ended before the service answered")

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> Outcome:
        try:
            return Outcome(**json.loads(self._pipe.read() or b""))
        except (ValueError, TypeError):
            return Outcome(f"the sending process ended with {self._process.returncode}")


def fault_of(url: SecretUrl) -> str | None:
    """What is wrong with a URL of `notify.urls`, as a clause without anything of the URL; None where a service can be made of it."""
    with _captured():
        return _fault(_services(url.get_secret_value()))


def _services(url: str) -> Any:
    import apprise  # a heavy import, not needed if nobody is to be notified

    services = apprise.Apprise()
    return services if services.add(url) else None


def _fault(services: Any) -> str | None:
    if services is None:
        return "no Apprise service has such a URL, or the package that the service needs is not installed"
    if len(services) != 1:
        return f"it contains {len(services)} URLs; list each one separately"
    return None


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """What Apprise says to its log, which may name whole URLs, goes into a list and nowhere else."""
    logger, said = logging.getLogger("apprise"), list[str]()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def without_secrets(text: str, url: str) -> str:
    """`text` without any part of the URL that is longer than three characters, but for its scheme."""
    rest = url.partition("://")[2] or url
    parts = {part for form in (rest, urllib.parse.unquote(rest)) for part in (form, *re.split(r"[/:@?&=#,;+\s]+", form)) if len(part) > 3}
    parts |= {urllib.parse.quote(part) for part in parts}
    for part in sorted(parts, key=len, reverse=True):
        text = re.sub(re.escape(part), "…", text, flags=re.IGNORECASE)
    return text


def send(url: str, kind: str, title: str, body: str) -> Outcome:
    """Send one message to one service and wait for its answer."""
    with _captured() as said:
        try:
            services = _services(url)
            if (fault := _fault(services)) is not None:
                return Outcome(fault, unknown=True)
            import apprise

            kinds = {"succeeded": apprise.NotifyType.SUCCESS, "failed": apprise.NotifyType.FAILURE, "info": apprise.NotifyType.INFO}
            if services.notify(title=title, body=body, notify_type=kinds.get(kind, apprise.NotifyType.WARNING)):
                return Outcome(None)
            answer = "; ".join(said) or "the service did not accept it"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
    return Outcome(without_secrets(answer, url)[:SAID], rejected=bool(_REJECTED.search(answer)))


def main() -> None:
    """Send what standard input says; tell how that ended on standard output."""
    signal.alarm(int(LIMIT_SECONDS) + 5)  # the daemon may be gone
    order = json.loads(sys.stdin.buffer.read())
    answer, sys.stdout = sys.stdout, sys.stderr  # services' libraries may print
    outcome = send(order["url"], order["kind"], order["title"], order["body"])
    answer.write(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
