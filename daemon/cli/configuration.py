"""`ckptd config`: what counts, and where each value comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from daemon.cli.common import ConfigOption, JsonOption, configuration_of, load_settings, print_json
from daemon.cli.parser.groups import place
from daemon.cli.parser.parsing import Group
from daemon.cli.views.markup import say_lines, terminal
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.secrets import PLAIN, SECTIONS, holds_secret, is_credential, shown
from daemon.contract.language.catalog import to_translate, translated
from daemon.contract.language.lists import bracketed
from daemon.contract.language.lists import names as list_names

app = typer.Typer(help="Show what is configured, and where it comes from.", no_args_is_help=True, cls=Group, rich_markup_mode=None)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 60
"""Place of the comments, where there is room."""
_COMMENT = 12
"""Cells that a comment has on a narrow terminal at the least."""
Names = tuple[str, ...]
_ORIGINS = to_translate("default"), to_translate("command line"), to_translate("environment")


def register(verbs: typer.Typer) -> None:
    """Put the verbs of this module beside the others."""
    verbs.add_typer(app, name="config", **place("config", "ckptd config show --changed"))


def set_values(given: list[str] | None) -> None:
    """Take what `--set KEY=VALUE` says. Raises UsageError for one that is not of that form."""
    if not given:
        return
    from daemon.config.sources import given_on_command_line

    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                FaultCode.CONFIG_INVALID, "use --set", f"{shown(text)} is not KEY=VALUE", "write for example --set limits.jobs=2"
            )  # fmt: skip
        _refuse_secret(key.strip().lower(), value.strip())
        given_on_command_line[key.strip().lower()] = value.strip()


def _refuse_secret(key: str, value: str) -> None:
    """Raise UsageError for a secret on the command line, which every user of the machine can read while the command runs."""
    from daemon.config.sources import ADDRESSES

    section, _, name = key.partition(".")
    is_secret = section in SECTIONS and name not in PLAIN and value not in ("", "[]")
    if is_secret or is_credential(key) or (holds_secret if key in ADDRESSES else is_credential)(value):
        what = f"a value of [{section}] may hold a secret" if is_secret else "an address of a service, or a key of one, is a secret"
        where = ", or set the variable CKPTD_DELIVER" if section == "deliver" else (
            " or the file of notify.urls_file, or set the variable CKPTD_NOTIFY__URLS"
        )  # fmt: skip
        raise UsageError(
            FaultCode.CONFIG_INVALID, "use --set", f"{what}, and others can see a command line",
            f"write it into the configuration{where}",
        )  # fmt: skip


def make_only(variants: Sequence[str], targets: Sequence[str] = ()) -> None:
    """Make these variants, and what is made for these targets of `export.deploy`, and nothing else that the configuration names."""
    from daemon.config.sources import named_by

    if variants or targets:
        named_by.update({"export.variants": "--to" if variants else "--deploy", "export.deploy": "--deploy"})
        set_values([f"export.variants={json.dumps(list(variants))}", f"export.deploy={json.dumps(list(targets))}"])


@app.command(epilog="Example: ckptd config show limits.jobs")
def show(
    key: Annotated[str, typer.Argument(help="Only this section or key, for example limits or limits.jobs.")] = "",
    changed: Annotated[bool, typer.Option("--changed", help="Only values that differ from the defaults.")] = False,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Print the effective values as TOML, each with its origin. Secrets are not printed."""
    from daemon.config import layers
    from daemon.config.suggestions import nearest

    files = layers.read(configuration_of(config))
    settings = load_settings(config, own_state=True, files=files)
    values = settings.model_dump(mode="json")
    wanted = tuple(key.split(".")) if key else ()
    rows = [(names, value) for names, value in _leaves(values) if names[: len(wanted)] == wanted]
    if not rows:
        known = [*values, *(".".join(names) for names, _ in _leaves(values))]
        said = nearest(key, known)
        cause = f"there is no {key!r} ({said if said.startswith('did you mean') else nearest(key, values)})"
        raise UsageError(
            FaultCode.CONFIG_INVALID, "show the configuration", cause, "give a section or a key; docs/configuration.md describes each"
        )
    origins = {names: layers.origin_of(".".join(names), files) for names, _ in rows}
    rows = [row for row in rows if origins[row[0]] != layers.DEFAULT or not _is_hidden(row[0], wanted)]
    rows = [(names, value) for names, value in rows if not changed or origins[names] != layers.DEFAULT]
    if json_:
        print_json({
            "files": [str(file) for file, _ in files.each],
            "values": {".".join(names): {"value": value, "origin": origins[names]} for names, value in rows},
        })  # fmt: skip
        return
    named = list_names(str(file) for file, _ in files.each) or translated("no file; these are the defaults")
    from daemon.operating.log.wrapping import width_of

    width = width_of(terminal())
    say_lines("\n".join([*_comment(named, width), *_tables(rows, origins, width)]))


