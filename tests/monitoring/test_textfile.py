"""The metrics: their names, their text for a file and for a scrape, and what is counted when."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.contract.faults.errors import Retryable
from daemon.contract.jobs.figures import ReportFigures
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.journal.attempts import Intent
from daemon.journal.following import WRITTEN
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId
from daemon.operating.monitoring.metrics import exposition as exposing
from daemon.operating.monitoring.metrics.exposition import Exposition
from daemon.operating.monitoring.metrics.figures import Figures
from daemon.operating.monitoring.metrics.table import METRICS, table
from tests.journal.entries import STAGES, enter, reference
from tests.monitoring.reading import OPENMETRICS, expose, exposed, read
from tests.runner.conftest import ROOT, Toy, copied

PAGE = ROOT / "docs/operating.md"
GAUGES = [metric for metric in METRICS if metric.kind == "gauge"]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposition]:
    """The exposition of a journal in which nothing happens."""
    journal = Journal(tmp_path_factory.mktemp("quiet") / "j.sqlite3")
    yield expose(journal)
    journal.close()


def test_names_follow_prometheus_conventions() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"ckptd_[a-z]+(_[a-z]+)*", metric.name), metric
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        assert not metric.name.endswith(("_count", "_sum", "_bucket", "_gauge", "_counter")), metric
        assert not re.search(r"_(ms|milliseconds|minutes|hours|kib|mib|gib|percent)(_|$)", metric.name), "base units alone"
        assert metric.help.endswith(".") and "\n" not in metric.help
        assert not {"le", "quantile", "job", "instance"} & set(metric.labels), "these are Prometheus's own"
        assert list(metric.buckets) == sorted(set(metric.buckets)) and bool(metric.buckets) == (metric.kind == "histogram")
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@given(
    values=st.lists(
        st.tuples(st.sampled_from(GAUGES), st.lists(st.text(max_size=8), min_size=2, max_size=2), st.floats(-1e15, 1e15)), max_size=12
    )
)
def test_whatever_the_labels_hold_the_text_is_read_back_as_it_was_meant(
    quiet: Exposition, values: list[tuple[Any, list[str], float]]
) -> None:
    figures = Figures("gauge")
    meant = {}
    for metric, texts, value in values:
        labels = dict(zip(metric.labels, texts, strict=False))
        figures.set(metric.name, value, **labels)
        meant[metric.name, tuple((key, text.encode("utf-8", "backslashreplace").decode()) for key, text in sorted(labels.items()))] = value
    assert meant.items() <= exposed(quiet, figures).items()


@pytest.mark.parametrize("root", ['/a"b', "/a\\b", "/a\nb 1\nckptd_root_up 7", "/a\udc80b", '/a",root="b', "/模型", "/a\x00\r\x85\u2028b"])
def test_the_name_of_a_root_adds_no_line_and_no_label(quiet: Exposition, root: str) -> None:
    figures = Figures("gauge")
    figures.set("ckptd_root_up", 1, root=root)
    roots = {labels: value for (name, labels), value in exposed(quiet, figures).items() if name == "ckptd_root_up"}
    assert roots == {(("root", root.replace("\udc80", r"\udc80")),): 1}


def test_a_metric_or_label_that_the_table_lacks_is_refused() -> None:
    figures = Figures("gauge", "counter", "histogram")
    with pytest.raises(KeyError):
        figures.set("ckptd_other", 1)
    with pytest.raises(KeyError):
        figures.set("ckptd_exports_total", 1, state="failed")  # a counter only grows
    with pytest.raises(ValueError, match="missing label values"):
        figures.set("ckptd_jobs", 1)
    with pytest.raises(ValueError, match="Incorrect label names"):
        figures.observe("ckptd_stage_duration_seconds", 1, state="failed")


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/html", "application/openmetrics-text;version=x", "text/plain;version=1.x;q", "a" * 9000]
)
def test_whatever_is_accepted_there_is_a_text_that_can_be_read(quiet: Exposition, accept: str) -> None:
    quiet.take(Figures("gauge"))
    text, kind = quiet.answer(accept)
    assert kind.startswith("text/plain; version=") and read(text)


def test_figures_that_are_too_old_are_no_answer(quiet: Exposition, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet.take(Figures("gauge"))
    monkeypatch.setattr(exposing, "STALE_SECONDS", 0.05)
    time.sleep(0.1)
    with pytest.raises(Retryable, match="none have been taken for 0 s"):
        quiet.answer()
    quiet.take(Figures("gauge"))
    assert quiet.answer()


def test_before_the_first_figures_there_is_no_answer(journal: Journal) -> None:
    with pytest.raises(Retryable, match="none have been taken"):
        expose(journal).answer(OPENMETRICS)


def run_through(journal: Journal, job: str, step: int, written: datetime | None = None) -> None:
    metadata = {} if written is None else {WRITTEN: written.isoformat(timespec="milliseconds")}
    enter(journal, job, reference(step, digest=job).model_copy(update={"metadata": metadata}))
    carry_out(journal, job)


def carry_out(journal: Journal, job: str) -> None:
    journal.jobs.start(job, None)
    for stage in STAGES:
        attempt = AttemptId(job, stage, journal.stages.of(job)[stage].attempts + 1)
        assert journal.attempts.claim(Intent(attempt, Path("/a"), Path("/s"), 0))
        figures = ReportFigures(status="partial", artifacts={"pytorch": "passed", "onnx": "failed"}).written() if stage == "report" else {}
        result = StageResult(outcome=Outcome.SUCCEEDED, seconds=2.5, figures=figures, peak_rss=100 * 2**20)
        journal.attempts.settle(attempt, result, state="succeeded")
    journal.jobs.finish(job, "partial", None)


def test_what_ends_after_the_daemons_start_is_counted_once(journal: Journal) -> None:
    run_through(journal, "before", 1)
    enter(journal, "open", reference(2, digest="open"))
    journal.jobs.start("open", None)
    merge = AttemptId("open", "merge", 1)
    assert journal.attempts.claim(Intent(merge, Path("/a"), Path("/s"), 0))
    exposition = expose(journal)
    begun = exposed(exposition)
    assert set(begun.values()) == {0.0}
    run_through(journal, "after", 3)
    journal.attempts.settle(merge, StageResult(outcome=Outcome.RETRYABLE), state="waiting", retry_delay=1.0)
    for _ in range(3):
        seen = exposed(exposition)
    assert seen["ckptd_exports_total", (("state", "partial"),)] == 1
    assert seen["ckptd_artifacts_total", (("variant", "onnx"), ("verdict", "failed"))] == 1
    assert seen["ckptd_attempts_total", (("outcome", "retryable"), ("stage", "merge"))] == 1
    assert seen["ckptd_attempts_total", (("outcome", "succeeded"), ("stage", "merge"))] == 1
    assert seen["ckptd_stage_seconds_total", (("stage", "merge"),)] == 2.5
    journal.controls.cancel("open", "by hand")
    after = exposed(exposition)
    assert after["ckptd_exports_total", (("state", "cancelled"),)] == 1
    new = {name for name, _ in after.keys() - begun.keys()}
    assert new == {"ckptd_stage_seconds_total", "ckptd_export_seconds_total"}, "a rate needs a 0 before the first event"


def buckets(samples: dict[Any, float], name: str, **labels: str) -> list[str]:
    """The bounds of a histogram's buckets into which values fell, each as often as they did."""
    rows = [(dict(key), value) for (sample, key), value in samples.items() if sample == f"{name}_bucket"]
    counts = [(row["le"], value) for row, value in rows if labels.items() <= row.items()]
    fell, before = [], 0.0
    for bound, count in sorted(counts, key=lambda row: float(row[0])):
        fell += [bound] * int(count - before)
        before = count
    return fell


