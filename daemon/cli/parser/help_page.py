"""What `--help` shows in another language than English, laid out by cells: the parser's own pages count a Chinese character as one.

Imported only where it is needed: English help is typer's, which starts faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from daemon.contract.language.catalog import to_translate, translated
from daemon.operating.log.wrapping import wrap

_FIRST = 30
"""Cells of the names at the most, beside which what they mean begins in the same line."""
_OF_TYPER = {
    r"\[default: ": to_translate("[default: "), r"; required\]$": to_translate("; required]"), r"\[required\]$": to_translate("[required]"),
    r"\[env var: ": to_translate("[env var: "),
}  # fmt: skip
"""What the parser puts behind a help text."""
EXAMPLE = "Example: "
_HELP = to_translate("Show this message and exit.")
Rows = Sequence[tuple[str, str]]


def page(command: Any, context: Any, verbs: Mapping[str, Rows], width: int) -> str:
    """The page of a command. `verbs`: title → (name, what it does) of the commands below it."""
    usage = translated("Usage: {line}").format(line=" ".join([context.command_path, *command.collect_usage_pieces(context)]))
    parts = ["\n".join(_hanging(usage, width, "    "))]
    parts += [
        "\n".join(f"  {line}" for line in wrap(" ".join(text.split()), width - 2)) for text in translated(command.help or "").split("\n\n")
    ]
    kinds: dict[str, list[tuple[str, str]]] = {to_translate("Arguments"): [], to_translate("Options"): []}
    for parameter in command.get_params(context):
        parameter.help = translated(parameter.help or "")
        if (record := parameter.get_help_record(context)) is not None:
            kinds["Arguments" if parameter.param_type_name == "argument" else "Options"].append((record[0], _in_language(record[1])))
    parts += [_section(title, rows, width) for title, rows in (*kinds.items(), *verbs.items()) if rows]
    if command.epilog:
        example = translated("Example: {command}").format(command=command.epilog.removeprefix(EXAMPLE))
        parts.append("  " + (example if command.epilog.startswith(EXAMPLE) else translated(command.epilog)))
    return "\n\n".join(parts) + "\n"


def summary(text: str) -> str:
    """The first sentence of a command's help."""
    first = " ".join(translated(text).partition("\n\n")[0].split())
    return first.partition("。")[0]


def _in_language(text: str) -> str:
    for theirs, ours in _OF_TYPER.items():
        text = re.sub(theirs, translated(ours), text)
    return text


def _section(title: str, rows: Rows, width: int) -> str:
    first = min(max(cell_len(name) for name, _ in rows), _FIRST) + 2
    return "\n".join([translated("{title}:").format(title=translated(title)), *_rows(rows, first, width)])


def _rows(rows: Iterable[tuple[str, str]], first: int, width: int) -> Iterator[str]:
    for name, text in rows:
        beside, *more = wrap(text, width - first - 2)
        if cell_len(name) + 2 > first:
            yield f"  {name}"
            yield " " * (first + 2) + beside
        else:
            yield f"  {name}{' ' * (first - cell_len(name))}{beside}".rstrip()
        yield from (" " * (first + 2) + line for line in more)


def _hanging(text: str, width: int, indent: str) -> list[str]:
    begin, *more = wrap(text, width - len(indent))
    return [begin, *(indent + line for line in more)]
