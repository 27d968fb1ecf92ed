"""What every scheduler must pass unchanged, below the same executor: each function is one promise, made to `tests.cluster.bench.Bench`.

`tests.cluster.test_contract` runs them with the scheduler of the tests' own and with a real Slurm, and with executors that are wrong.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome
from tests.cluster.bench import Bench, outcome, result_of, runs, until


def an_attempt_runs_and_its_files_are_where_the_daemon_expects_them(bench: Bench) -> None:
    attempt = bench.start()
    result = result_of(attempt)
    assert result.outcome is Outcome.SUCCEEDED, result
    assert [entry.path for entry in result.files] == ["out.bin"]
    assert Path(attempt.context.staging, "out.bin").read_text() == attempt.context.attempt_id
    assert bench.begun() == [attempt.context.attempt_id]
    assert attempt.ended_surely and attempt.place.host


def what_it_says_is_seen_while_it_runs(bench: Bench) -> None:
    attempt = bench.start(held=True)
    until(lambda: runs(attempt))
    assert attempt.progress.fraction == 0.5
    until(lambda: attempt.place.state == "running" and attempt.place.id)
    bench.release(attempt)
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)


def a_daemon_that_starts_again_goes_on_with_what_runs(bench: Bench) -> None:
    attempt = bench.start(held=True)
    until(lambda: runs(attempt))
    taken = bench.restart(attempt)
    until(lambda: runs(taken))
    assert taken.warnings == []
    bench.release(taken)
    assert outcome(taken) == (Outcome.SUCCEEDED, None)
    assert bench.begun() == [attempt.context.attempt_id]


def one_whose_id_was_never_recorded_is_found_by_its_folder(bench: Bench) -> None:
    attempt = bench.start(held=True)
    until(lambda: runs(attempt))
    taken = bench.restart(attempt, known=False)
    bench.release(taken)
    assert outcome(taken) == (Outcome.SUCCEEDED, None)
    assert bench.begun() == [attempt.context.attempt_id]


def what_ended_while_no_daemon_was_there_is_taken_as_it_is(bench: Bench) -> None:
    attempt = bench.start(held=True)
    until(lambda: runs(attempt))
    bench.executor.close()
    bench.release(attempt)
    until(lambda: (attempt.folder / "end.json").exists())
    assert outcome(bench.restart(attempt)) == (Outcome.SUCCEEDED, None)
    assert bench.begun() == [attempt.context.attempt_id]


def a_stopped_attempt_comes_to_a_safe_point(bench: Bench) -> None:
    attempt = bench.start(held=True)
    until(lambda: runs(attempt))
    attempt.stop()
    assert outcome(attempt) == (Outcome.INTERRUPTED, None)
    assert attempt.ended_surely


def one_that_is_hurried_is_ended_by_force(bench: Bench) -> None:
    attempt = bench.start(held=True)
    until(lambda: runs(attempt))
    attempt.hurry()
    assert outcome(attempt) == (Outcome.INTERRUPTED, None)
    assert not Path(attempt.context.staging, "out.bin").exists()


def one_that_waits_in_the_queue_is_taken_back_and_never_begins(bench: Bench) -> None:
    attempt = bench.start()
    attempt.stop()
    result = result_of(attempt)
    if result.outcome is Outcome.INTERRUPTED:
        assert bench.begun() in ([], [attempt.context.attempt_id])
    else:
        assert result.outcome is Outcome.SUCCEEDED, "it was faster"


def somebody_elses_cancelling_is_said(bench: Bench) -> None:
    attempt = bench.start(held=True)
    until(lambda: runs(attempt) and attempt.place.id)
    bench.scheduler.cancel({attempt.orders.token: attempt.place.id})
    assert outcome(attempt) == (Outcome.RETRYABLE, FaultCode.CANCELLED_THERE)


CONTRACT = (
    an_attempt_runs_and_its_files_are_where_the_daemon_expects_them, what_it_says_is_seen_while_it_runs,
    a_daemon_that_starts_again_goes_on_with_what_runs, one_whose_id_was_never_recorded_is_found_by_its_folder,
    what_ended_while_no_daemon_was_there_is_taken_as_it_is, a_stopped_attempt_comes_to_a_safe_point,
    one_that_is_hurried_is_ended_by_force, one_that_waits_in_the_queue_is_taken_back_and_never_begins, somebody_elses_cancelling_is_said,
)  # fmt: skip