def test_durations_memory_and_delays_fall_into_their_buckets(journal: Journal) -> None:
    exposition, now = expose(journal), datetime.now(UTC)
    run_through(journal, "new", 1, written=now + timedelta(seconds=1))  # its file system's clock is ahead
    run_through(journal, "old", 2, written=now - timedelta(days=2))
    run_through(journal, "unknown", 3)
    seen = exposed(exposition)
    assert buckets(seen, "ckptd_stage_duration_seconds", stage="merge") == ["3.0"] * 3
    assert (
        seen["ckptd_stage_duration_seconds_sum", (("stage", "merge"),)] == 7.5 == seen["ckptd_stage_seconds_total", (("stage", "merge"),)]
    )
    assert buckets(seen, "ckptd_stage_peak_memory_bytes", stage="report") == ["1.34217728e+08"] * 3
    assert seen["ckptd_export_duration_seconds_count", (("state", "partial"),)] == 3
    assert seen["ckptd_queue_duration_seconds_count", ()] == 3
    assert buckets(seen, "ckptd_detection_latency_seconds") == ["0.5"], "of what was written while the daemon ran, and is known"
    assert sorted(buckets(seen, "ckptd_publication_delay_seconds"))[0] == "+Inf", "what a daemon that did not run delayed is counted here"
    assert seen["ckptd_publication_delay_seconds_count", ()] == 2


