"""Turns what is wrong with a configuration into lines a person can act on: dotted path, cause, nearest valid name."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from daemon.config.section import WITHOUT_SECRETS
from daemon.config.sources import PREFIX
from daemon.contract.faults.secrets import SECTIONS, SHORTEST, STARS, holds_secret, is_plain_word, may_be_secret, name_shown
from daemon.contract.formats.mistakes import alike, near
from daemon.contract.records import Record

OTHER_VARIABLES = frozenset({"CKPTD_CONFIG", "CKPTD_FAULT", "CKPTD_FAULT_ONCE", "CKPTD_FAULT_TRACE", "CKPTD_ATTEMPT"})
"""Variables with our prefix that are not settings."""

MEANT = {
    "event": "on", "events": "on", "hours": "quiet", "quiet_time": "quiet", "timeout": "limit_seconds", "interval": "minutes",
    "secret": "secret_file", "exec": "command", "program": "command",
}  # fmt: skip
"""Word that people write for a key of a target → the key."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A half-sentence that proposes the most similar known name, or lists all."""
    names = sorted(set(known))
    match = alike(name, names, 0.5)
    return f"did you mean {match!r}?" if match else f"the names are {', '.join(names)}"


def _in_a_section(name: str, model: type[BaseModel]) -> str | None:
    """A half-sentence for a key at the top level that names a section and a key of it, as `state_directory`; None for any other."""
    for section, field in model.model_fields.items():
        for key in _keys(field.annotation):
            if _letters(name) == _letters(f"{section}_{key}"):
                return f"did you mean {key!r} in [{section}]?"
    return None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _model_at(model: type[BaseModel], path: tuple[Any, ...], values: Any = None) -> type[BaseModel] | type[Record] | None:
    """The model class at a location, or None where the location is inside a free-form value. `values`: what was given for the model, by
    which a table whose class depends on what is in it is known."""
    current: Any = model
    for part in path:
        fields = getattr(current, "model_fields", {})
        if part in fields:
            current = getattr(fields[part], "annotation", None)
        elif get_origin(current) is dict:
            current = get_args(current)[1]
        elif get_origin(current) is tuple and isinstance(part, int):
            current = get_args(current)[0]
            current = get_args(current)[0] if get_origin(current) is Annotated else current
        else:
            return None
        values = values[part] if isinstance(values, Mapping) and part in values else (
            values[part] if isinstance(values, list | tuple) and isinstance(part, int) and part < len(values) else None
        )  # fmt: skip
        current = current.for_table(values) if hasattr(current, "for_table") else current
    return current if isinstance(current, type) and issubclass(current, BaseModel | Record) else None


def problems_of(error: ValidationError, model: type[BaseModel], values: Any = None) -> list[str]:
    """One line for each thing that pydantic found in `values`, without what may be a secret."""
    lines, meant = list[str](), dict[int, str]()
    for item in error.errors():
        location = tuple(part for part in item["loc"] if not (isinstance(part, str) and _KIND_OF_A_UNION.fullmatch(part)))
        dotted = place_shown(location, model, values)
        if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):  # of a model, of a record
            lines.append(f"{dotted}: is not a known key; {_hint(location, item['input'], model, values)}")
            continue
        word = item["type"] == "literal_error" and is_plain_word(str(item["input"]))  # no address, and nothing that a key may be
        hides = (location[:1] and location[0] in SECTIONS and not word) or may_be_secret(item["input"])
        message = _of_secret(item) if hides else _plain(item)
        whole = item["type"] == "value_error" and isinstance(item["input"], Mapping)  # a section's own rule, which names what it means
        given = "" if hides or whole or item["type"] == "missing" else f" (it is {_value_shown(item['input'])})"
        if lines and given and lines[-1].startswith(f"{dotted}: must be ") and lines[-1].endswith(given) and message.startswith("must be "):
            message = f"{lines.pop()[len(dotted) + 2 : -len(given)]}, or {message.removeprefix('must be ')}"  # a value of several kinds
        lines.append(f"{dotted}: {message}{given}")
        if item["type"] == "literal_error" and isinstance(item["input"], str) and given:
            meant[len(lines) - 1] = near(item["input"], re.findall(r"'([^']*)'", item["ctx"]["expected"]))
    return list(dict.fromkeys(f"{line}{meant.get(number, '')}" for number, line in enumerate(lines)))


