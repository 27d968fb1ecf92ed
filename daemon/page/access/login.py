"""The form that takes the token and gives a cookie for it, and its end."""

from __future__ import annotations

import html
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from daemon.contract.language.catalog import to_translate, translated
from daemon.contract.language.pages import coded
from daemon.page.access.tokens import COOKIE, SESSION_SECONDS, client_of, is_right, session
from daemon.page.answers import in_language, spoken, tag
from daemon.page.context import context_of

PATH, LEAVING = "/login", "/logout"
_WRONG = to_translate("This token is wrong.")
_TOO_OFTEN = to_translate("There were too many wrong tokens; try again in a minute.")


async def show(request: Request) -> Response:
    """Return the form."""
    return _form(request, request.query_params.get("then", "/"))


async def enter(request: Request) -> Response:
    """Give a cookie for the right token."""
    context = context_of(request)
    fields = fields_of(await request.body())
    given, then = (fields.get(name, [""])[0] for name in ("token", "then"))
    client = client_of(request.scope, request.headers, context.page)
    if context.tries.wait(client):
        return _form(request, then, _TOO_OFTEN, 429)
    token = context.page.token
    if token is None or not is_right(given.strip(), token.get_secret_value()):
        context.note_wrong(client)
        return _form(request, then, _WRONG, 403)
    answer = RedirectResponse(here(then), 303)
    secure = request.headers.get("x-forwarded-proto", request.url.scheme) == "https"
    value = session(token.get_secret_value())
    answer.set_cookie(COOKIE, value, SESSION_SECONDS, httponly=True, samesite="strict", secure=secure)
    return answer


async def leave(request: Request) -> Response:
    """Take the cookie away."""
    answer = RedirectResponse(PATH, 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def fields_of(body: bytes) -> dict[str, list[str]]:
    """Return the fields of a form that was sent; {} of more than any form of ours has."""
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        return {}


def here(then: str) -> str:
    """Return a path of this page; any other place becomes the first page."""
    own = then.startswith("/") and not then.startswith(("//", "/\\")) and then.isprintable() and then.isascii()
    return then if own and not then.startswith((PATH, LEAVING)) else "/"


def _form(request: Request, then: str, problem: str = "", status: int = 200) -> Response:
    with in_language(request):
        said = f'<p role="alert">{html.escape(translated(problem))}</p>' if problem else ""
        where = coded(translated("The token is in the file that `page.token_file` names in the daemon's configuration."))
        return HTMLResponse(
            f'<!doctype html><html lang="{tag()}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            '<title>ckptd</title><link rel="stylesheet" href="/static/page.css"></head><body><main class="login"><h1>ckptd</h1>'
            f'{said}<form method="post" action="{PATH}"><input type="hidden" name="then" value="{html.escape(here(then))}">'
            f'<label>{html.escape(translated("Token"))}'
            ' <input type="password" name="token" autocomplete="current-password" required autofocus></label>'
            f' <button>{html.escape(translated("Show the page"))}</button></form><p class="small">{where}</p></main></body></html>',
            status, spoken(),
        )  # fmt: skip


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [Route(PATH, show), Route(PATH, enter, methods=["POST"]), Route(LEAVING, leave, methods=["POST"])]
