"""Answers of the API: JSON with an ETag, and errors as `{"error", "remedy"}`; and the language of an answer to people."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from daemon.contract.faults.errors import CkptdError, Retryable, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import Language, answer_in, language, language_of

JSON = "application/json"
MOST_BODIES = 8
MOST_WISHES = 20
"""Languages of a request that are looked at."""
_WEIGHT = re.compile(r"q=([01](?:\.\d{0,3})?)")
_UNKNOWN = (FaultCode.NO_SUCH_JOB, FaultCode.NO_SUCH_RUN, FaultCode.NO_SUCH_STAGE, FaultCode.NO_REPORT)


def json_of(value: Any) -> bytes:
    """A value as the commands print it; a dataclass is an object of its fields."""
    return json.dumps(value, default=_plain, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """As `dataclasses.asdict`, a level at a time: that copies all that is inside, which takes longer than to write it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in _names(type(value))}
    return str(value)


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


class Bodies:
    """The last answers as text: one that the reader keeps is not made into text for each client again."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}

    def of(self, value: Any) -> bytes:
        """The text of a value, which nobody changes."""
        known = self._known.get(id(value))
        if known is None or known[0] is not value:
            known = self._known[id(value)] = (value, json_of(value))
            while len(self._known) > MOST_BODIES:
                del self._known[next(iter(self._known))]
        return known[1]


def answer(request: Request, value: Any) -> Response:
    """The answer to a request, empty where the client has it already."""
    return answer_bytes(request, request.app.state.bodies.of(value), JSON)


def answer_bytes(request: Request, body: bytes, media_type: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """As `answer`, of what is text already."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    given = {"ETag": tag, "Cache-Control": "private, no-cache", **(headers or {})}
    asked = {part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")}
    if tag in asked or "*" in asked:
        return Response(status_code=304, headers=given)
    return Response(body, media_type=media_type, headers=given)


def refusal(status: int, error: str, remedy: str | None = None, *, headers: Mapping[str, str] | None = None) -> Response:
    """An error of the API."""
    return Response(json_of({"error": error, "remedy": remedy}), status, headers, JSON)


def status_of(error: CkptdError) -> int:
    """The status of an answer that says one of our own errors."""
    if not isinstance(error, UsageError):
        return 503
    code = error.fault.code
    return 404 if code in _UNKNOWN else 409 if code in (FaultCode.WRONG_STATE, FaultCode.NOTHING_TO_RETRY) else 400


def refusal_of(error: CkptdError) -> Response:
    """The same of one of our own errors."""
    fault = error.fault
    headers = {"Retry-After": "5"} if isinstance(error, Retryable) else None
    return refusal(status_of(error), fault.sentence().partition(" Fix: ")[0], fault.remedy or None, headers=headers)


def refuse_unknown(request: Request, known: Sequence[str]) -> None:
    """Raise UsageError for a name of the query that says nothing here: what it was meant to choose would not be chosen."""
    if unknown := [name for name in request.query_params if name not in known]:
        cause = f"{unknown[0][:40]!r} is not one of its parameters"
        remedy = f"the names are {', '.join(known)}" if known else "ask without parameters"
        raise UsageError(FaultCode.BAD_OPTION, "answer this request", cause, remedy)


def wanted_language(accepted: str) -> Language:
    """The language of a header Accept-Language: of those that there are the one that is wanted most, else English."""
    wishes = []
    for place, part in enumerate(accepted.split(",")[:MOST_WISHES]):
        tag, _, rest = part.partition(";")
        weight = _WEIGHT.search(rest)
        wishes.append((-float(weight[1]) if weight else -1.0, place, tag.strip()))
    return language_of({"LANGUAGE": ":".join(tag for weight, _, tag in sorted(wishes) if weight < 0)})


def in_language(request: Request) -> AbstractContextManager[None]:
    """Let a request be answered in the language that its reader wants."""
    return answer_in(wanted_language(request.headers.get("accept-language", "")))


def tag() -> str:
    """The language of this answer, as HTML and HTTP name it."""
    return "zh-CN" if language() == "zh_CN" else "en"


def spoken() -> dict[str, str]:
    """The headers of an answer in the reader's language."""
    return {"Vary": "Accept-Language", "Content-Language": tag()}
