"""The routes of the pages for people: what they show comes from `Context.reader`, by `Context.call`.

A page is made whole on the server, in the language of its reader, and right without a script. Names of runs come from training and may hold
anything, so they are values of the query.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from daemon.contract.faults.errors import CkptdError, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import to_translate, translated, translated_text
from daemon.operating.monitoring.filter import STATES, Filter
from daemon.operating.monitoring.status import JobDetails
from daemon.operating.wording.exports import carrying, commands, remarks_of, trouble_of
from daemon.page.answers import JSON, in_language, refuse_unknown, status_of
from daemon.page.api import PREFIX
from daemon.page.context import Context, context_of
from daemon.page.peers import Peers
from daemon.page.screens import boxes, now, outputs, render, run, timeline

_OTHER_STATES = to_translate("open"), to_translate("ended"), to_translate("not running")
"""Beside those of the journal."""
SOME = 20
"""Rows of a page of a list."""
LIST = ("state", "run", "since", "before")
"""What the list of exports may be asked."""
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOREVER = "public, max-age=31536000, immutable"
SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Of a report: it is ours, and holds texts of models. It may run nothing, send nothing, and has no part in this page's origin."""

Values = Mapping[str, Any]


def _shown(template: str, read: Callable[[Request, Context], Values]) -> Callable[[Request], Awaitable[Response]]:
    """A route that fills a template with what `read` gives; an error is said on a page of its own."""

    async def show(request: Request) -> Response:
        context = context_of(request)

        def fill() -> render.Filled:
            try:
                return render.Filled(template, {"now": _now(), **read(request, context)})
            except CkptdError as error:
                return _message(error)

        with in_language(request):
            return await context.call(render.page, request, fill)

    return show


def _message(error: CkptdError) -> render.Filled:
    """The page that says an error."""
    heading = translated("There is no such page") if isinstance(error, UsageError) else translated("The page can't be shown now")
    return render.Filled("message.html", {"now": _now(), "heading": heading, "text": translated_text(str(error))}, status_of(error))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _overview(request: Request, context: Context) -> Values:
    return {**now.overview(context.reader), "commands": commands, "where": now.where}


def _jobs(request: Request, context: Context) -> Values:
    asked = request.query_params
    states = [state for state in asked.getlist("state") if state]
    refuse_unknown(request, LIST)
    wanted = Filter.of(asked.get("run", ""), states, asked.get("since", ""), option="", by_end=True)
    page = context.reader.jobs(wanted, SOME, asked.get("before"))
    kept = [(name, value) for name, value in asked.multi_items() if name in ("state", "run", "since") and value]
    links = [(translated("Newest"), f"/jobs?{urlencode(kept)}", "")] if asked.get("before") else []
    links += [(translated("Older"), f"/jobs?{urlencode([*kept, ('before', page.next)])}", "next")] if page.next else []
    return {
        "jobs": page.jobs, "links": links, "states": STATES, "state": states[0] if states else "", "wanted_run": asked.get("run", ""),
        "counts": context.reader.status(now.MOST_OPEN).counts,
    }  # fmt: skip


def _job(request: Request, context: Context) -> Values:
    job = _job_of(request, context)
    files = outputs.files_of(job)
    return {
        "job": job, "remarks": remarks_of(job), "what_next": commands(job), "course": timeline.timeline(job, time.time()), "files": files,
        "has_report": files is not None and any(file.path == outputs.REPORT_PAGE for file in files),
        "size": sum(file.size or 0 for file in files or ()), "trouble_of": trouble_of, "carrying": carrying,
    }  # fmt: skip


def _job_of(request: Request, context: Context) -> JobDetails:
    """The job of exactly this id. Raises UsageError."""
    wanted = request.path_params["id"]
    job = context.reader.job(wanted)
    if job.id != wanted:
        raise UsageError(FaultCode.NO_SUCH_JOB, "show the page", f"there is no job {wanted!r}", "take an id from `ckptd list`")
    return job


