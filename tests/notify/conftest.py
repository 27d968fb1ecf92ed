"""What tests of targets share: receivers, the process that sends, and what makes and empties a notifier."""

from __future__ import annotations

import base64
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from daemon.config.notify import NotifySettings
from daemon.journal.journal import Journal
from daemon.journal.outbox import enter_message
from daemon.journal.rows import Notice
from daemon.publishing.telling.notifier import Notifier
from daemon.publishing.telling.sender import Sender
from tests.notify.http_receivers import WAIT, HttpReceiver, http_receivers
from tests.runner.conftest import add as add
from tests.runner.conftest import make_toy as make_toy

SECRET = f"whsec_{base64.b64encode(b'S3CRET-of-the-signature-').decode()}"


@pytest.fixture
def receiver() -> Iterator[Callable[..., HttpReceiver]]:
    with http_receivers() as make:
        yield make


@pytest.fixture(scope="module")
def sending() -> Iterator[Sender]:
    """The process that sends: it takes long to start."""
    sender = Sender()
    yield sender
    sender.end()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    return file


Targets = Callable[..., NotifySettings]


@pytest.fixture
def targets(secret_file: Path) -> Targets:
    """Makes settings of `notify.targets`; a webhook's secret is that of `secret_file`."""

    def make(*tables: dict[str, Any], **others: Any) -> NotifySettings:
        complete = [{**({"secret_file": str(secret_file)} if "webhook" in table else {}), **table} for table in tables]
        return NotifySettings(targets=complete, **others).with_file()  # type: ignore[arg-type]

    return make


Notify = Callable[..., Notifier]


@pytest.fixture
def notifier_of(journal: Journal, sending: Sender) -> Iterator[Notify]:
    """Makes a notifier by its settings, of which the journal knows the targets."""

    def make(settings: NotifySettings, **others: Any) -> Notifier:
        notifier = Notifier(settings, journal, begin=sending.begin, **others)
        notifier.heartbeats.begin = sending.beat
        notifier.know_targets()
        return notifier

    yield make


def deliver(notifier: Notifier) -> None:
    """A round, and those after it until nothing is on its way."""
    end = time.monotonic() + WAIT
    notifier.tick()
    while notifier.sending:
        assert time.monotonic() < end, "it is still on its way"
        notifier.wait(0.5)
        notifier.tick()


def enter_all(journal: Journal, titles: Sequence[str]) -> None:
    """Messages with these titles, in one commit."""

    def enter(c: sqlite3.Connection) -> None:
        for title in titles:
            enter_message(c, "", Notice("failed", title, f"body of {title}"))

    journal.database.write("storm", enter)
