"""What is known of the values of a configuration before they are validated: the options that give some, and the secrets among them.

Imports nothing that takes long: `ckptd status` reads a configuration that need not be validated.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from daemon.contract.faults.secrets import (
    PLAIN,
    PLAIN_OF_DELIVERIES,
    PLAIN_OF_TARGETS,
    SECTIONS,
    holds_secret,
    is_credential,
    keep,
    may_be_secret,
    name_shown,
)

PREFIX = "CKPTD_"
RUN_FILE = "ckptd.toml"
"""Of a run's own directory, with what it may say about its exports (`run_overrides.py`)."""
given_on_command_line: dict[str, str] = {}
"""Dotted key → text, of `--set` before the verb. The same for the whole life of a process, as its environment is."""
named_by: dict[str, str] = {}
"""Dotted key → the option of a verb that gave it in place of `--set`."""


def are_given_elsewhere() -> bool:
    """Whether any value comes from the command line or the environment, and not from the files."""
    variables = (name.upper() for name in os.environ)
    return bool(given_on_command_line) or any(name.startswith((PREFIX, "EXPORT_")) and name != f"{PREFIX}CONFIG" for name in variables)


def as_asked(text: str) -> str:
    """A sentence that names `export.variants`, in the words of whoever gave variants or targets on the command line."""
    option = named_by.get("export.variants")
    if option is None:
        return text
    if option != "--to":  # it names targets, none of which is a variant that could be left out
        text = text.replace(" out of export.variants", f" out: name the variants that you want by --to instead of {option}")
    return text.replace("export.variants", "--to")


def option_for(key: str) -> str | None:
    """The key that `--set` named where that gave the value of a dotted key."""
    return next((given for given in given_on_command_line if key == given or key.startswith(f"{given}.")), None)


def holds(values: Mapping[str, Any], key: str) -> bool:
    """Whether nested values have one for a dotted key; inside of a value, as of a list, that is the value's."""
    inner: Any = values
    for part in key.split("."):
        if not isinstance(inner, dict):
            return True
        if part not in inner:
            return False
        inner = inner[part]
    return True


def over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two nested dictionaries as one; where both have a value, that of `above` counts."""
    both = dict(below)
    for key, value in above.items():
        inner = both.get(key)
        both[key] = over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


ADDRESSES = frozenset({"page.peers", "page.url", "cluster.ray.address"})
"""Keys with addresses of services that are no secret, as long as no user or token is in them."""


def keep_secrets(values: Mapping[str, Any]) -> None:
    """Have nothing of the sections with secrets, and no URL or token elsewhere, shown by this process."""
    for name, value in values.items():
        if name not in SECTIONS:
            _keep_credentials(name, _without_addresses(name, value))
        elif isinstance(value, Mapping):
            _keep_section(value, PLAIN)
        elif name == "deliver" and isinstance(value, list | tuple) and all(isinstance(table, Mapping) for table in value):
            for table in value:
                _keep_delivery(table)
        else:
            keep(value)


def _without_addresses(section: str, value: Any) -> Any:
    """A section without the addresses that are no secret. `section`: its dotted path."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: _without_addresses(f"{section}.{key}", item)
        for key, item in value.items() if f"{section}.{key}" not in ADDRESSES or any(map(holds_secret, _texts(item)))
    }  # fmt: skip


def _texts(value: Any) -> list[str]:
    each = value if isinstance(value, list | tuple) else [value]
    return [item for item in each if isinstance(item, str)]


def _keep_section(values: Mapping[str, Any], plain: Collection[str]) -> None:
    for key, item in values.items():
        if key == "targets" and isinstance(item, list | tuple) and all(isinstance(table, Mapping) for table in item):
            for table in item:
                _keep_section(table, PLAIN_OF_TARGETS)
        elif key == "command" and isinstance(item, list | tuple):
            keep([word for word in item if may_be_secret(word)])
        elif key not in plain or may_be_secret(item):
            keep(item)
        _keep_credentials(key)


def _keep_delivery(table: Mapping[str, Any]) -> None:
    """Addresses are no secret there, as long as no user and no token is in them; a kind's own secrets are known when its table was read."""
    for key, item in table.items():
        if any(map(holds_secret, _texts(item))) or (key in PLAIN_OF_DELIVERIES and may_be_secret(item)):
            keep(item)
        _keep_credentials(key)


def _keep_credentials(*values: Any) -> None:
    """Keep what of these values is surely a secret."""
    for value in values:
        if isinstance(value, str) and is_credential(value):
            keep(value)
        elif isinstance(value, Mapping):
            _keep_credentials(*value.keys(), *value.values())
        elif isinstance(value, list | tuple):
            _keep_credentials(*value)


def credentials_in(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Dotted path of each value that is surely a secret though its key is not meant for one; a key that is one ends the path."""
    for name, value in values.items():
        if not above and name in SECTIONS:
            continue
        place = f"{above}.{name_shown(str(name))}".lstrip(".")
        if is_credential(str(name)):
            yield place
        elif isinstance(value, Mapping):
            yield from credentials_in(value, place)
        else:
            each = value if isinstance(value, list | tuple) else [value]
            for number, item in enumerate(each):
                inner = f"{place}.{number}" if each is value else place
                if isinstance(item, Mapping):
                    yield from credentials_in(item, inner)
                elif isinstance(item, str) and (holds_secret if place in ADDRESSES else is_credential)(item):
                    yield inner
