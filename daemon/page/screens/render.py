"""The templates of the pages, and what every page has: its language, its address, what a button said, and its files with their
digests.

All that comes from outside is escaped by the engine; scripts and styles are files of ours alone, to which the policy of `Guard` holds a
browser. Times are said in UTC; the script shows them on the reader's clock.
"""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from starlette.requests import Request
from starlette.responses import Response

from daemon.contract import units
from daemon.contract.faults.text import printable
from daemon.contract.language.catalog import language, translated, translated_text
from daemon.contract.language.lists import bracketed, clauses, labelled, names, sentences, spaced
from daemon.contract.language.pages import coded, in_page, many_in_page
from daemon.contract.version import __version__
from daemon.journal.states import ENDED_JOB
from daemon.operating.monitoring.outlook import about
from daemon.operating.wording import exports
from daemon.page.answers import json_of as json_of
from daemon.page.answers import spoken
from daemon.page.context import Context, context_of
from daemon.page.controls import SAID
from daemon.page.screens.outputs import REPORT_PAGE

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"


@functools.cache
def digest_of_file(name: str) -> str:
    """The digest of a style or a script, by which a browser knows a new one."""
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


def static(name: str) -> str:
    """The address of a style or a script."""
    return f"/static/{name}?v={digest_of_file(name)}"


def job_path(id: str, *rest: str) -> str:
    """The address of an export, or of something of it."""
    return "/".join(["/jobs", *(quote(part, safe="") for part in (id, *rest))])


def run_path(run: str, root: str = "") -> str:
    """The address of a run."""
    return f"/run?{urlencode({'name': run, **({'root': root} if root else {})})}"


def report_at(folder: str) -> str:
    """The address of the report in a folder: its own path on the disk, so that its links to other reports lead to theirs."""
    return quote(f"/reports{folder}/{REPORT_PAGE}")


def asked_path(request: Request) -> str:
    """The address that was asked for, to which a button leads back. Slashes at its begin would name another host."""
    return "/" + request.url.path.lstrip("/\\") + (f"?{request.url.query}" if request.url.query else "")


def when(text: str | None) -> str:
    """A time to the minute, in UTC."""
    said = units.moment(text)
    return f"{said[:16]} UTC" if said.endswith(" UTC") else said


@functools.cache
def environment() -> Environment:
    """The template engine."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update({name: _for_reader(function) for name, function in _filters().items()})
    made.globals.update(
        translated=in_page, translated_plural=many_in_page, language=language, names=names, clauses=clauses, sentences=sentences,
        labelled=labelled, bracketed=bracketed, static=static, job_path=job_path, run_path=run_path, what=exports.what, pace=exports.pace,
        retry_helps=exports.retry_helps, lies_at=exports.lies_at, report_at=report_at,
        ended=ENDED_JOB, version=__version__, host=socket.gethostname(),
    )  # fmt: skip
    return made


def _filters() -> dict[str, Callable[[Any], Any]]:
    """Name → filter of the templates."""
    return {
        **units.FILTERS, "said": translated, "recorded": translated_text, "coded": coded, "plain": printable, "when": when,
        "about": _about, "spaced": spaced, "has_report": _has_report,
    }  # fmt: skip


def _for_reader(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """A filter that is called for each reader: one that has no part in the context is computed once where its value is written out, in the
    language of the first reader."""

    @pass_context
    def filtered(_: Any, value: Any) -> Any:
        return function(value)

    return filtered


def _has_report(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, REPORT_PAGE))


def _about(seconds: float) -> str:
    return translated_text(about(seconds))


class Filled(NamedTuple):
    """A template and what fills it."""

    template: str
    values: Mapping[str, Any]
    status: int = 200
    """Of the answer."""


def page(request: Request, fill: Callable[[], Filled]) -> Response:
    """Return a page in the language that its reader's browser wants. Readers of the same page share what is made of it for one of them, but
    for the sentence that answers a button."""
    context: Context = context_of(request)
    said = unquote(request.cookies.get(SAID, ""))

    def make() -> tuple[bytes, int]:
        filled = fill()
        text = environment().get_template(filled.template).render(
            {"here": asked_path(request), "control": context.page.control, "peers": context.page.peers,
             "away": request.app.state.peers.away, "said_before": said,
             "signed_in": context.page.token is not None, **filled.values}
        )  # fmt: skip
        return text.encode(), filled.status

    key = ("page", request.scope["path"], request.scope["query_string"], language())
    body, status = make() if said else context.reader.once(key, make, size=lambda made: len(made[0]))
    answer = Response(body, status, spoken(), "text/html")
    if said:
        answer.delete_cookie(SAID, httponly=True, samesite="strict")
    return answer
