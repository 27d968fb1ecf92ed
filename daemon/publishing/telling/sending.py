"""Notifications to services, by Apprise in a process of its own: `python -m daemon.publishing.telling.sending`.

Run by `daemon.publishing.telling.sender`. Apprise does not bound its time: a service that sends its answer byte by byte holds a call for
ever, and a process can be ended. It costs about 40 MB, which the daemon would keep. URLs and messages come by standard input, a JSON object
a line, so that neither is in the list of processes, and each is sent in a thread of its own; how that ended is a line of standard output.
What services say comes back without any part of the URLs, since those hold secrets.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import json
import logging
import re
import signal
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from daemon.contract.faults.secret_url import SecretUrl

LIMIT_SECONDS = 60.0
"""Longest time for one attempt; Apprise gives a connection four seconds, some services need several."""
SAID = 400
"""Characters of what a service said that are kept."""
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


def fault_of(url: SecretUrl) -> str | None:
    """What is wrong with a URL of `notify.urls`, as a clause without anything of the URL; None where a service can be made of it."""
    with _captured():
        return _fault(_services(url.get_secret_value()))


def _services(url: str) -> Any:
    import apprise  # a heavy import, not needed if nobody is to be notified

    services = apprise.Apprise()
    return services if services.add(url) else None


NO_SERVICE = "no Apprise service has such a URL, or the package that the service needs is not installed"


def _fault(services: Any) -> str | None:
    if services is None:
        return NO_SERVICE
    if len(services) != 1:
        return f"it contains {len(services)} URLs; list each one separately"
    return None


_SAID: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("said", default=None)
"""Where what Apprise says goes, of several messages that are sent at the same time."""


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """What Apprise says to its log, which may name whole URLs, goes into a list and nowhere else."""
    logger, said, before = logging.getLogger("apprise"), list[str](), _SAID.get()
    _SAID.set(said)
    handler = logging.Handler(logging.WARNING)
    handler.addFilter(lambda record: _SAID.get() is said)  # Apprise's own threads get the context of the call
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        _SAID.set(before)


_REDIRECTED: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("redirected", default=None)
"""Where the statuses of a message's answers go that lead elsewhere."""


@functools.cache
def _follow_no_redirects() -> None:
    """From now on no answer leads to another address.

    Apprise follows redirects as a browser does: a message becomes a GET without a body, whose 200 says that it arrived, and the URL's
    credentials go to a host that nobody configured.
    """
    session: Any = importlib.import_module("requests.sessions").Session
    request = session.request

    def ask(self: Any, *words: Any, **options: Any) -> Any:
        answer = request(self, *words, **{**options, "allow_redirects": False})
        if 300 <= answer.status_code < 400 and (seen := _REDIRECTED.get()) is not None:
            seen.append(answer.status_code)
        return answer

    session.request = ask


@contextlib.contextmanager
def _no_redirects() -> Iterator[list[int]]:
    """The statuses of answers that lead to another address, none of which is followed."""
    _follow_no_redirects()
    seen, before = list[int](), _REDIRECTED.get()
    _REDIRECTED.set(seen)
    try:
        yield seen
    finally:
        _REDIRECTED.set(before)


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
    with _captured() as said, _no_redirects() as redirects:
        try:
            services = _services(url)
            if (fault := _fault(services)) is not None:
                return Outcome(fault, unknown=True)
            import apprise

            kinds = {"succeeded": apprise.NotifyType.SUCCESS, "failed": apprise.NotifyType.FAILURE, "info": apprise.NotifyType.INFO}
            if services.notify(title=title, body=body, notify_type=kinds.get(kind, apprise.NotifyType.WARNING)) and not redirects:
                return Outcome(None)
            if redirects:
                return Outcome(f"error={redirects[0]}: it refers to another address, where nothing is sent; give that address instead")
            answer = "; ".join(said) or "the service did not accept it"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
    return Outcome(without_secrets(answer, url)[:SAID], rejected=bool(_REJECTED.search(answer)))


def look(url: str) -> Outcome:
    """Find out whether a URL names a service at all; nothing is sent."""
    fault = fault_of(SecretUrl(url))
    return Outcome(fault, unknown=fault is not None)


def main() -> None:
    """Send what the lines of standard input say, each in a thread; tell how that ended on standard output. Ends with its input.

    A line without a message asks for a look.
    """
    answers, sys.stdout = sys.stdout, sys.stderr  # services' libraries may print
    writing, threads = threading.Lock(), list[threading.Thread]()

    def deliver(order: dict[str, Any]) -> None:
        outcome = send(order["url"], order["kind"], order["title"], order["body"]) if "kind" in order else look(order["url"])
        with writing, contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps({"id": order["id"], **asdict(outcome)}) + "\n")
            answers.flush()

    for line in sys.stdin:
        threads = [thread for thread in threads if thread.is_alive()]
        threads.append(threading.Thread(target=deliver, args=(json.loads(line),), daemon=True))
        threads[-1].start()
    signal.alarm(int(LIMIT_SECONDS) + 5)  # the daemon may be gone
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