def _hint(location: tuple[Any, ...], given: Any, model: type[BaseModel], values: Any = None) -> str:
    """What to write in the place of a key that is not known."""
    name, parent = str(location[-1]), _model_at(model, location[:-1], values)
    if parent is model and (hint := _in_a_section(name, model)):
        return hint
    if parent is not model and name in model.model_fields and isinstance(given, Mapping):
        inside = next(map(str, given), "its keys")
        return f"[{name}] is a section of its own: write {'its keys' if may_be_secret(inside) else repr(inside)} below that line"
    known: Iterable[str] = parent.model_fields if parent else ()
    if (meant := MEANT.get(name, "")) in set(known):
        return f"did you mean {meant!r}?"
    return nearest(name, known) if parent else "remove it"


def place_shown(location: Sequence[Any], model: type[BaseModel], values: Any = None) -> str:
    """A dotted path without what may be a secret; below a section with secrets an unknown key is shown only if it is like a known one."""
    parts = list[str]()
    for depth, part in enumerate(location):
        parent = _model_at(model, tuple(location[:depth]), values)
        known = isinstance(part, int) or (parent is not None and part in parent.model_fields)
        if known:
            parts.append(str(part))
        elif depth and location[0] in SECTIONS:
            like = is_plain_word(str(part)) and difflib.get_close_matches(str(part), parent.model_fields if parent else (), n=1, cutoff=0.6)
            parts.append(str(part) if like or part in MEANT else STARS)
        else:
            parts.append(name_shown(str(part)))
    return ".".join(parts)


def _value_shown(value: Any) -> str:
    """A value that is no secret, in a few words."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


MOST_SHOWN = 120
"""Characters of a wrong value that a message shows."""


def _of_secret(item: ErrorDetails) -> str:
    """Why a value that may be a secret is not accepted, by its kind alone."""
    begin = item["type"].removeprefix("is_instance_").partition("_")[0]
    if item["type"] == "value_error" and item["loc"][:1] == ("deliver",) and not _shows(item["msg"], item["input"]):
        return _plain(item)
    if item["type"] in ("missing", "literal_error", "finite_number", WITHOUT_SECRETS) or begin in ("greater", "less"):
        return _plain(item)
    if begin in ("tuple", "list"):
        return f'{KINDS[begin]}: ["…"]'
    if begin == "model" or begin not in KINDS or item["type"] == "string_pattern_mismatch":
        return (
            "must be a section with its keys below it"
            if begin == "model"
            else "is not accepted; it is not shown, since it may hold a secret"
        )
    return KINDS[begin]


def _shows(message: str, value: Any) -> bool:
    """Whether a sentence of a declaration has something of the value, or looks as if it had."""
    texts = (
        [value]
        if isinstance(value, str)
        else [text for text in value.values() if isinstance(text, str)]
        if isinstance(value, Mapping)
        else []
    )
    return holds_secret(message) or any(text in message for text in texts if len(text) >= SHORTEST)


_KIND_OF_A_UNION = re.compile(r"(tuple|list|dict|literal|function-\w+)\[.*\]|constrained-\w+")
"""What pydantic puts into a location for one of several kinds that a value may be of."""
KINDS = {
    "int": "must be a whole number; for example 2", "float": "must be a number; for example 0.5", "bool": "must be true or false",
    "string": 'must be text in quotation marks; for example "text"', "path": 'must be a path in quotation marks; for example "/data"',
    "tuple": "must be a list in square brackets", "list": "must be a list in square brackets",
    "dict": "must be a table; for example { key = \"value\" }",
    "dataclass": "must be a table; for example { key = 1 }", "model": "must be a section", "byte": 'must be a size; for example "4GiB"',
}  # fmt: skip
"""What pydantic's type of an error begins with → what is said instead of its words, which speak of Python."""


