"""Makes values safe for every JSON reader, terminal and browser, whatever a model or a file name contains.

Called by `handlers.report.content.build` on the finished report. It changes values only where they could not be stored or
would show as something that they are not; escaping for HTML and Markdown is the templates' task.
"""

from __future__ import annotations

import math
import re
from typing import Any

from daemon.contract.language.catalog import translated

# Lone surrogates (undecodable file names), control characters but tab and newline, and marks that reorder text.
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def visible(text: str) -> str:
    """`text` with every character that cannot be stored or seen replaced by its escape, such as `\\udcff`."""
    return _UNSHOWABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def clean(value: Any, notes: list[str], where: str = "") -> Any:
    """`value` as plain JSON: non-finite numbers become None, and `notes` says where; texts become visible.

    Keys become texts, tuples lists; anything that JSON does not know becomes its text.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        notes.append(translated("{where} was {value}, which JSON cannot hold: stored as null").format(where=where, value=value))
        return None
    if isinstance(value, dict):
        return {visible(str(key)): clean(item, notes, _join(where, visible(str(key)))) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean(item, notes, _join(where, _name_of(item, index))) for index, item in enumerate(value)]
    return visible(str(value))


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _name_of(item: Any, index: int) -> str:
    """What a person calls a list's item: its variant or name where it has one."""
    name = (item.get("variant") or item.get("name")) if isinstance(item, dict) else None
    return visible(name) if isinstance(name, str) else str(index)