def _is_hidden(names: Names, wanted: Names) -> bool:
    """Whether a key is one of an earlier version, and nobody asks for it by its name."""
    from daemon.config.older_keys import HIDDEN

    above = {".".join(names[:depth]) for depth in range(1, len(names) + 1)}
    return bool(HIDDEN & above) and len(wanted) < 2


def _leaves(values: dict[str, Any], *above: str) -> Iterator[tuple[Names, Any]]:
    """The path of each key and its value, those of inner tables last; a table whose keys are free, such as base.map, is one value."""
    inner = {name: value for name, value in values.items() if isinstance(value, dict) and value and all(map(_BARE.fullmatch, value))}
    yield from (((*above, name), value) for name, value in values.items() if name not in inner)
    for name, value in inner.items():
        yield from _leaves(value, *above, name)


def _tables(rows: Iterable[tuple[Names, Any]], origins: Mapping[Names, str], width: int | None) -> Iterator[str]:
    """Lines of TOML of at most `width` cells; `origins`: what is said behind a value, or above one that has no room beside it."""
    from rich.cells import cell_len

    table: Names = ()
    for names, value in rows:
        if names[:-1] != table:
            table = names[:-1]
            yield ""
            yield f"[{'.'.join(map(_name, table))}]"
        name, text, origin = _name(names[-1]), _value(value), origins.get(names)
        line = f"{name} = {text}"
        comment = f"# {_in_language(origin)}" if origin else ""
        if width is None:
            yield f"{line:<{_WIDTH}}  {comment}" if comment else line
        elif cell_len(line) + len("  ") + cell_len(comment) <= width:
            place = min(_WIDTH, width - len("  ") - _COMMENT)
            yield f"{line:<{min(place, width - len('  ') - cell_len(comment))}}  {comment}" if comment else line
        else:
            yield from _comment(_in_language(origin), width) if origin else ()
            yield from _in_lines(name, value, line, width)


def _in_language(origin: str) -> str:
    """Where a value comes from, in the reader's language: a file is called as it is."""
    name, bracket, kind = origin.partition(" (")
    return bracketed(name, translated(kind.rstrip(")"))) if bracket and kind in ("command line)", "environment)") else translated(origin)


def _comment(text: str, width: int | None) -> list[str]:
    from daemon.operating.log.wrapping import wrap

    return [f"# {row}" for row in wrap(text, None if width is None else width - len("# "))]


def _in_lines(name: str, value: Any, line: str, width: int) -> list[str]:
    """A value that is wider than the terminal: TOML lets a list have its entries in lines of their own; nothing else can be broken."""
    from rich.cells import cell_len

    if isinstance(value, list) and value and cell_len(line) > width:
        return [f"{name} = [", *(f"  {_value(item)}," for item in value), "]"]
    return [line]


def _name(text: str) -> str:
    return text if _BARE.fullmatch(text) else json.dumps(text)


def _value(value: Any) -> str:
    """A value as TOML writes it; "" for none, as everywhere in the file."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_name(key)} = {_value(inner)}" for key, inner in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps("" if value is None else value, ensure_ascii=False)
