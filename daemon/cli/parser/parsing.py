"""The parser of the command line: typer's, with less to import. Every group of verbs is made by it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from daemon.cli.parser.groups import GROUPS
from daemon.cli.views.markup import say
from daemon.contract.faults.text import is_text
from daemon.contract.language.catalog import language, to_translate


class Group(TyperGroup):
    """A group of verbs. Values that are not given, and plain texts, are taken as they are: typer imports pydantic to look at them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What is left of the words; where there are none, help is shown and the command has not been used right."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            for line in ctx.get_help().splitlines():
                say(line)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        """The options of the group itself."""
        return take_as_they_are(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb of that name; None where there is none."""
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            take_as_they_are(command.get_params(ctx))
            command.parse_args = functools.partial(_parsed, command)
            if language() != "en" and not isinstance(command, Group):
                command.format_help = functools.partial(_write_page, command)
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The page of the group."""
        if language() == "en":
            super().format_help(ctx, formatter)
        else:
            _write_page(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The verbs in their groups, each with the first sentence of its help."""
        limit = formatter.width - 6 - max(map(len, self.commands), default=0)
        for title, names in groups_of(self.commands):
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in names])


def _parsed(command: Any, ctx: Any, args: list[str]) -> list[str]:
    """Return what is left of a verb's words. A mistake in them is one of this verb: the parser forgets where an option lacks its value."""
    try:
        rest: list[str] = type(command).parse_args(command, ctx, args)
    except TyperException as error:
        vars(error).update(ctx=getattr(error, "ctx", None) or ctx)
        raise
    return rest


def groups_of(names: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """Title → those of the verbs that stand in a group of the help; all of them as one group where they are none of `GROUPS`."""
    known = [(title, [verb for verb in verbs if verb in names]) for title, verbs in GROUPS.items()]
    if sum(len(verbs) for _, verbs in known) == len(names):
        yield from ((title, verbs) for title, verbs in known if verbs)
    else:
        yield to_translate("Commands"), list(names)


def _write_page(command: Any, ctx: Any, formatter: Any) -> None:
    """The page of a command in another language than English."""
    from daemon.cli.parser.help_page import page, summary

    inner = getattr(command, "commands", {})
    verbs = {title: [(name, summary(inner[name].help or "")) for name in names] for title, names in groups_of(inner)} if inner else {}
    formatter.write(page(command, ctx, verbs, formatter.width))


class _AsItIs:
    """How typer makes a parameter's value of the words, where that is not needed."""

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """The value; by typer's own way, which checks it, for all but texts, paths that may be anything, and what is not given."""
        kind, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if value is None or (type(value) is kind and kind in (str, int)):  # a number is a default; words are still to be read
            return value
        if kind == list[str] and isinstance(value, tuple | list) and all(isinstance(part, str) and is_text(part) for part in value):
            return list(value)
        if kind is Path and isinstance(value, str) and is_text(value) and _may_be_anything(info):
            return Path(value)
        from typer._coercion import build_runtime_param

        return build_runtime_param(param.type_descriptor).coerce(value, param=param, ctx=ctx)


def _may_be_anything(info: Any) -> bool:
    """Whether nothing of a path is looked at."""
    asked = (info.exists, info.readable, info.writable, info.resolve_path, info.allow_dash, info.path_type, info.parser)
    return info.file_okay and info.dir_okay and not any(asked)


def take_as_they_are(parameters: list[Any]) -> list[Any]:
    """Let typer take values as they are where it can. A release of typer that has no such attribute takes no notice."""
    for parameter in parameters:
        if getattr(parameter, "_runtime_param", 0) is None:
            parameter._runtime_param = _AsItIs()
    return parameters