_BOUNDS = {
    "greater_than_equal": "must be at least {bound}", "greater_than": "must be more than {bound}",
    "less_than_equal": "must be at most {bound}", "less_than": "must be less than {bound}",
}  # fmt: skip
"""pydantic's type of an error → what is said of the bound."""


def _plain(item: ErrorDetails) -> str:
    """Why a value is not accepted, for somebody who knows TOML and no Python."""
    kind, context, input_ = item["type"], item.get("ctx", {}), item["input"]
    if kind == "missing":
        return "is not given; add it"
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(bound=next(iter(context.values())))
    if kind == "finite_number":
        return "must be a finite number"
    begin = kind.removeprefix("is_instance_").partition("_")[0]
    if begin not in KINDS or kind == "string_pattern_mismatch":
        message = item["msg"].removeprefix("Value error, ")
        return message[0].lower() + message[1:]
    said = KINDS[begin]
    if begin in ("tuple", "list"):
        example = json.dumps(input_, ensure_ascii=False) if isinstance(input_, (str, int, float)) else '"…"'
        return f"{said}: [{example}]"
    if begin == "model":
        return f"must be a section: write [{'.'.join(map(str, item['loc']))}] and its keys below"
    return said


def unknown_environment(model: type[BaseModel], environment: Mapping[str, str]) -> list[str]:
    """One line for each `CKPTD_…` variable that names no setting."""
    known, lines = _variables(model), []
    for name in sorted(environment):
        upper = name.upper()
        if upper.startswith(PREFIX) and upper not in OTHER_VARIABLES and not _is_known(upper, known):
            lines.append(f"{_variable_shown(name, known)} (environment): names no setting; {nearest(upper, known)}")
    return lines


def unknown_options(model: type[BaseModel], given: Iterable[str]) -> list[str]:
    """One line for each key of `--set` that names no setting."""
    known = {name: name.removeprefix(PREFIX).lower().replace("__", ".") for name in _variables(model)}
    return [
        f"--set {_variable_shown(key, known.values())} (command line): names no setting; {nearest(key, known.values())}"
        for key in given
        if not _is_known(f"{PREFIX}{key.replace('.', '__')}".upper(), set(known))
    ]


def _variable_shown(name: str, known: Iterable[str]) -> str:
    """The name of a variable, or a key of --set, that is no setting; below a section with secrets only one that is like a known name."""
    parts = re.split(r"__|\.", name.lower().removeprefix(PREFIX.lower()))
    of_secrets = len(parts) > 1 and parts[0] in SECTIONS
    if of_secrets and not (is_plain_word(name) and difflib.get_close_matches(name.lower(), map(str.lower, known), n=1, cutoff=0.8)):
        return f"{name[: len(name) - len(parts[-1])]}{STARS}" if len(parts) == 2 else STARS
    return name_shown(name)


def _variables(model: type[BaseModel]) -> set[str]:
    """The variables of all settings, and of the sections."""
    known = {f"{PREFIX}{section}__{key}".upper() for section, field in model.model_fields.items() for key in _keys(field.annotation)}
    return known | {f"{PREFIX}{section}".upper() for section in model.model_fields}


def _is_known(name: str, known: set[str]) -> bool:
    """Whether it names a setting, or a key inside of a free-form table, which the table's own type checks."""
    return name in known or any(name.startswith(f"{free}__") for free in known if "__" in free)


def _keys(annotation: Any) -> Iterable[str]:
    return getattr(annotation, "model_fields", {})
