"""What was given up is seen and sent again: by whom it was given up, with the id that it had, and nothing else."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from daemon.cli.main import app
from daemon.contract.faults.errors import UsageError
from daemon.journal.journal import Journal
from daemon.journal.rows import Notice
from daemon.publishing.telling import notifier as notify
from tests.notify.conftest import SECRET, WAIT, Notify, Targets, deliver
from tests.notify.http_receivers import HttpReceiver
from tests.service import Service as Daemon

Receivers = Callable[..., HttpReceiver]


@pytest.fixture
def config(journal: Journal, tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(f'[state]\ndirectory = "{journal.database.path.parent}"\n')
    return file


def run(config: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["notify", *words, "--config", str(config)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_dead_letters_are_listed_and_sent_again_with_their_id_to_who_gave_them_up(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "REJECTIONS", 1)
    bad, good = receiver(answers=[403, 403]), receiver()
    settings = targets({"name": "bad", "webhook": bad.url}, {"name": "good", "webhook": good.url})
    notifier = notifier_of(settings)
    assert "No notification waits" in run(config, "list")
    for title in ("first", "second", "third"):
        journal.outbox.announce(title, Notice("failed", title, "text"))
    deliver(notifier)
    rows = json.loads(run(config, "list", "--json"))
    assert [(row["id"], row["target"], row["state"], row["title"], row["attempts"], row["error"]) for row in rows] == [
        (1, "notify.targets.bad (webhook)", "dead", "first", 1, "error=403"),
        (2, "notify.targets.bad (webhook)", "dead", "second", 1, "error=403"),
    ]
    text = run(config, "list")
    lines = text.splitlines()
    assert lines[0] == "dead: #1 first" and lines[3] == "dead: #2 second" and lines[2] == "  error=403", text
    assert lines[1].startswith("  failed, 20") and lines[1].endswith(", notify.targets.bad (webhook), 1 attempt")
    assert "`ckptd notify resend`" in lines[-1]
    with pytest.raises(UsageError, match="no target that is configured now has given it up"):
        run(config, "resend", "3")
    assert "1 notification is sent again" in run(config, "resend", "2")
    deliver(notifier)
    assert "1 notification is sent again" in run(config, "resend")
    deliver(notifier)
    assert "No notification was given up" in run(config, "resend")
    told = [(json.loads(asked.body)["data"]["title"], asked.headers["webhook-id"]) for asked in bad.asked]
    assert [title for title, _ in told] == ["first", "second", "third", "second", "first"]
    assert told[0][1] == told[4][1] and told[1][1] == told[3][1] and len({id for _, id in told}) == 3
    assert len(good.asked) == 3, "who has it gets it no second time"
    assert {row[0] for row in journal.database.read("SELECT state FROM outbox")} == {"delivered"}


def test_a_target_keeps_what_waits_for_it_over_another_address(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify
) -> None:
    old, new = receiver(answers=[500]), receiver()
    notifier = notifier_of(targets({"name": "hook", "webhook": old.url}))
    journal.outbox.announce("title", Notice("failed", "title", "text"))
    deliver(notifier)
    notifier.adopt(targets({"name": "hook", "webhook": new.url}))
    deliver(notifier)
    assert (len(old.asked), len(new.asked), journal.outbox.pending()) == (1, 1, 0)


@pytest.mark.slow
def test_a_daemon_that_is_killed_after_the_commit_or_after_the_sending_delivers_with_one_id(
    make_service: Callable[..., Daemon], receiver: Receivers, secret_file: Path
) -> None:
    there = receiver()
    daemon = make_service(
        extra=f'[[notify.targets]]\nname = "hook"\nwebhook = "{there.url}"\nsecret_file = "{secret_file}"\n'
        f'[[notify.targets]]\nname = "alive"\nheartbeat = "{there.url}/beat"\n'
    )
    daemon.start()
    assert daemon.stop() == 0
    journal = Journal(daemon.state / "journal.sqlite3")
    journal.outbox.announce("title", Notice("failed", "title", "text"))
    journal.close()
    for place in ("before.claim-delivery", "before.delivered"):
        daemon.start(place)
        assert daemon.wait_dead() == -signal.SIGKILL
        end = time.monotonic() + (WAIT if place == "before.delivered" else 0.0)
        while not messages(there) and time.monotonic() < end:
            time.sleep(0.1)
        assert len(messages(there)) == (1 if place == "before.delivered" else 0)
    daemon.start()
    daemon.wait_for(lambda value: value["outbox"].get("delivered") == 1)
    assert daemon.stop() == 0
    assert len(messages(there)) == 2 and len(set(messages(there))) == 1
    assert any(asked.method == "GET" for asked in there.asked)
    kept = b"".join(path.read_bytes() for path in daemon.state.rglob("*") if path.is_file())
    assert SECRET.encode() not in kept and b"S3CRET" not in kept and SECRET not in daemon.log()


def messages(there: HttpReceiver) -> list[str]:
    return [asked.headers["webhook-id"] for asked in there.asked if asked.method == "POST"]