def _log(request: Request, context: Context) -> Values:
    job, stage, number = _job_of(request, context), request.path_params["stage"], request.path_params["number"]
    attempt = next((row for row in job.attempts if row.stage == stage and str(row.number) == number), None)
    if attempt is None:
        cause = f"{job.id} has no attempt {number[:40]} at {stage!r}"
        raise UsageError(FaultCode.NO_SUCH_STAGE, "show the log", cause, "take one from the page of the export")
    asked = request.query_params.get("bytes", "")
    wanted = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 9 else outputs.SOME_OF_LOG
    tail = outputs.log_of(attempt, max(1 << 10, min(wanted, outputs.MOST_OF_LOG)))
    return {"job": job, "attempt": attempt, "tail": tail}


def _runs(request: Request, context: Context) -> Values:
    skip = request.query_params.get("skip", "")
    begin = int(skip) if skip.isascii() and skip.isdigit() and len(skip) < 8 else 0
    page = context.reader.runs(SOME, begin)
    links = [(translated("Newer"), f"/runs?skip={max(0, begin - SOME)}", "prev")] if begin else []
    links += [(translated("Older"), f"/runs?skip={begin + SOME}", "next")] if begin + SOME < page.total else []
    return {"runs": page.runs, "total": page.total, "links": links, "begin": begin}


def _run(request: Request, context: Context) -> Values:
    return run.values(context.reader, request.query_params.get("name", ""), request.query_params.get("root", ""))


def _boxes(request: Request, context: Context) -> Values:
    known: Peers = request.app.state.peers
    return {"boxes": boxes.boxes(known.view().peers)}


async def trace(request: Request) -> Response:
    """Return the course of an export as a file that Perfetto opens."""
    context = context_of(request)
    job = await context.call(_job_of, request, context)
    headers = {"Content-Disposition": 'attachment; filename="trace.json"'}
    return Response(render.json_of(timeline.trace(job, time.time())), 200, headers, JSON)


async def report(request: Request) -> Response:
    """Return the page of a report, or lead on from where one links to."""
    context = context_of(request)
    path = request.path_params["path"]

    def read() -> Response | None:
        folder = path.removesuffix(f"/{outputs.REPORT_PAGE}")
        here = outputs.at_path(context.reader.state, folder)
        if isinstance(here, outputs.RunHere):
            return RedirectResponse(render.run_path(here.run, here.root), 303)
        if here is None:
            return None
        body = outputs.report_of(context.reader.job(here.id), outputs.REPORT_PAGE)
        return None if body is None else Response(body, 200, {"Content-Security-Policy": SANDBOX}, "text/html; charset=utf-8")

    return await context.call(read) or await _nothing(request)


async def static(request: Request) -> Response:
    """Return a style or a script of ours."""
    name = request.path_params["name"]
    file = render.STATIC / name
    if name not in {entry.name for entry in render.STATIC.iterdir() if entry.suffix in _TYPES}:
        return await _nothing(request)
    asked = request.query_params.get("v")
    kept = FOREVER if asked == render.digest_of_file(name) else "no-cache"
    return Response(file.read_bytes(), 200, {"Cache-Control": kept}, _TYPES[file.suffix])


async def _nothing(request: Request) -> Response:
    """Return the page for an address that is none; a program gets it as of the API."""
    if not is_for_people(request):
        raise HTTPException(404)
    raise UsageError(FaultCode.NO_SUCH_JOB, "show the page", "there is nothing at this address", "begin at the first page")


def is_for_people(request: Request) -> bool:
    """Whether an error is said on a page."""
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(PREFIX)


async def said(request: Request, error: CkptdError) -> Response:
    """Return the page that says an error."""
    with in_language(request):
        return await context_of(request).call(render.page, request, lambda: _message(error))


def routes() -> list[BaseRoute]:
    """Return the routes, without those of the API."""
    return [
        Route("/", _shown("now.html", _overview)),
        Route("/jobs", _shown("jobs.html", _jobs)),
        Route("/jobs/{id}", _shown("job.html", _job)),
        Route("/jobs/{id}/trace.json", trace),
        Route("/jobs/{id}/log/{stage}/{number}", _shown("log.html", _log)),
        Route("/runs", _shown("runs.html", _runs)),
        Route("/run", _shown("run.html", _run)),
        Route("/boxes", _shown("boxes.html", _boxes)),
        Route("/reports/{path:path}", report),
        Route("/static/{name}", static),
        Route("/{rest:path}", _nothing),
    ]
