"""`ckptd notify test | list | resend`. Thin; `daemon.cli` registers them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.common import ConfigOption, JsonOption, daemon_state, load_settings, print_json
from daemon.cli.parser.groups import place
from daemon.cli.parser.parsing import Group
from daemon.cli.views.markup import say
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.text import local_time
from daemon.contract.language.catalog import to_translate, translated, translated_plural, translated_text
from daemon.contract.language.lists import labelled

if TYPE_CHECKING:
    from daemon.config.receivers import Receiver
    from daemon.journal.letters import Letter
    from daemon.publishing.telling.outcome import Attempt
    from daemon.publishing.telling.sender import Sender

_app = typer.Typer(
    name="notify", help="Test notifications; resend what did not arrive.", no_args_is_help=True, cls=Group,
    rich_markup_mode=None,
)  # fmt: skip
_STATES = to_translate("waiting"), to_translate("held"), to_translate("dead")


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.add_typer(_app, **place("notify", "ckptd notify test"))


@_app.command(epilog="Example: ckptd notify test")
def test(config: ConfigOption = None, json_: JsonOption = False) -> None:
    """Send a test message to each service and target.

    A heartbeat gets a sign of life. Each answer is printed. Exit code 1: one did not accept it.
    """
    from daemon.publishing.telling.sender import Sender

    receivers = load_settings(config, own_state=True).notify.receivers
    if not receivers:
        raise UsageError(
            FaultCode.CONFIG_INVALID, "send a test message", "notify.urls is empty, and there is no notify.urls_file and no target",
            "add a service to one of them; see docs/configuration.md",
        )  # fmt: skip
    sender = Sender()
    waiting = {receiver.place: _begin(sender, receiver) for receiver in receivers}
    while any(sending.poll() is None for sending in waiting.values()):
        time.sleep(0.05)
    answers = {place: outcome.error for place, sending in waiting.items() if (outcome := sending.poll()) is not None}
    sender.end()
    if json_:
        print_json([{"service": place, "delivered": error is None, "error": error} for place, error in answers.items()])
    else:
        for service, error in answers.items():
            say(labelled(service, translated("delivered") if error is None else translated_text(error)))
    if any(answers.values()):
        raise typer.Exit(1)


def _begin(sender: Sender, receiver: Receiver) -> Attempt:
    import secrets
    import socket

    from daemon.journal.rows import Message

    if receiver.kind == "heartbeat":
        return sender.beat(receiver)
    title, body = f"ckptd on {socket.gethostname()}: a test message", "Notifications of exports will arrive here."
    return sender.begin(receiver, Message(0, "", "info", title, body, int(time.time()), key=f"msg_{secrets.token_hex(16)}"))


@_app.command("list", epilog="Example: ckptd notify list --json")
def list_(config: ConfigOption = None, json_: JsonOption = False) -> None:
    """List notifications that have not arrived.

    Those that wait, those that are held during quiet hours, and those that were given up: number and title, then event, time, target and
    attempts, then why the last attempt failed.
    """
    rows = _letters(daemon_state(config))
    if json_:
        print_json(rows)
        return
    for row in rows:
        state = labelled(translated(row.state), f"#{row.id} {row.title}")
        tried = translated_plural("{count} attempt", "{count} attempts", row.attempts).format(count=row.attempts)
        say(state)
        say(f"  {row.event}, {local_time(row.created)}, {row.target}, {tried}")
        if row.error:
            say(f"  {translated_text(row.error)}")
    if not rows:
        say(translated("No notification waits, and none was given up."))
    elif any(row.state == "dead" for row in rows):
        say(translated("`ckptd notify resend` sends those that are dead again."))


@_app.command(epilog="Example: ckptd notify resend 17")
def resend(
    ids: Annotated[list[int] | None, typer.Argument(help="Their numbers in `ckptd notify list`. Default: all.")] = None,
    config: ConfigOption = None,
) -> None:
    """Send notifications again that were given up.

    A running daemon sends them within half a minute, the next one at its start, each to the targets that did not take it.
    """
    from daemon.config.places.paths import existing
    from daemon.journal.journal import Journal

    journal = Journal(existing(daemon_state(config)))
    try:
        sent = journal.letters.resend(set(ids) if ids else None)
    finally:
        journal.close()
    if lacking := sorted(set(ids or ()) - set(sent)):
        raise UsageError(
            FaultCode.NO_SUCH_MESSAGE, f"send the notification {lacking[0]} again", "no target that is configured now has given it up",
            "take a number from `ckptd notify list`",
        )  # fmt: skip
    said = translated_plural("{count} notification is sent again.", "{count} notifications are sent again.", len(sent))
    say(said.format(count=len(sent)) if sent else translated("No notification was given up."))


def _letters(state: Path) -> tuple[Letter, ...]:
    from daemon.config.places.paths import existing
    from daemon.journal.file.opening import reading
    from daemon.journal.letters import letters

    with reading(existing(state)) as connection:
        return letters(connection)
