"""What an export left, as the page shows it: its files, its report in a box of its own, its logs as text, its course as a trace."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.contract import units
from daemon.operating.monitoring.status import AttemptStatus, JobDetails, find
from daemon.page.screens.outputs import plain_text
from daemon.page.screens.timeline import LEAST_WAIT, timeline, trace
from tests.page.screens.conftest import Pages


def exports(pages: Pages) -> str:
    return f"/reports{pages.home}/exports"


def test_a_report_is_served_as_a_page_that_can_do_nothing(pages: Pages) -> None:
    page = pages.get(f"{exports(pages)}/done/step-16/report.html")
    policy = page.headers["content-security-policy"]
    assert page.status == 200 and b"<script>alert(1)" in page.body
    assert policy.startswith("sandbox;") and "default-src 'none'" in policy and "allow-" not in policy and "script-src" not in policy


def test_links_between_reports_lead_to_theirs(pages: Pages) -> None:
    latest = pages.home / "exports" / "done" / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to("step-12")
    assert b"<title>12</title>" in pages.get(f"{exports(pages)}/done/latest/report.html").body
    above = pages.get(f"{exports(pages)}/done/")
    assert above.status == 303 and above.headers["location"].startswith("/run?name=done")


@pytest.mark.parametrize(
    "path",
    [
        "done/step-16/secret.txt", "done/step-16/report.json", "done/step-16/../../../state/journal.sqlite3", "done/out/report.html",
        "done/step-16/pytorch", "nothing/report.html", "..%2f..%2fetc%2fpasswd", "done/step-16%00/report.html", "done/loop/report.html",
    ],
)  # fmt: skip
def test_no_address_of_a_report_leads_to_another_file(path: str, pages: Pages, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("elsewhere")
    for name, target in (("out", str(tmp_path)), ("loop", "loop")):
        link = pages.home / "exports" / "done" / name
        if not link.is_symlink():
            link.symlink_to(target)
    page = pages.get(f"{exports(pages)}/{path}")
    assert page.status == 404 and b"elsewhere" not in page.body and b"no part of" not in page.body


def test_a_report_that_the_manifest_does_not_name_or_that_is_a_link_is_not_shown(pages: Pages, tmp_path: Path) -> None:
    folder, address = pages.home / "exports" / "done" / "step-8", f"{exports(pages)}/done/step-8/report.html"
    assert pages.get(address).status == 200
    manifest = (folder / "MANIFEST.json").read_text()
    (folder / "MANIFEST.json").write_text(manifest.replace("report.html", "other.html"))
    assert pages.get(address).status == 404
    (folder / "MANIFEST.json").write_text(manifest.replace("done-8-aa", "another-export"))
    assert pages.get(address).status == 404
    (folder / "MANIFEST.json").write_text(manifest)
    (tmp_path / "other.html").write_text("elsewhere")
    os.rename(folder / "report.html", folder / "kept")
    (folder / "report.html").symlink_to(tmp_path / "other.html")
    assert pages.get(address).status == 404
    os.replace(folder / "kept", folder / "report.html")


def test_the_files_of_an_export_are_listed_with_sizes_and_digests(pages: Pages) -> None:
    page = pages.get("/jobs/done-4-65e2f9d05339")
    rows = {
        row.xpath("string(th)").strip(): row.xpath("string(.//code)") for row in page.tree.xpath("//details[@id='all-files']//tbody/tr")
    }
    assert rows["pytorch/model-0.bin"] == "c306e1ffddd998f8f3011c4da94684304a27a1f0fd62fa5ddefdedaff5f6b0af" and len(rows) > 8


def test_a_log_is_text_and_of_a_long_one_the_end(pages: Pages) -> None:
    page = pages.get("/jobs/hostile-4-bb/log/merge/1")
    shown = page.tree.xpath("string(//pre)")
    assert shown.endswith("plain red\nnew <b>bold</b>\\x00 \\u202edone\n")
    assert "line 0\n" not in shown and shown.startswith("line ")
    (more,) = page.tree.xpath("//section[@id='log']//a/@href")
    assert "line 0\n" in pages.get(f"/jobs/hostile-4-bb/log/merge/1{more}").tree.xpath("string(//pre)")


@pytest.mark.parametrize("path", ["log/merge/2", "log/nothing/1", "log/merge/0", "log/../1", "log/merge/x"])
def test_there_is_no_log_but_those_of_attempts(path: str, pages: Pages) -> None:
    assert pages.get(f"/jobs/hostile-4-bb/{path}").status == 404


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("10 %\r20 %\r30 %\n", "30 %\n"), ("\x1b]0;title\x07text", "text"), ("\x1b[2J\x1b[1;1Hx", "x"), ("a\r\nb\r\n", "a\nb\n"),
        ("\x9b31mred", "red"), ("\x1b", "\\x1b"), ("tab\there", "tab\there"),
    ],
)  # fmt: skip
def test_a_log_has_no_sequences_of_a_terminal(written: str, shown: str) -> None:
    assert plain_text(written) == shown


def test_an_id_must_be_whole(pages: Pages) -> None:
    assert pages.get("/jobs/done-16").status == 404 and pages.get("/jobs/done-16-aa").status == 200


def test_the_trace_has_a_slice_for_each_attempt_where_and_as_long_as_it_ran(pages: Pages) -> None:
    (job,) = find(pages.home / "state", "done-4-65e2f9d05339")
    value = pages.get(f"/jobs/{job.id}/trace.json").json
    slices = {(event["tid"], event["ts"], event["dur"]): event for event in value["traceEvents"] if event["ph"] == "X"}
    names = {event["tid"]: event["args"]["name"] for event in value["traceEvents"] if event["name"] == "thread_name"}
    attempts = [event for event in slices.values() if event["cat"] == "attempt"]
    assert len(attempts) == len(job.attempts) > 5
    for event in attempts:
        attempt = next(row for row in job.attempts if row.stage == names[event["tid"]] and row.number == event["args"]["attempt"])
        begin, end = units.seconds_of(attempt.started), units.seconds_of(attempt.ended)
        assert begin is not None and end is not None
        assert event["ts"] == pytest.approx(begin * 1e6, abs=1) and event["dur"] == pytest.approx((end - begin) * 1e6, abs=2)
    assert wrong_in(value) == []


METADATA = {"process_name": ("name", str), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}


def wrong_in(value: dict[str, Any]) -> list[str]:
    """What in a trace is against "Trace Event Format", or is left out by Perfetto: it takes no two slices of a track that overlap and are
    not within each other."""
    wrong, open_until, ids = list[str](), dict[int, list[int]](), set[int]()
    for event in sorted(value["traceEvents"], key=lambda event: (event.get("ts", -1), -event.get("dur", 0))):
        kind, place = event["ph"], f"{event}"
        ids.add(event["pid"])
        if not all(type(event[key]) is int for key in ("pid", "tid")) or not isinstance(event["name"], str):
            wrong.append(f"pid, tid or name: {place}")
        if kind == "M":
            key, type_ = METADATA[event["name"]]
            wrong += [] if type(event["args"].get(key)) is type_ and set(event["args"]) == {key} else [f"metadata: {place}"]
        elif kind == "i":
            wrong += [] if event["s"] in ("g", "p", "t") and type(event["ts"]) is int else [f"instant: {place}"]
        elif kind == "X" and type(event["ts"]) is int and type(event["dur"]) is int and event["ts"] > 0 and event["dur"] > 0:
            within = open_until.setdefault(event["tid"], [])
            while within and within[-1] <= event["ts"]:
                within.pop()
            wrong += [f"overlaps: {place}"] if within and event["ts"] + event["dur"] > within[-1] else []
            within.append(event["ts"] + event["dur"])
        else:
            wrong.append(f"kind or times: {place}")
    named = {event["tid"] for event in value["traceEvents"] if event["name"] == "thread_name"}
    return wrong + [f"track {tid} has no name" for tid in open_until.keys() - named] + (["several processes"] if len(ids) != 1 else [])


def test_no_slices_of_a_track_overlap_whatever_the_clock_did(pages: Pages) -> None:
    (job,) = find(pages.home / "state", "done-4-65e2f9d05339")
    for times in (
        ((20, 30, "retryable"), (60, 100, "succeeded")), ((20, 30, "retryable"), (25, 40, "succeeded")),
        ((30, 20, "retryable"), (31, 31, "succeeded")), ((5, None, "interrupted"), (50, None, None)),
        ((0, 0, "retryable"), (0, 0, "failed")),
    ):  # fmt: skip
        assert wrong_in(trace(tried(job, *times), 0)) == [], times


def tried(job: JobDetails, *times: tuple[int, int | None, str | None]) -> JobDetails:
    """The export with attempts at its first stage, which began and ended so many seconds after it was taken."""
    begin = f"{job.created[:11]}00:00:00+00:00"

    def at(second: int | None) -> str | None:
        return None if second is None else begin.replace("00:00:00", f"00:{second // 60:02}:{second % 60:02}")

    attempts = tuple(
        AttemptStatus("merge", number, "default", outcome, None, at(start) or "", at(end), None, "", "")
        for number, (start, end, outcome) in enumerate(times, 1)
    )
    return replace(job, created=begin, attempts=attempts, ended=at(100), stages=job.stages[:1])


def test_the_course_has_the_waits_between_attempts(pages: Pages) -> None:
    (job,) = find(pages.home / "state", "done-4-65e2f9d05339")
    course = timeline(tried(job, (20, 30, "retryable"), (60, 100, "succeeded")), clock=0)
    assert course is not None
    queue, merge = course.rows
    assert [span.kind for span in queue.spans] == ["wait"] and queue.spans[0].end - queue.spans[0].begin == 20 > LEAST_WAIT
    assert [span.kind for span in merge.spans] == ["retryable", "wait", "succeeded"]
    assert [(round(span.left), round(span.width)) for span in merge.spans] == [(20, 10), (30, 30), (60, 40)]


def test_what_still_runs_reaches_to_now_and_what_was_reused_is_marked(pages: Pages) -> None:
    (job,) = find(pages.home / "state", "done-4-65e2f9d05339")
    begun = tried(job, (0, None, None))
    running = replace(begun, state="running", ended=None)
    begin = units.seconds_of(begun.created)
    assert begin is not None
    course = timeline(running, clock=begin + 50)
    assert course is not None and [span.kind for span in course.rows[-1].spans] == ["running"] and course.end == begin + 50
    again = replace(begun, stages=(*begun.stages, replace(begun.stages[0], name="onnx", attempts=0)))
    events = trace(again, 0)["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "i"] == ["onnx: reused"]
