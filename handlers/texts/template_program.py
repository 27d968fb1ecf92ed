"""Fills in chat templates, in a process of its own (`handlers.child.bounded`).

The sandbox of Jinja and the variables are those that transformers gives them.

Run by `handlers.texts.chat`. A question is a template's source, and the variables that it is to be filled in with, None to read it alone.
Imports little but Jinja: the process starts in a moment.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from daemon.contract.faults.advice import quoted
from handlers.child.bounded import serve

TODAY = datetime(2026, 1, 1)
"""The date that some templates write: the same data gives the same texts on every day."""
LARGEST = 1 << 20
"""Characters of what a template writes."""


class Refused(Exception):
    """What is wrong with a template, or what it says against a conversation, as a clause."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, with which templates mark what the assistant says; it is written as it is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def answer(question: Mapping[str, Any]) -> dict[str, str]:
    """{"text": …}, or {"refused": why}."""
    try:
        template = _compiled(question["template"])
        return {"text": "" if question["variables"] is None else _written(template, question["variables"])}
    except Refused as error:
        return {"refused": str(error)}


@functools.lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except MemoryError:
        raise
    except Exception as error:  # what the parser raises about somebody else's program
        raise Refused(f"the model's chat template can't be read{_said(error)}") from None


def _said(error: Exception) -> str:
    """Return what the template's language says, to follow a sentence."""
    lines = str(error).strip().splitlines()
    return f" ({quoted(lines[0])})" if lines else ""


def _written(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    parts, length = [], 0
    try:
        for part in template.generate(**variables):
            parts.append(part)
            length += len(part)
            if length > LARGEST:
                raise Refused(f"the chat template writes more than {LARGEST:,} characters")
    except (Refused, MemoryError):
        raise
    except Exception as error:  # a template is a program of somebody else's
        raise Refused(f"the model's chat template does not take it{_said(error)}") from None
    return "".join(parts)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = TODAY.strftime
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise Refused(f"the model's chat template does not take it: {str(message)[:200]}")


if __name__ == "__main__":
    serve(answer)
