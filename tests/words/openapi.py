"""daemon/page/openapi.json: what the API of the page answers, from the same classes as docs/answers.md, which write it.

OpenAPI 3.1, whose schemas are JSON Schema. `python -m tests.words.answers` writes both.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from daemon.operating.monitoring.filter import STATES
from daemon.operating.monitoring.pages import MOST_JOBS, JobsPage, RunsPage
from daemon.operating.monitoring.run_quality import RunQuality
from daemon.operating.monitoring.status import JobDetails, Snapshot
from daemon.page.api import DESCRIPTION, LINES, MOST_LINES, MOST_RUNS, PREFIX, SOME
from daemon.page.peers import PeersAnswer
from tests.words import answers
from tests.words.written import ROOT

FILE = ROOT / "daemon/page" / DESCRIPTION


class Asked(NamedTuple):
    """A parameter of a route."""

    name: str
    schema: dict[str, Any]
    meaning: str


class Told(NamedTuple):
    """A route: what it gives, as a class or a media type."""

    summary: str
    gives: Any
    asked: tuple[Asked, ...] = ()


def _number(default: int, least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}


_TEXT = {"type": "string"}
_JOB = Asked("id", _TEXT, "The id of a job, or a part of it that no other job has.")
ROUTES: dict[str, Told] = {
    "/status": Told("As `ckptd status --json`.", Snapshot, (Asked("jobs", _number(SOME, 1, MOST_JOBS), "Number of jobs at most."),)),
    "/jobs": Told(
        "Exports, the newest first, a page at a time.", JobsPage,
        (
            Asked("limit", _number(SOME, 1, MOST_JOBS), "Number of jobs at most."),
            Asked("before", _TEXT, "`next` of the page before this one. Exports that are entered meanwhile move no page."),
            Asked("run", _TEXT, "Only runs with this name; it may contain the wildcards * and ?."),
            Asked(
                "state", {"type": "array", "items": {"type": "string", "enum": list(STATES)}}, "Only exports in one of these states."
            ),
            Asked(
                "since", _TEXT,
                "Only exports that ended after this time, or, while they have not ended, whose checkpoint was taken after it:"
                ' "2h", "3d", "2026-01-31".',
            ),
        ),
    ),
    "/jobs/{id}": Told("As `ckptd show --json`.", JobDetails, (_JOB,)),
    "/jobs/{id}/report": Told("report.json of an export (docs/report.schema.json).", "application/json", (_JOB,)),
    "/jobs/{id}/log/{stage}": Told(
        "The last lines that the latest attempt at a stage printed; the header X-Ckptd-Attempt has its number.", "text/plain",
        (_JOB, Asked("stage", _TEXT, "Name of the stage."), Asked("lines", _number(LINES, 1, MOST_LINES), "Number of lines at most.")),
    ),
    "/runs": Told(
        "The runs, those with the newest checkpoints first.", RunsPage,
        (
            Asked("limit", _number(SOME, 1, MOST_RUNS), "Number of runs at most."),
            Asked("skip", _number(0, 0, 1_000_000), "Number of runs to leave out."),
        ),
    ),
    "/quality": Told(
        "As `ckptd quality RUN --json`, of the exports that the daemon has made.", RunQuality, (Asked("run", _TEXT, "Name of the run."),)
    ),
    "/peers": Told("The daemons of `page.peers`, each as it answered last.", PeersAnswer),
}  # fmt: skip


def schema_of(kind: Any) -> dict[str, Any]:
    """A type as JSON Schema; classes are named, and stand in `components`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [{"type": "null"} if part is type(None) else schema_of(part) for part in inner]}
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin in (tuple, list):
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": True if inner[1] in (Any, object) else schema_of(inner[1])}
    if dataclasses.is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    names = {str: "string", Path: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": names[kind]} if kind in names else {}


def shapes() -> list[Any]:
    """Every class that an answer is made of, those of the routes first."""
    known = [told.gives for told in ROUTES.values() if not isinstance(told.gives, str)]
    for shape in known:
        known += [kind for field in answers.fields_of(shape).values() for kind in answers.below(field.type) if kind not in known]
    return list(dict.fromkeys(known))


def _object(shape: Any) -> dict[str, Any]:
    fields = answers.fields_of(shape)
    return {
        "type": "object",
        "description": answers.in_json(" ".join((shape.__doc__ or "").split())),
        "properties": {name: {**schema_of(field.type), "description": answers.in_json(field.meaning)} for name, field in fields.items()},
        "required": list(fields),
    }


def _route(path: str, told: Told) -> dict[str, Any]:
    media, schema = ("application/json", schema_of(told.gives)) if not isinstance(told.gives, str) else (told.gives, {})
    parameters = [
        {"name": asked.name, "in": "path" if f"{{{asked.name}}}" in path else "query", "description": asked.meaning, "schema": asked.schema,
         **({"required": True} if f"{{{asked.name}}}" in path or (path, asked.name) == ("/quality", "run") else {})}
        for asked in told.asked
    ]  # fmt: skip
    error = {"$ref": "#/components/responses/Error"}
    return {"get": {
        "summary": told.summary, **({"parameters": parameters} if parameters else {}),
        "responses": {
            "200": {"description": "The answer.", "content": {media: {"schema": schema}}},
            "304": {"description": "As the client has it (If-None-Match)."},
            **dict.fromkeys(("400", "401", "404", "421", "429", "503"), error),
        },
    }}  # fmt: skip


def description() -> dict[str, Any]:
    """The whole description."""
    error = {
        "type": "object", "required": ["error", "remedy"],
        "properties": {
            "error": {"type": "string", "description": "What went wrong, as a sentence."},
            "remedy": {"anyOf": [_TEXT, {"type": "null"}], "description": "What to do; null if there is nothing to say."},
        },
    }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ckptd", "version": "1",
            "description": "What the daemon does and has done; read only. Names do not change within version 1; more may be added.",
        },
        "servers": [{"url": PREFIX}],
        "security": [{}, {"token": []}],
        "paths": {path: _route(path, told) for path, told in ROUTES.items()},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Error": {"description": "A refusal.", "content": {"application/json": {"schema": error}}}},
            "schemas": {shape.__name__: _object(shape) for shape in shapes()},
        },
    }  # fmt: skip


def text() -> str:
    """The file: a line for each route and each class."""
    value = description()
    parts = {"@paths": value["paths"], "@schemas": value["components"]["schemas"]}
    value["paths"], value["components"]["schemas"] = "@paths", "@schemas"
    whole = json.dumps(value, ensure_ascii=False, indent=1)
    for name, part in parts.items():
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(row, ensure_ascii=False)}" for key, row in part.items())
        whole = whole.replace(f'"{name}"', f"{{\n{lines}\n}}")
    return whole + "\n"
