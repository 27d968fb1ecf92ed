"""The application: its routes, within the guard."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from daemon.contract.faults.errors import CkptdError
from daemon.contract.faults.events import Event
from daemon.page import api, controls, events, health
from daemon.page.access import login
from daemon.page.access.guard import Guard
from daemon.page.answers import Bodies, refusal, refusal_of
from daemon.page.context import Context
from daemon.page.peers import Peers
from daemon.page.screens import routes as screens
from daemon.system.logger import Logger

log = Logger("page")
MOST_SAID = 20
"""Kinds of errors that nobody foresaw which are logged, each once."""
_SAID = {404: "there is nothing here", 405: "this method is not allowed here"}


def make_app(context: Context, peers: Peers) -> ASGIApp:
    """The application of one server."""
    feed, streams = events.routes(context)
    app = Starlette(
        routes=[*health.routes(), *streams, *api.routes(), *login.routes(), *controls.routes(on=context.page.control), *screens.routes()],
        exception_handlers={HTTPException: _refused, CkptdError: _ours, ClientDisconnect: _gone, Exception: _unforeseen},
    )
    app.router.redirect_slashes = False
    app.state.context, app.state.feed, app.state.peers, app.state.bodies = context, feed, peers, Bodies()
    app.state.unforeseen = set[str]()
    return Guard(app, context)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, _SAID.get(error.status_code, str(error.detail)), headers=error.headers)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, CkptdError)
    return await screens.said(request, error) if screens.is_for_people(request) else refusal_of(error)


async def _gone(request: Request, error: Exception) -> Response:
    """Who left in the middle of a request hears nothing, and is no error of ours."""
    return Response(status_code=400)


async def _unforeseen(request: Request, error: Exception) -> Response:
    unforeseen: set[str] = request.app.state.unforeseen
    kind = f"{request.scope.get('endpoint')} {error!r}"
    if kind not in unforeseen and len(unforeseen) < MOST_SAID:  # whoever asks again does not fill the log
        unforeseen.add(kind)
        log.error(
            "a request to the page met an error that nobody foresaw", event_id=Event.PAGE_FAILED, path=request.url.path, exc_info=error
        )
    return refusal(500, "an error that nobody foresaw", "report it with the traceback in the daemon's log")
