"""The routes that change something: retry, cancel, pause, resume, first. They do so with `page.control` alone.

They do what the verbs of `ckptd queue` do, say it in the same words, and are logged with who asked. `Guard` has made sure that the request
comes from this page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from daemon.contract.faults.errors import CkptdError
from daemon.contract.faults.events import Event
from daemon.contract.language.catalog import translated_text
from daemon.journal.journal import Journal
from daemon.operating.asked import steering
from daemon.operating.monitoring.status import JobDetails
from daemon.page.access.login import fields_of, here
from daemon.page.answers import answer, in_language, refusal
from daemon.page.context import Context, context_of
from daemon.system.logger import Logger

log = Logger("page")
OF_JOBS = ("retry", "cancel", "pause", "resume", "first")
OF_ALL = ("pause", "resume")
SAID = "ckptd-said"
"""Cookie with the sentence that the next page shows: what was done, or why not."""
SAID_SECONDS, MOST_SAID = 20, 1200
"""Bytes of that sentence, each of which may take three in a cookie of 4096."""


def _endpoint(action: str) -> Callable[[Request], Awaitable[Response]]:
    async def steer(request: Request) -> Response:
        context, client = context_of(request), request.scope["state"]["who"]
        fields = fields_of(await request.body())
        wanted = request.path_params.get("id")
        for_people = "text/html" in request.headers.get("accept", "")
        speaks = in_language(request) if for_people else contextlib.nullcontext()
        try:
            with speaks:
                said = await context.call(_act, context, action, wanted)
        except CkptdError as error:
            log.info(f"by the page: {action} was refused", event_id=Event.PAGE_CONTROL, client=client, job=wanted, why=str(error))
            if not for_people:
                raise
            with in_language(request):
                said = translated_text(str(error))
        else:
            log.info(f"by the page: {action}", event_id=Event.PAGE_CONTROL, client=client, job=wanted)
        context.reader.forget()
        context.serving.changed()
        if not for_people:
            return answer(request, {"message": said})
        back = RedirectResponse(here(fields.get("then", ["/"])[0]), 303)
        back.set_cookie(SAID, quote(said.encode()[:MOST_SAID].decode(errors="ignore")), SAID_SECONDS, httponly=True, samesite="strict")
        return back

    return steer


def _act(context: Context, action: str, wanted: str | None) -> str:
    journal = context.serving.journal
    if wanted is None:
        return steering.pause_all(journal) if action == "pause" else steering.resume_all(journal)
    job = context.reader.job(wanted, now=True)
    if action == "retry":
        return steering.retry(context.settings, job.id)
    return _STEER[action](journal, job)


_STEER: dict[str, Callable[[Journal, JobDetails], str]] = {
    "cancel": steering.cancel, "pause": steering.pause, "resume": steering.resume, "first": steering.first
}  # fmt: skip


async def _off(_: Request) -> Response:
    return refusal(405, "the buttons are off", "set page.control = true in the daemon's configuration, and run `ckptd reload`")


def routes(*, on: bool) -> list[BaseRoute]:
    """Return the routes; those of buttons that are off say so."""
    return [
        *(Route(f"/jobs/{{id}}/{action}", _endpoint(action) if on else _off, methods=["POST"]) for action in OF_JOBS),
        *(Route(f"/queue/{action}", _endpoint(action) if on else _off, methods=["POST"]) for action in OF_ALL),
    ]
