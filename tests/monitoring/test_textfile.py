"""The textfile for Prometheus's node_exporter: its form, its names, and what is counted when."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from daemon.contract.jobs.figures import ReportFigures
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.journal.attempts import Intent
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId
from daemon.operating.monitoring.metrics import METRICS, Counted, Figures, render, table
from tests.journal.conftest import STAGES, enter, reference
from tests.runner.conftest import ROOT, Toy, copied

PAGE = ROOT / "docs/operating.md"


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples of an exposition text as Prometheus's own parser reads it, each in its family of the table."""
    assert text.endswith("\n")
    families = list(text_string_to_metric_families(text))
    heads = [line.split(" ")[2] for line in text.split("\n") if line.startswith("# HELP ")]
    assert len(heads) == len(set(heads)) == len(families), "one help for each family, all samples below it"
    kinds = {metric.name.removesuffix("_total"): (metric.kind, metric.help) for metric in METRICS}
    assert all(kinds[family.name.removesuffix("_total")] == (family.type, family.documentation) for family in families)
    samples = [sample for family in families for sample in family.samples]
    assert len({(sample.name, *sample.labels.items()) for sample in samples}) == len(samples)
    return {(sample.name, tuple(sample.labels.items())): sample.value for sample in samples}


def test_names_follow_prometheus_conventions() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"ckptd_[a-z]+(_[a-z]+)*", metric.name), metric
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        assert not metric.name.endswith(("_count", "_sum", "_bucket", "_gauge", "_counter")), metric
        assert not re.search(r"_(ms|milliseconds|minutes|hours|kib|mib|gib|percent)(_|$)", metric.name), "base units alone"
        assert metric.help.endswith(".") and "\n" not in metric.help
        assert not {"le", "quantile", "job", "instance"} & set(metric.labels), "these are Prometheus's own"
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@given(
    values=st.lists(
        st.tuples(st.sampled_from(METRICS), st.lists(st.text(max_size=8), min_size=2, max_size=2), st.floats(-1e15, 1e15)), max_size=12
    )
)
def test_whatever_the_labels_hold_the_text_is_read_back_as_it_was_meant(values: list[tuple[Any, list[str], float]]) -> None:
    figures = Figures()
    meant = {}
    for metric, texts, value in values:
        labels = dict(zip(metric.labels, texts, strict=False))
        figures.set(metric.name, value, **labels)
        meant[metric.name, tuple(labels.items())] = value
    found = read(render(figures))
    for (name, labels), value in meant.items():
        assert found[name, tuple((key, text.encode("utf-8", "backslashreplace").decode()) for key, text in labels)] == pytest.approx(
            value, abs=1e-3
        )


def test_a_metric_or_label_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(KeyError):
        Figures().set("ckptd_other", 1)
    with pytest.raises(ValueError, match="has the labels"):
        Figures().set("ckptd_jobs", 1)


def run_through(journal: Journal, job: str, step: int) -> None:
    enter(journal, job, reference(step, digest=job))
    journal.jobs.start(job, None)
    for stage in STAGES:
        attempt = AttemptId(job, stage, 1)
        assert journal.attempts.claim(Intent(attempt, Path("/a"), Path("/s"), 0))
        figures = ReportFigures(status="partial", artifacts={"pytorch": "passed", "onnx": "failed"}).written() if stage == "report" else {}
        result = StageResult(outcome=Outcome.SUCCEEDED, seconds=2.5, figures=figures)
        journal.attempts.settle(attempt, result, state="succeeded")
    journal.jobs.finish(job, "partial", None)


def test_what_ends_after_the_daemons_start_is_counted_once(journal: Journal) -> None:
    run_through(journal, "before", 1)
    enter(journal, "open", reference(2, digest="open"))
    journal.jobs.start("open", None)
    merge = AttemptId("open", "merge", 1)
    assert journal.attempts.claim(Intent(merge, Path("/a"), Path("/s"), 0))
    counted = Counted(journal)
    assert read(render(counted.look())).keys().isdisjoint({("ckptd_exports_total", (("state", "partial"),))}), "counters begin at 0"
    run_through(journal, "after", 3)
    journal.attempts.settle(merge, StageResult(outcome=Outcome.RETRYABLE), state="waiting", retry_delay=1.0)
    for _ in range(3):
        found = read(render(counted.look()))
    assert found["ckptd_exports_total", (("state", "partial"),)] == 1
    assert found["ckptd_artifacts_total", (("variant", "onnx"), ("verdict", "failed"))] == 1
    assert found["ckptd_attempts_total", (("stage", "merge"), ("outcome", "retryable"))] == 1
    assert found["ckptd_attempts_total", (("stage", "merge"), ("outcome", "succeeded"))] == 1
    assert found["ckptd_stage_seconds_total", (("stage", "merge"),)] == 2.5
    journal.controls.cancel("open", "by hand")
    assert read(render(counted.look()))["ckptd_exports_total", (("state", "cancelled"),)] == 1


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(["enter", "begin", "end", "fail", "look", "finish"]), max_size=25))
def test_counters_never_lose_or_double_an_attempt_whenever_one_looks(tmp_path_factory: pytest.TempPathFactory, moves: list[str]) -> None:
    journal = Journal(tmp_path_factory.mktemp("journal") / "j.sqlite3")
    counted, entered, open_, tries, ended = Counted(journal), 0, list[AttemptId](), dict[str, int](), 0
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
                counted.look()
        found = counted.look().values.get("ckptd_attempts_total", {})
        assert sum(found.values()) == ended
    finally:
        journal.close()


def test_the_page_has_every_metric() -> None:
    assert table() in PAGE.read_text("utf-8"), "run `python -m tests.monitoring.page`"


@pytest.mark.slow
def test_a_daemon_writes_a_textfile_with_every_figure(make_toy: Callable[..., Toy], pico_checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "collector" / "ckptd.prom"
    toy = make_toy(extra=f'[metrics]\ntextfile = "{file}"\n')
    copied(pico_checkpoint, toy)
    toy.start()
    toy.wait_ended()
    done = ("ckptd_exports_total", (("state", "succeeded"),))
    toy.wait_for(lambda _: file.is_file() and done in read(file.read_text()), 60)
    assert toy.stop() == 0
    found = read(file.read_text())
    assert found["ckptd_condition", (("condition", "healthy"),)] == 1 and found["ckptd_jobs", (("state", "succeeded"),)] == 1
    assert found["ckptd_artifacts_total", (("variant", "pytorch"), ("verdict", "passed"))] == 1
    assert found["ckptd_root_up", (("root", str(toy.root)),)] == 1
    unlabelled = {one.name for one in METRICS if not one.labels}
    assert unlabelled <= {name for name, _ in found}, "a gauge without labels is there from the start"
