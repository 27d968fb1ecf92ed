"""The API: what its description says is what it gives; pages stay stable while jobs come; errors are sentences."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import jsonschema
import pytest

from daemon.contract.disk.attempt_files import LOG_FILE
from daemon.journal.rows import now
from daemon.operating.monitoring.status import snapshot
from daemon.page import api
from daemon.page.reader import MOST_KEPT
from tests.page.conftest import Site
from tests.page.filled import RUNS
from tests.words import openapi

Make = Callable[..., Site]
JOB = "run-01-1-00000001"


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(openapi.FILE.read_text("utf-8"))
    return value


def test_the_description_is_what_the_classes_say() -> None:
    assert openapi.FILE.read_text("utf-8") == openapi.text(), "run `python -m tests.words.answers`"


def test_every_route_is_described_and_every_described_route_is_there(description: dict[str, Any]) -> None:
    there = {route.path.removeprefix(api.PREFIX) for route in api.routes() if hasattr(route, "path")}
    assert there - {"", "/openapi.json", "/{rest:path}"} == set(description["paths"])
    for path, (_, names) in api.READING.items():
        asked = description["paths"].get(f"/{path}", {"get": {}})["get"].get("parameters", [])
        assert {value["name"] for value in asked if value["in"] == "query"} == set(names), path


@pytest.mark.parametrize("path", [path for path, told in openapi.ROUTES.items() if not isinstance(told.gives, str) and path != "/quality"])
def test_an_answer_has_the_form_that_the_description_says(make_site: Make, description: dict[str, Any], path: str) -> None:
    site = make_site(jobs=60, waiting=3, peers=["http://127.0.0.1:9"])
    answer = site.ask(api.PREFIX + path.replace("{id}", JOB))
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    schema = description["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json, {**schema, "components": description["components"]})


def test_status_is_what_the_command_says(make_site: Make) -> None:
    site = make_site(jobs=60, waiting=3)
    said, command = site.ask("/api/v1/status?jobs=20").json, json.loads(json.dumps(asdict(snapshot(site.folder / "state", limit=20))))
    assert said == command and len(said["jobs"]) == 20 and said["counts"] == {"pending": 3, "succeeded": 57}


def pages(site: Site, query: str, between: Callable[[int], object] = lambda number: None) -> list[list[str]]:
    """The ids of all pages."""
    before, found = "", list[list[str]]()
    while True:
        value = site.ask(f"/api/v1/jobs?{query}{before}").json
        found.append([job["id"] for job in value["jobs"]])
        if value["next"] is None:
            return found
        before = f"&before={value['next']}"
        between(len(found))


def ids(each: list[list[str]]) -> list[str]:
    return [id for page in each for id in page]


def test_pages_hold_every_job_once_the_newest_first_while_others_are_entered(make_site: Make) -> None:
    site = make_site(jobs=230)

    def enter(number: int) -> None:
        site.journal.database.write("enter", lambda c: c.execute(
            "INSERT INTO job (id, identity, work_digest, root, run, step, checkpoint, work, pin, target, created)"
            " SELECT ?, ?, work_digest, root, run, step, checkpoint, work, pin, target, '2027-01-01T00:00:00.000+00:00' FROM job LIMIT 1",
            (f"new-{number}", f"new-{number}"),
        ))  # fmt: skip

    read = pages(site, "limit=50", enter)
    assert [len(page) for page in read] == [50, 50, 50, 50, 30]
    steps = [int(id.split("-")[2]) for page in read for id in page]
    assert steps == list(range(230, 0, -1))
    assert site.ask("/api/v1/jobs?limit=3").json["jobs"][0]["id"] == "new-4"


def test_jobs_are_chosen_as_by_the_command(make_site: Make) -> None:
    site = make_site(jobs=2 * RUNS, waiting=5)
    assert sorted(ids(pages(site, "run=run-03&limit=1"))) == ["run-03-3-00000003", "run-03-43-0000002b"]
    assert len(ids(pages(site, "run=run-0*&limit=7"))) == 20
    assert len(ids(pages(site, "state=succeeded&limit=200"))) == 2 * RUNS - 5
    assert len(ids(pages(site, "state=open&limit=2"))) == len(ids(pages(site, "state=waiting"))) == 5
    assert len(ids(pages(site, "state=ended&state=open&limit=200"))) == 2 * RUNS
    assert ids(pages(site, "state=failed")) == ids(pages(site, "run=nobody")) == ids(pages(site, "since=1h")) == []
    assert len(ids(pages(site, "since=2026-01-01T01:00%2B00:00"))) == 2 * RUNS - 59


def test_since_counts_when_an_export_ended_and_of_an_open_one_when_its_checkpoint_was_taken(make_site: Make) -> None:
    site = make_site(jobs=20, waiting=5)
    assert ids(pages(site, "since=1h")) == []
    site.journal.database.write("end", lambda c: c.execute("UPDATE job SET ended = ? WHERE id = ?", (now(), JOB)))
    site.page._server._context.reader.forget()  # type: ignore[union-attr]
    assert ids(pages(site, "since=1h")) == ids(pages(site, "since=1h&state=succeeded&run=run-0*")) == [JOB]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/jobs?state=odd", 400, "'odd' is not a state"), ("/jobs?since=odd", 400, "'odd' is neither"),
        ("/jobs?sate=failed", 400, "'sate' is not one of its parameters"), ("/peers?a=b", 400, "'a' is not one"),
        ("/jobs?limit=0", 400, "'0' is no number"), ("/jobs?limit=-1", 400, "from 1 to 200"),
        ("/jobs?limit=9999999999999", 400, "no number"), ("/jobs?limit=٣", 400, "no number"),
        ("/jobs?before=nobody", 404, "'nobody'"), ("/jobs/nobody", 404, "no job"), ("/jobs/run-0", 404, "10 jobs are meant"),
        (f"/jobs/{JOB}/report", 404, "it has no report"), (f"/jobs/{JOB}/log/odd", 404, "the stages of"),
        ("/quality?run=odd", 404, "'odd'"),
        ("/quality", 404, "''"), ("/nothing", 404, "nothing here"), ("", 404, "nothing here"), ("/status/", 404, "nothing here"),
    ],
)  # fmt: skip
def test_an_error_is_a_sentence_with_what_to_do(make_site: Make, path: str, status: int, said: str) -> None:
    from urllib.parse import quote

    answer = make_site(jobs=40).ask(api.PREFIX + quote(path, safe="/?=&"))
    assert answer.status == status and answer.headers["content-type"] == "application/json"
    assert said in answer.json["error"] and not re.search("Traceback|Fix:", answer.json["error"])
    assert set(answer.json) == {"error", "remedy"}


def test_an_answer_that_the_client_has_is_not_sent_again(make_site: Make) -> None:
    site = make_site(jobs=5)
    first = site.ask("/api/v1/jobs")
    for tag in (first.headers["etag"], f'W/{first.headers["etag"]}, "other"'):
        again = site.ask("/api/v1/jobs", If_None_Match=tag)
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert site.ask("/api/v1/jobs", If_None_Match='"other"').status == 200
    site.journal.controls.pause_all(True)
    site.journal.database.write("end", lambda c: c.execute("DELETE FROM job WHERE step = 5"))
    site.page._server._context.reader.forget()  # type: ignore[union-attr]
    assert site.ask("/api/v1/jobs", If_None_Match=first.headers["etag"]).status == 200


def test_head_gives_the_headers_alone_and_nothing_can_be_written(make_site: Make) -> None:
    site = make_site(jobs=5)
    answer = site.ask("/api/v1/jobs", "HEAD")
    assert answer.status == 200 and answer.body == b"" and answer.headers["etag"]
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert site.ask("/api/v1/jobs", method, Origin=site.origin).status == 405


def test_the_end_of_a_stages_log_is_text(make_site: Make) -> None:
    site = make_site(jobs=3)
    log = site.folder / "log"
    log.mkdir()
    (log / LOG_FILE).write_bytes(b"".join(b"line %d <script>\n" % number for number in range(500)) + b"\xff\xfe half")
    site.journal.database.write("log", lambda c: c.execute("UPDATE attempt SET folder = ? WHERE job = ?", (str(log), JOB)))
    stage = site.ask(f"/api/v1/jobs/{JOB}").json["attempts"][0]["stage"]
    answer = site.ask(f"/api/v1/jobs/{JOB}/log/{stage}?lines=3")
    assert (
        answer.status == 200 and answer.headers["content-type"] == "text/plain; charset=utf-8" and answer.headers["x-ckptd-attempt"] == "1"
    )
    assert answer.body.decode().splitlines() == ["line 498 <script>", "line 499 <script>", "\N{REPLACEMENT CHARACTER}" * 2 + " half"]


def test_the_report_of_an_export_is_given_as_it_is(make_site: Make) -> None:
    site = make_site(jobs=3)
    target = site.folder / "out" / "run-01"
    target.mkdir(parents=True)
    (target / "report.json").write_text('{"schema_version": 1}')
    (target / "MANIFEST.json").write_text(json.dumps({"export_id": JOB, "files": [{"path": "report.json"}]}))
    site.journal.database.write("target", lambda c: c.execute("UPDATE job SET target = ? WHERE id = ?", (str(target), JOB)))
    answer = site.ask(f"/api/v1/jobs/{JOB}/report")
    assert answer.status == 200 and answer.json == {"schema_version": 1}
    (site.folder / "secret").write_text('{"secret": 1}')
    (target / "report.json").unlink()
    (target / "report.json").symlink_to(site.folder / "secret")
    assert site.ask(f"/api/v1/jobs/{JOB}/report").status == 404
    (target / "report.json").unlink()
    (target / "report.json").write_text('{"schema_version": 1}')
    (target / "MANIFEST.json").unlink()
    assert site.ask(f"/api/v1/jobs/{JOB}/report").status == 404


def test_names_of_runs_may_hold_anything(make_site: Make) -> None:
    from urllib.parse import quote

    site = make_site(jobs=3)
    name = "a/../b?c&d=<e>\N{SNOWMAN} %2F\"'"
    site.journal.database.write("run", lambda c: c.execute("UPDATE job SET run = ?", (name,)))
    assert site.ask("/api/v1/runs").json["runs"][0]["run"] == name
    asked = site.ask(f"/api/v1/quality?run={quote(name, safe='')}")
    assert asked.status == 404 and "has an export" in asked.json["error"]


def test_figures_are_given_as_the_daemon_makes_them(make_site: Make) -> None:
    answer = make_site().ask("/metrics", Accept="application/openmetrics-text")
    assert answer.body == b"# application/openmetrics-text\n" and answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_what_is_read_is_known_for_as_long_as_it_is_read_and_no_longer(make_site: Make) -> None:
    site = make_site(jobs=3)
    server = site.page._server
    assert server is not None and server._context is not None
    reader = server._context.reader
    for limit in range(1, 100):
        for _ in range(2):  # the second answer is a kept one
            assert site.ask(f"/api/v1/jobs?limit={limit}").status == 200
    assert len(reader._reading) == 0 and len(reader._kept) <= MOST_KEPT


def test_health_is_said_while_nothing_else_can_be_read(make_site: Make) -> None:
    site = make_site(jobs=3)
    server, answered = site.page._server, threading.Event()
    assert server is not None and server._context is not None and server._loop is not None
    held = [asyncio.run_coroutine_threadsafe(server._context.call(answered.wait, 60), server._loop) for _ in range(20)]
    try:
        with ThreadPoolExecutor() as others:
            status = others.submit(site.ask, "/api/v1/status")
            for _ in range(3):
                assert {site.ask(path).status for path in ("/healthz", "/readyz")} <= {200, 503}
            assert not status.done()
            answered.set()
            assert status.result().status == 200
    finally:
        answered.set()
    assert all(each.result(20) for each in held)
