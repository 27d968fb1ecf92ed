"""The man page ckptd(1), made of the verbs' own help: `python -m daemon.cli.manual > docs/ckptd.1`. A test holds the file equal.

The page goes into the wheel, where `man` finds it beside the command, and `ckptd install-service` writes it for the whole box.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from daemon.cli.main import app
from daemon.contract.version import __version__

_DESCRIPTION = (
    "ckptd watches the directories where trainers write. When a checkpoint is complete, ckptd merges, quantizes and exports it, compares"
    " the artifacts with the trained model, and publishes them with a report. `ckptd init` writes a first configuration,"
    " `ckptd install-service` creates the service, `ckptd status` shows the current state."
)
_EXITS = (
    ("0", "Done."),
    ("1", "The export failed, or a check found a problem; see the text of the command."),
    ("2", "Wrong usage or configuration."),
    ("3", "Partial: some variants failed, the others are published."),
    ("70", "A thread of the daemon failed and could not be restarted."),
    ("75", "Temporary failure: not enough memory or disk, or no network; try again later."),
)
_ENVIRONMENT = (
    ("CKPTD_CONFIG", "Configuration file, if --config is not given."),
    ("CKPTD_SECTION__KEY", "Overrides one key of the configuration, for example CKPTD_WATCH__SETTLE_SECONDS."),
)
_FILES = (
    ("/etc/ckptd/config.toml", "Configuration of the system's service."),
    ("~/.config/ckptd/config.toml", "Configuration of a user."),
    ("/var/lib/ckptd", "State of the system's service: journal, pins, logs."),
    ("~/.local/state/ckptd", "State of a user's daemon."),
)


def page() -> str:
    """The whole page, as roff."""
    lines = [
        '.\\" Made of the help by `python -m daemon.cli.manual > docs/ckptd.1`; change it there.',
        f'.TH CKPTD 1 "" "ckptd {__version__}" "User commands"',
        ".SH NAME",
        f"ckptd \\- {_text('turns finished training checkpoints into verified, deployable models')}",
        ".SH SYNOPSIS",
        ".B ckptd",
        ".I COMMAND",
        "[\\fIoption\\fR ...]",
        ".SH DESCRIPTION",
        _text(_DESCRIPTION),
        ".SH COMMANDS",
    ]
    group: Any = typer.main.get_command(app)
    for words, command in _verbs(group):
        lines += [".SS " + _usage(words, command), _text(command.help or "")]
        for parameter in command.params:
            if parameter.help and not parameter.hidden:
                lines += [".TP", _label(parameter), _text(parameter.help)]
    lines.append(".SH OPTIONS")
    for parameter in group.params:
        lines += [".TP", _label(parameter), _text(parameter.help)]
    for title, rows in (("EXIT STATUS", _EXITS), ("ENVIRONMENT", _ENVIRONMENT), ("FILES", _FILES)):
        lines.append(f".SH {title}")
        for name, meaning in rows:
            lines += [".TP", f"\\fB{_text(name)}\\fR", _text(meaning)]
    return "\n".join(lines) + "\n"


def _verbs(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every verb that the help shows: its words, and typer's command."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _verbs(command, (*before, name))
        else:
            yield (*before, name), command


def _usage(words: tuple[str, ...], command: Any) -> str:
    arguments = [argument for argument in command.params if argument.param_type_name == "argument"]
    shown = [_value(argument) if argument.required else f"[{_value(argument)}]" for argument in arguments]
    return _text(" ".join(["ckptd", *words, *shown]))


def _label(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"\\fI{_text(_value(parameter))}\\fR"
    value = "" if parameter.is_flag else f" \\fI{_text(_value(parameter))}\\fR"
    return ", ".join(f"\\fB{_text(name)}\\fR" for name in (*parameter.opts, *parameter.secondary_opts)) + value


def _value(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.strip("_").upper())


def _text(text: str) -> str:
    """Words as roff takes them literally: a line never begins with a control character."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    sys.stdout.write(page())