def test_an_export_that_is_done_again_delays_no_publication_and_waits_in_no_queue(journal: Journal) -> None:
    exposition = expose(journal)
    run_through(journal, "job", 1, written=datetime.now(UTC))
    exposed(exposition)
    journal.jobs.retry("job")
    exposed(exposition)
    carry_out(journal, "job")
    seen = exposed(exposition)
    assert seen["ckptd_exports_total", (("state", "partial"),)] == 2
    assert seen["ckptd_publication_delay_seconds_count", ()] == seen["ckptd_queue_duration_seconds_count", ()] == 1


def test_what_ends_again_between_two_looks_is_counted_again_with_or_without_an_attempt(journal: Journal) -> None:
    exposition = expose(journal)
    run_through(journal, "job", 1)
    run_through(journal, "other", 2)
    exposed(exposition)
    for times in (1, 2):
        journal.jobs.retry("job")
        carry_out(journal, "job")
        seen = exposed(exposition)
        assert seen["ckptd_exports_total", (("state", "partial"),)] == 2 + times
        assert seen["ckptd_export_duration_seconds_count", (("state", "partial"),)] == 2 + times
        assert exposed(exposition) == seen, "once each"
    journal.jobs.retry("other")
    journal.controls.cancel("other", "by hand")
    assert exposed(exposition)["ckptd_exports_total", (("state", "cancelled"),)] == 1


def test_the_counters_of_the_next_daemon_begin_at_0(journal: Journal) -> None:
    run_through(journal, "first", 1, written=datetime.now(UTC))
    earlier, later = exposed(expose(journal)), expose(journal)
    run_through(journal, "second", 2, written=datetime.now(UTC) + timedelta(seconds=1))
    assert set(earlier.values()) == {0.0}
    seen = exposed(later)
    assert seen["ckptd_exports_total", (("state", "partial"),)] == seen["ckptd_detection_latency_seconds_count", ()] == 1


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(["enter", "begin", "end", "fail", "look", "finish"]), max_size=25))
def test_counters_never_lose_or_double_an_attempt_whenever_one_looks(tmp_path_factory: pytest.TempPathFactory, moves: list[str]) -> None:
    journal = Journal(tmp_path_factory.mktemp("journal") / "j.sqlite3")
    exposition, entered, open_, tries, ended = expose(journal), 0, list[AttemptId](), dict[str, int](), 0
    try:
        for move in moves:
            if move == "enter" and entered < 3:
                entered += 1
                enter(journal, f"j{entered}", reference(entered, digest=str(entered)))
                journal.jobs.start(f"j{entered}", None)
            elif move == "begin" and entered:
                name = f"j{entered}"
                if any(one.job == name for one in open_) or journal.stages.of(name)["merge"].state != "waiting":
                    continue
                tries[name] = tries.get(name, 0) + 1
                open_.append(AttemptId(name, "merge", tries[name]))
                assert journal.attempts.claim(Intent(open_[-1], Path("/a"), Path("/s"), 0))
            elif move in ("end", "fail") and open_:
                outcome, state = (Outcome.SUCCEEDED, "succeeded") if move == "end" else (Outcome.RETRYABLE, "waiting")
                journal.attempts.settle(open_.pop(0), StageResult(outcome=outcome, seconds=1.0), state=state)
                ended += 1
            elif move == "look":
                exposed(exposition)
        assert sum(value for (name, _), value in exposed(exposition).items() if name == "ckptd_attempts_total") == ended
    finally:
        journal.close()


