"""Estimates learn, windows open and close by the wall clock, the retry policy: the runner's pure rules."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.windows import Windows, problem_of, zone_problem
from daemon.contract.faults.errors import Fault
from daemon.contract.formats.stages import ModelSize
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.contract.jobs.plan import spec_of
from daemon.journal.attempts import Measured
from daemon.journal.rows import Lane
from daemon.running.rules.estimates import MARGIN, estimate
from daemon.running.rules.ready import next_lane
from daemon.running.rules.retry import after_crash, decide

GIB = 1 << 30
SPEC = spec_of("onnx")
SIZE = ModelSize(2 * GIB, GIB)


def took(parameters: int, peak: int) -> Measured:
    return Measured(ModelSize(2 * parameters, parameters), peak, 0, 1.0)


def test_without_experience_the_formula_counts() -> None:  # R6.2
    found = estimate(SPEC, SIZE, [])
    assert (found.memory, found.disk, found.source) == (SPEC.memory(SIZE), SPEC.disk(SIZE), "formula")


def test_disk_follows_the_dtype_that_the_job_merges_in() -> None:  # R6.2
    merge, size = spec_of("merge"), ModelSize(stored_bytes=2 * GIB, parameters=GIB)
    assert [estimate(merge, size, [], dtype).disk for dtype in ("base", "bfloat16", "float32")] == [2 * GIB, 2 * GIB, 4 * GIB]


def test_a_check_counts_the_files_that_it_writes_for_a_while() -> None:
    assert estimate(spec_of("check-gguf-q4_k_m"), SIZE, []).disk >= SIZE.fp32_bytes


def test_the_highest_of_the_latest_peaks_of_the_same_size_counts() -> None:  # R6.2
    old = [took(GIB, 90 * GIB)]
    latest = [took(GIB, 5 * GIB), took(GIB, 6 * GIB), took(GIB, 4 * GIB), took(GIB, 5 * GIB), took(GIB, 5 * GIB)]
    assert estimate(SPEC, SIZE, [*latest, *old]).memory == int(MARGIN * 6 * GIB)


def test_similar_sizes_correct_the_formula_and_far_ones_do_not() -> None:  # R6.2
    similar = [took(GIB // 2, SPEC.memory(ModelSize(GIB, GIB // 2)) // 2) for _ in range(3)]
    assert estimate(SPEC, SIZE, similar).memory == pytest.approx(MARGIN * SPEC.memory(SIZE) / 2, rel=0.01)
    far = [took(GIB // 100, 1) for _ in range(9)]
    assert estimate(SPEC, SIZE, far).source == "formula"


@given(st.lists(st.builds(took, st.integers(1, 10**10), st.integers(0, 10**11)), max_size=20))
def test_an_estimate_is_never_negative_and_names_its_source(measured: list[Measured]) -> None:
    found = estimate(SPEC, SIZE, measured)
    assert found.memory >= 0 and found.source in ("formula", "same size", "similar sizes")


def moment(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


def test_windows_are_open_in_every_minute_that_an_expression_matches() -> None:
    windows = Windows(["* 20-23,0-6 * * *", "* * * * sat,sun"], "UTC")
    assert windows.is_open(moment("2026-11-20T20:00:00")) and windows.is_open(moment("2026-11-20T06:59:59"))
    assert not windows.is_open(moment("2026-11-20T07:00:00")) and not windows.is_open(moment("2026-11-20T19:59:59"))
    assert windows.is_open(moment("2026-11-21T12:00:00")), "a Saturday"
    assert windows.opens(moment("2026-11-20T12:34:56")) == moment("2026-11-20T20:00:00")
    assert Windows([]).is_open(datetime.now(UTC))


def test_windows_follow_the_wall_clock_through_changes_of_daylight_saving() -> None:
    berlin = Windows(["* 2 * * *"], "Europe/Berlin")
    spring = moment("2026-03-29T00:30:00")  # 01:30 in Berlin; at 02:00 the clock goes to 03:00
    minutes = [spring + timedelta(minutes=one) for one in range(120)]
    assert not any(berlin.is_open(one) for one in minutes), "there is no hour between two and three that night"
    autumn = moment("2026-10-24T22:00:00")  # at 03:00 in Berlin the clock goes back to 02:00
    open_minutes = sum(berlin.is_open(autumn + timedelta(minutes=one)) for one in range(360))
    assert open_minutes in (60, 120), "the hour that comes twice counts, and nothing breaks"


def test_expressions_and_zones_that_make_no_sense_are_told() -> None:
    assert problem_of("* 20-23 * * *") is None and "no cron expression" in str(problem_of("nightly"))
    assert zone_problem("Europe/Berlin") is None and "no time zone" in str(zone_problem("Mars/Olympus"))


def lane(run: str, served: str | None, oldest: str = "2026") -> Lane:
    return Lane("/root", run, False, oldest, served)


def test_the_run_that_was_served_longest_ago_is_next_and_new_ones_first() -> None:  # R6.6
    assert next_lane([]) is None
    assert next_lane([lane("a", "2026-02"), lane("b", "2026-01")]) == lane("b", "2026-01")
    assert next_lane([lane("a", "2026-01"), lane("b", None)]) == lane("b", None)
    assert next_lane([lane("a", None, "2026-02"), lane("b", None, "2026-01")]) == lane("b", None, "2026-01")


def test_a_root_with_many_new_runs_takes_turns_with_the_others() -> None:  # R6.6
    crowded = [Lane("/crowded", f"new-{number}", False, "2026-01", None, root_served="2026-03") for number in range(50)]
    other = Lane("/other", "old", False, "2026-02", "2026-02", root_served="2026-02")
    assert next_lane([*crowded, other]) == other


def result(outcome: Outcome, retry_after: float | None = None) -> StageResult:
    fault = Fault(code="c", operation="o", cause="why", remedy="r")
    return StageResult(outcome=outcome, fault=fault, retry_after=retry_after)


def test_the_pause_doubles_with_some_jitter_and_ends_in_giving_up() -> None:  # R6.4
    jitter = random.Random(1)
    pauses = [decide(result(Outcome.RETRYABLE), failures, 5, 10.0, jitter).delay for failures in range(4)]
    for failures, pause in enumerate(pauses):
        assert pause is not None and 10 * 2**failures <= pause <= 12.5 * 2**failures
    last = decide(result(Outcome.RETRYABLE), 4, 5, 10.0, jitter)
    assert last.state == "failed" and last.fault is not None and "attempt 5 of 5" in last.fault.cause
    assert decide(result(Outcome.PERMANENT), 0, 5, 10.0, jitter).state == "failed"
    assert decide(result(Outcome.INTERRUPTED), 9, 5, 10.0, jitter) == decide(result(Outcome.INTERRUPTED), 0, 1, 1.0, jitter)
    asked = decide(result(Outcome.RETRYABLE, retry_after=60), 0, 5, 10.0, jitter).delay
    assert asked is not None and 60 <= asked <= 75


def test_a_stage_in_which_the_daemon_dies_too_often_is_set_aside() -> None:  # R6.4
    assert after_crash("onnx", 4, 5, "log").state == "waiting"
    decision = after_crash("onnx", 5, 5, "log")
    assert decision.state == "failed" and decision.fault is not None and decision.fault.code == "poison"
