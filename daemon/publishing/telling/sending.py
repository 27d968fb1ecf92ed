"""Notifications in a process of their own: `python -m daemon.publishing.telling.sending`; to services by Apprise.

Run by `daemon.publishing.telling.sender`. Apprise does not bound its time: a service that sends its answer byte by byte holds a call for
ever, and a process can be ended. It costs about 40 MB, which the daemon would keep. Addresses, secrets and messages come by standard input,
a JSON object a line, so that none is in the list of processes, and each is sent in a thread of its own; how that ended is a line of
standard output. What services say comes back without any part of the URLs, since those hold secrets.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import json
import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from daemon.config.receivers import Receiver
from daemon.contract.faults.advice import quoted
from daemon.contract.faults.secret_url import SecretUrl
from daemon.publishing.telling import hook, webhook
from daemon.publishing.telling.outcome import LIMIT_SECONDS, NO_SERVICE, Outcome, without_secrets
from daemon.publishing.telling.trackers import delivery
from daemon.system.processes.signals import on_signals

_REJECTED = re.compile(r"\berror=(400|413|415|422)\b")
"""Answers by which a service says that the message, not the service, is the trouble."""


def fault_of(url: SecretUrl) -> str | None:
    """What is wrong with a URL of `notify.urls`, as a clause without anything of the URL; None where a service can be made of it."""
    with _captured():
        return _fault(_services(url.get_secret_value()))


def fault_of_receiver(receiver: Receiver) -> str | None:
    """What can be seen to be wrong with a receiver before anything is sent, as a clause without secrets; None where nothing is."""
    match receiver.kind:
        case "url":
            return fault_of(receiver.url)
        case "command" | "tensorboard" | "mlflow" | "wandb":
            program = receiver.tracker.python if receiver.tracker else receiver.command[0]
            if not shutil.which(program):
                return f"there is no program {quoted(program)} that can be run"
            return delivery.fault_of(receiver.kind, receiver.tracker) if receiver.tracker else None
    return None


def _services(url: str) -> Any:
    import apprise  # a heavy import, not needed if nobody is to be notified

    services = apprise.Apprise()
    return services if services.add(url) else None


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


_TYPES = {
    "succeeded": "success", "recovered": "success", "delivered": "success", "failed": "failure", "delivery_failed": "failure",
    "daemon_unwell": "failure", "info": "info", "found": "info",
    "digest": "info",
}  # fmt: skip
"""Event → the type of message by which Apprise chooses colour and sign; of all others "warning"."""


def send(url: str, kind: str, title: str, body: str) -> Outcome:
    """Send one message to one service and wait for its answer."""
    with _captured() as said, _no_redirects() as redirects:
        try:
            services = _services(url)
            if (fault := _fault(services)) is not None:
                return Outcome(fault, unknown=True)
            if services.notify(title=title, body=body, notify_type=_TYPES.get(kind, "warning")) and not redirects:
                return Outcome(None)
            if redirects:
                return Outcome(f"error={redirects[0]}: it refers to another address, where nothing is sent; give that address instead")
            answer = "; ".join(said) or "the service did not accept it"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
    return Outcome(without_secrets(answer, url), rejected=bool(_REJECTED.search(answer)))


def look(url: str) -> Outcome:
    """Find out whether a URL names a service at all; nothing is sent."""
    fault = fault_of(SecretUrl(url))
    return Outcome(fault, unknown=fault is not None)


def deliver(order: dict[str, Any]) -> Outcome:
    """Do what an order says; one without a message asks for a look."""
    match order["how"]:
        case "webhook":
            return webhook.post(order["url"], order["secret"], order["key"], order["payload"])
        case "heartbeat":
            return webhook.beat(order["url"])
        case "command":
            return hook.run(order["command"], order["limit"], order["key"], order["kind"], order["payload"])
        case "tensorboard" | "mlflow" | "wandb" as kind:
            return delivery.write(kind, order)
    return send(order["url"], order["kind"], order["title"], order["body"]) if "kind" in order else look(order["url"])


def main() -> None:
    """Do what the lines of standard input say, each in a thread; tell how that ended on standard output. Ends with its input."""
    orders, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")  # which no child has
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    writing, threads = threading.Lock(), list[threading.Thread]()
    hook.adopt_orphans()
    on_signals((signal.SIGTERM,), _end)

    def obey(order: dict[str, Any]) -> None:
        try:
            outcome = deliver(order)
        except Exception as error:  # without an answer, the message would wait for its limit, and this process get no other
            outcome = Outcome(f"it could not be sent: {type(error).__name__}")
        with writing, contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps({"id": order["id"], **asdict(outcome)}) + "\n")
            answers.flush()

    for line in orders:
        threads = [thread for thread in threads if thread.is_alive()]
        threads.append(threading.Thread(target=obey, args=(json.loads(line),), daemon=True))
        threads[-1].start()
    signal.alarm(int(LIMIT_SECONDS) + 5)  # the daemon may be gone
    for thread in threads:
        thread.join()


def _end() -> None:
    """The daemon stops."""
    hook.end_all()
    delivery.clear()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
