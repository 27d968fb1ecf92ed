"""docs/events.md, made of `daemon/contract/faults/events.py` and of every call that logs: `python -m tests.layers.events` writes it."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.faults.events import Event

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "daemon/contract/faults/events.py"
PAGE = ROOT / "docs/events.md"
LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
HELPERS = {"say_once": (1, "warning"), "_say_once": (1, "warning"), "_say_watching": (0, "info")}
"""Functions that log what they are given: the place of the event among their arguments, and their level."""
ALWAYS = frozenset({"timestamp", "level", "logger", "event", "message"})
_HEAD = """# Events of the log

Each line of the log is a JSON object. Every line has these fields: `timestamp` (ISO 8601, UTC), `level`, `logger` (part of the daemon),
`event` (the id below) and `message` (the sentence for people). A line about one export also has `job`, `run` and `step`. An error
has `code` ([the meaning of each code](fault-codes.md)); an unexpected error also has `exception` (the traceback).

Use `event` and `code` for searches and alerts. The sentences in `message` may change in later versions. `ckptd logs` shows the log in a
readable form, `ckptd logs --json` shows the lines as they are.

This page is generated from `daemon/contract/faults/events.py` and from the calls in the code: `python -m tests.layers.events`.
"""
_PART = re.compile(r'^    # (?P<group>.+)$|^    (?P<name>[A-Z_]+) = "(?P<id>[a-z.-]+)"\n    """(?P<meaning>.+)"""$', re.MULTILINE)


@dataclass
class Use:
    """How an event is logged."""

    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Call:
    """A call that logs."""

    where: str
    level: str
    event: str
    """The member's name; "" for none; `event_id` where the caller of a helper gives it."""
    fields: tuple[str, ...]


@functools.cache
def calls() -> tuple[Call, ...]:
    """Every call in `daemon/` that logs, those of the helpers that say something once among them."""
    return tuple(_calls())


def _calls() -> Iterator[Call]:
    for path in sorted((ROOT / "daemon").rglob("*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "log" in text or any(name in text for name in HELPERS) else ():
            if isinstance(node, ast.Call) and (levels := _levels(node.func)):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                names = [one.arg for one in node.keywords if one.arg]
                given = next((one.value for one in node.keywords if one.arg == "event_id"), None)
                if levels[0] in HELPERS:
                    place, level = HELPERS[levels[0]]
                    given, levels = (node.args[place] if len(node.args) > place else None), (level,)
                rest = tuple(name for name in names if name not in ("event_id", "exc_info"))
                for level in levels:
                    yield Call(where, "error" if level == "exception" else level, _member(given), rest)


def _levels(function: ast.expr) -> tuple[str, ...]:
    """The methods by which a call logs; none where it does not."""
    if isinstance(function, ast.IfExp):
        return _levels(function.body) + _levels(function.orelse)
    if not isinstance(function, ast.Attribute):
        return ()
    if function.attr in HELPERS:
        return (function.attr,)
    of = ast.unparse(function.value)
    return (function.attr,) if function.attr in LEVELS and re.search(r"(^|[._])log$|get_logger\(.*\)$", of) else ()


def _member(value: ast.expr | None) -> str:
    if isinstance(value, ast.Attribute) and ast.unparse(value.value) == "Event":
        return value.attr
    return value.id if isinstance(value, ast.Name) else ""


def uses() -> dict[str, Use]:
    """Member's name → how it is logged."""
    found: defaultdict[str, Use] = defaultdict(Use)
    for call in calls():
        found[call.event].levels.add(call.level)
        found[call.event].fields.update(call.fields)
    for event in ("DAEMON_STARTED", "CONFIG_RELOADED"):
        found[event].fields |= found["event_id"].fields
    return dict(found)


def meanings() -> dict[str, dict[str, tuple[str, str]]]:
    """Group → member's name → (id, what it means), as the source has them."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for part in _PART.finditer(SOURCE.read_text("utf-8")):
        if part["group"]:
            found[part["group"]] = {}
        else:
            found[list(found)[-1]][part["name"]] = part["id"], part["meaning"]
    return found


def page() -> str:
    """The whole page."""
    lines, used = [_HEAD], uses()
    for group, events in meanings().items():
        lines += [f"## {group}", "", "| event | level | what it means | its fields |", "| --- | --- | --- | --- |"]
        for name, (event, meaning) in events.items():
            use = used.get(name, Use())
            levels = " or ".join(level for level in LEVELS if level in use.levels) or "warning or error"
            lines.append(f"| `{event}` | {levels} | {meaning} | {', '.join(f'`{one}`' for one in sorted(use.fields))} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    assert {name for events in meanings().values() for name in events} == set(Event.__members__)
    PAGE.write_text(page(), "utf-8")