def test_the_page_has_every_metric() -> None:
    assert table() in PAGE.read_text("utf-8"), "run `python -m tests.monitoring.page`"


@pytest.mark.slow
def test_a_daemon_writes_a_textfile_with_what_its_export_did(make_toy: Callable[..., Toy], pico_checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "collector" / "ckptd.prom"
    toy = make_toy(extra=f'[metrics]\ntextfile = "{file}"\n')
    toy.start()
    toy.wait_for(lambda _: file.is_file(), 60)
    begun = read(file.read_bytes())
    copied(pico_checkpoint, toy)
    (job,) = toy.wait_ended()
    done = ("ckptd_exports_total", (("state", "succeeded"),))
    toy.wait_for(lambda _: read(file.read_bytes())[done] == 1, 60)
    assert toy.stop() == 0
    seen = read(file.read_bytes())
    assert begun[done] == 0
    assert seen["ckptd_condition", (("condition", "healthy"),)] == 1 and seen["ckptd_jobs", (("state", "succeeded"),)] == 1
    assert seen["ckptd_artifacts_total", (("variant", "pytorch"), ("verdict", "passed"))] == 1
    assert seen["ckptd_root_up", (("root", str(toy.root)),)] == 1
    assert {metric.name for metric in METRICS if metric.kind == "gauge" and not metric.labels} <= {name for name, _ in seen}
    stages = {stage["name"]: stage["seconds"] for stage in job["stages"]}
    assert sorted(toy.stages_begun()) == sorted(stages)
    for stage, seconds in stages.items():
        labels = (("stage", stage),)
        assert seen["ckptd_stage_duration_seconds_count", labels] == seen["ckptd_stage_peak_memory_bytes_count", labels] == 1
        assert seen["ckptd_stage_duration_seconds_sum", labels] == seconds
        assert seen["ckptd_stage_peak_memory_bytes_sum", labels] > 2**20
    times = {name: datetime.fromisoformat(job[name]) for name in ("created", "started", "ended")}
    took = (times["ended"] - times["started"]).total_seconds()
    assert seen["ckptd_export_duration_seconds_sum", done[1]] == took
    assert seen["ckptd_export_duration_seconds_count", done[1]] == seen["ckptd_queue_duration_seconds_count", ()] == 1
    detection, delay = (seen[f"ckptd_{name}_seconds_sum", ()] for name in ("detection_latency", "publication_delay"))
    assert seen["ckptd_detection_latency_seconds_count", ()] == seen["ckptd_publication_delay_seconds_count", ()] == 1
    assert detection >= 0.3, "the settle time is in it"
    assert delay == pytest.approx(detection + (times["ended"] - times["created"]).total_seconds(), abs=0.002)
    toy.start()
    toy.wait_for(lambda _: read(file.read_bytes())["ckptd_start_time_seconds", ()] > seen["ckptd_start_time_seconds", ()], 60)
    assert toy.stop() == 0
    again = read(file.read_bytes())
    assert again["ckptd_jobs", (("state", "succeeded"),)] == 1, "the journal knows it"
    assert again[done] == again["ckptd_publication_delay_seconds_count", ()] == 0, "the counters of the next daemon begin at 0"
