"""The routes of `/api/v1`: read only, the JSON of docs/answers.md; `openapi.json` describes them.

Names of runs come from training and may hold anything, so they are values of the query, never parts of a path. No path of a disk is taken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.operating.monitoring.filter import Filter
from daemon.operating.monitoring.pages import MOST_JOBS
from daemon.page.answers import JSON, answer, answer_bytes, refusal, refuse_unknown
from daemon.page.context import context_of
from daemon.page.peers import Peers

PREFIX = "/api/v1"
DESCRIPTION = "openapi.json"
SOME, MOST_RUNS = 50, 500
LINES, MOST_LINES = 200, 5000
Endpoint = Callable[[Request], Awaitable[Response]]


async def status(request: Request) -> Response:
    """Return what `ckptd status --json` prints."""
    context = context_of(request)
    return answer(request, await context.call(context.reader.status, _number(request, "jobs", SOME, MOST_JOBS)))


async def jobs(request: Request) -> Response:
    """Return a page of exports, filtered as by `ckptd list`."""
    context, asked = context_of(request), request.query_params
    wanted = Filter.of(asked.get("run", ""), asked.getlist("state"), asked.get("since", ""), option="", by_end=True)
    limit = _number(request, "limit", SOME, MOST_JOBS)
    return answer(request, await context.call(context.reader.jobs, wanted, limit, asked.get("before")))


async def job(request: Request) -> Response:
    """Return what `ckptd show --json` prints."""
    context = context_of(request)
    return answer(request, await context.call(context.reader.job, request.path_params["id"]))


async def report(request: Request) -> Response:
    """Return report.json of an export."""
    context = context_of(request)
    return answer_bytes(request, await context.call(context.reader.report, request.path_params["id"]), JSON)


async def log(request: Request) -> Response:
    """Return the last lines of a stage's log, as text."""
    context, asked = context_of(request), request.path_params
    value = await context.call(context.reader.log, asked["id"], asked["stage"], _number(request, "lines", LINES, MOST_LINES))
    text = "".join(f"{line}\n" for line in value.lines).encode("utf-8", "replace")
    return answer_bytes(request, text, "text/plain; charset=utf-8", headers={"X-Ckptd-Attempt": str(value.attempt)})


async def runs(request: Request) -> Response:
    """Return the runs."""
    context = context_of(request)
    limit, skip = _number(request, "limit", SOME, MOST_RUNS), _number(request, "skip", 0, 1_000_000, least=0)
    return answer(request, await context.call(context.reader.runs, limit, skip))


async def quality(request: Request) -> Response:
    """Return what `ckptd quality RUN --json` prints."""
    context, run = context_of(request), request.query_params.get("run", "")
    return answer(request, await context.call(context.reader.quality, run))


async def peers(request: Request) -> Response:
    """Return what the other daemons answered last."""
    known: Peers = request.app.state.peers
    return answer(request, known.view())


async def description(request: Request) -> Response:
    """Return the description of the API."""
    return answer_bytes(request, files("daemon.page").joinpath(DESCRIPTION).read_bytes(), JSON)


async def nothing(request: Request) -> Response:
    """Return the refusal of a path that is none."""
    return refusal(404, "there is nothing here", f"{PREFIX}/{DESCRIPTION} lists what there is")


def _number(request: Request, name: str, default: int, most: int, *, least: int = 1) -> int:
    """A number of the query. Raises UsageError for what is none, or beyond the bounds."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise UsageError(
            FaultCode.BAD_OPTION, f"use {name}", f"{text[:40]!r} is no number from {least} to {most}", f"give for example {default}"
        )
    return int(text)


READING: dict[str, tuple[Endpoint, tuple[str, ...]]] = {
    "status": (status, ("jobs",)), "jobs": (jobs, ("limit", "before", "run", "state", "since")), "jobs/{id}": (job, ()),
    "jobs/{id}/report": (report, ()), "jobs/{id}/log/{stage}": (log, ("lines",)), "runs": (runs, ("limit", "skip")),
    "quality": (quality, ("run",)), "peers": (peers, ()), DESCRIPTION: (description, ()),
}  # fmt: skip
"""Path → what answers, and the names that its query may have."""


def _asked(endpoint: Endpoint, names: tuple[str, ...]) -> Endpoint:
    async def answered(request: Request) -> Response:
        refuse_unknown(request, names)
        return await endpoint(request)

    return answered


def routes() -> list[BaseRoute]:
    """Return the routes of the API."""
    return [
        *(Route(f"{PREFIX}/{path}", _asked(endpoint, names)) for path, (endpoint, names) in READING.items()),
        *(Route(path, nothing) for path in (PREFIX, f"{PREFIX}/{{rest:path}}")),
    ]
