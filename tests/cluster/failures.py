"""What goes wrong with schedulers and machines, each with what must come of it. As `tests.cluster.contract`, for the fake scheduler."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
from pathlib import Path

from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.contract.jobs.processes import elsewhere
from daemon.contract.jobs.processes.elsewhere import CLAIM, END, FENCE, ORDERS, Claim, End, Orders
from daemon.running.cluster.port import Ending
from tests.cluster.bench import BOUNDS, LATE, Bench, outcome, result_of, runs, stays, until
from tests.cluster.fake import FakeScheduler

LOST = {
    Ending.NODE_LOST: FaultCode.NODE_LOST, Ending.PREEMPTED: FaultCode.PREEMPTED, Ending.CANCELLED: FaultCode.CANCELLED_THERE,
    Ending.TIME_LIMIT: FaultCode.SCHEDULER_TIME, Ending.OUT_OF_MEMORY: FaultCode.OUT_OF_MEMORY, Ending.ENDED: FaultCode.LOST_THERE,
}  # fmt: skip


def fake_of(bench: Bench) -> FakeScheduler:
    """The bench's scheduler."""
    assert isinstance(bench.scheduler, FakeScheduler)
    return bench.scheduler


def each_end_by_the_scheduler_is_told_apart(bench: Bench) -> None:
    fake = fake_of(bench)
    attempts = {ending: bench.start(held=True) for ending in LOST}
    for attempt in attempts.values():
        until(lambda attempt=attempt: runs(attempt))
    for ending, attempt in attempts.items():
        fake.end(attempt.orders.token, ending)
    for ending, attempt in attempts.items():
        assert outcome(attempt) == (Outcome.RETRYABLE, LOST[ending]), ending
        assert not attempt.ended_surely, "nobody has seen its processes end"
        assert (attempt.folder / FENCE).exists()
    memory = result_of(attempts[Ending.OUT_OF_MEMORY])
    assert memory.peak_rss >= attempts[Ending.OUT_OF_MEMORY].orders.memory > 0, "the next attempt is given more"


def a_worker_that_is_told_to_end_waits_for_the_word_of_its_scheduler(bench: Bench) -> None:
    attempt = bench.start(held=True)
    until(lambda: runs(attempt))
    fake_of(bench).end(attempt.orders.token, Ending.PREEMPTED, signal.SIGTERM)
    assert outcome(attempt) == (Outcome.RETRYABLE, FaultCode.PREEMPTED)


def a_time_limit_is_followed_by_twice_the_time(bench: Bench) -> None:
    first = bench.start(held=True)
    until(lambda: runs(first))
    fake_of(bench).end(first.orders.token, Ending.TIME_LIMIT, signal.SIGTERM)  # its worker has last words
    assert outcome(first) == (Outcome.RETRYABLE, FaultCode.SCHEDULER_TIME)
    second, third = bench.start(), None
    assert second.orders.seconds == 2 * first.orders.seconds
    assert outcome(second) == (Outcome.SUCCEEDED, None)
    third = bench.start()
    assert third.orders.seconds == first.orders.seconds, "only after such an end"


def a_scheduler_that_gives_no_answer_ends_nothing(bench: Bench) -> None:
    fake, attempt = fake_of(bench), bench.start(held=True)
    until(lambda: runs(attempt) and attempt.place.state == "running")
    fake.down = True
    assert stays(lambda: attempt.poll() is None, 2 * LATE)
    bench.release(attempt)
    assert outcome(attempt) == (Outcome.SUCCEEDED, None), "the files say it, scheduler or not"
    fake.down = False


def one_that_is_started_by_nobody_waits_for_as_long_as_that_lasts(bench: Bench) -> None:
    fake = fake_of(bench)
    fake.down = True
    attempt = bench.start()
    assert stays(lambda: attempt.poll() is None, LATE)
    assert fake.submitted == []
    fake.down = False
    until(lambda: attempt.poll() is not None)
    assert len(fake.submitted) <= 1


def an_answer_that_was_lost_submits_nothing_twice(bench: Bench) -> None:
    fake = fake_of(bench)
    fake.swallows = True
    attempt = bench.start()
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)
    assert fake.submitted == [attempt.orders.token]
    assert bench.begun() == [attempt.context.attempt_id]


def a_submission_that_was_lost_is_taken_back_before_another_is_made(bench: Bench) -> None:
    fake = fake_of(bench)
    fake.drops = True
    attempt = bench.start()
    assert outcome(attempt) == (Outcome.RETRYABLE, FaultCode.SCHEDULER_AWAY)
    assert fake.submitted == [attempt.orders.token]
    claim = elsewhere.get(attempt.folder, CLAIM, Claim)
    assert claim is not None and claim.by == "daemon", "a job that comes to life late finds that"
    assert attempt.ended_surely


def a_job_that_is_started_again_does_nothing(bench: Bench) -> None:
    fake, attempt = fake_of(bench), bench.start()
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)
    before = Path(attempt.context.staging, "out.bin").stat().st_mtime_ns
    fake.begin(attempt.orders.token)
    assert fake.jobs[attempt.orders.token].runs[-1].wait(60) == 0
    assert bench.begun() == [attempt.context.attempt_id]
    assert Path(attempt.context.staging, "out.bin").stat().st_mtime_ns == before


def a_job_that_its_scheduler_forgot_goes_on_while_it_is_heard(bench: Bench) -> None:
    fake, attempt = fake_of(bench), bench.start(held=True)
    until(lambda: runs(attempt))
    fake.jobs[attempt.orders.token].forgotten = True
    assert stays(lambda: attempt.poll() is None, 2 * LATE)
    bench.release(attempt)
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)


def a_zombie_is_fenced(bench: Bench) -> None:
    """A machine that was lost comes back after the attempt's successor began."""
    fake, attempt = fake_of(bench), bench.start(held=True)
    until(lambda: runs(attempt))
    fake.signal(attempt.orders.token, signal.SIGSTOP)
    fake.jobs[attempt.orders.token].forgotten = True
    assert outcome(attempt) == (Outcome.RETRYABLE, FaultCode.LOST_THERE)
    assert not attempt.ended_surely
    following = bench.start()
    bench.release(attempt)
    (attempt.folder / "hold").touch()
    fake.signal(attempt.orders.token, signal.SIGCONT)
    assert outcome(following) == (Outcome.SUCCEEDED, None)
    until(lambda: all(run.poll() is not None for run in fake.jobs[attempt.orders.token].runs))
    assert outcome(attempt) == (Outcome.RETRYABLE, FaultCode.LOST_THERE), "whatever it left"
    assert Path(following.context.staging, "out.bin").read_text() == following.context.attempt_id


def what_waits_and_is_stopped_never_begins(bench: Bench) -> None:
    fake = fake_of(bench)
    fake.held = True
    attempt = bench.start()
    until(lambda: attempt.place.state == "pending")
    assert attempt.place.reason == "nobody let it begin"
    attempt.stop()
    assert outcome(attempt) == (Outcome.INTERRUPTED, None)
    assert attempt.progress.message.startswith("waits in the queue of fake") and attempt.place.state == "pending", attempt.place
    until(lambda: fake.jobs[attempt.orders.token].ended is Ending.CANCELLED)
    fake.begin(attempt.orders.token)  # all the same
    assert fake.jobs[attempt.orders.token].runs[-1].wait(60) == 0
    assert bench.begun() == []


def a_refusal_is_said(bench: Bench) -> None:
    fake = fake_of(bench)
    fake.refusal = "Invalid partition name specified"
    result = result_of(bench.start())
    assert result.fault is not None and result.fault.code == FaultCode.SCHEDULER_REFUSED
    assert "Invalid partition name specified" in result.fault.cause


def a_full_scheduler_is_asked_again(bench: Bench) -> None:
    fake = fake_of(bench)
    fake.full = True
    attempt = bench.start()
    until(lambda: len(fake.submitted) >= 1)
    assert attempt.poll() is None
    fake.full = False
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)


def a_job_that_can_not_begin_is_said(bench: Bench) -> None:
    fake = fake_of(bench)
    fake.held = True
    attempt = bench.start()
    until(lambda: attempt.orders.token in fake.jobs)
    attempt.script.write_text("#!/bin/sh\nexit 1\n")  # as where the machine does not see the interpreter
    fake.begin(attempt.orders.token)
    assert outcome(attempt) == (Outcome.RETRYABLE, FaultCode.WORKER_NOT_BEGUN)


def other_releases_are_refused_before_anything_runs(bench: Bench) -> None:
    fake = fake_of(bench)
    fake.held = True
    attempt = bench.start()
    until(lambda: attempt.orders.token in fake.jobs)
    orders = elsewhere.get(attempt.folder, ORDERS, Orders)
    assert orders is not None and orders.versions
    path = attempt.folder / ORDERS
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "versions": {"numpy": "0.0.1"}}))
    fake.begin(attempt.orders.token)
    result = result_of(attempt)
    assert result.fault is not None and result.fault.code == FaultCode.OTHER_VERSIONS
    assert "numpy" in result.fault.cause and "0.0.1" in result.fault.cause
    assert bench.begun() == []


def a_result_that_is_seen_late_counts(bench: Bench) -> None:
    fake = fake_of(bench)
    fake.held = True
    attempt = bench.start()
    until(lambda: attempt.orders.token in fake.jobs)
    assert elsewhere.take(attempt.folder, Claim(by="worker"))
    elsewhere.put(attempt.folder, END, End(code=0, result=True))
    fake.jobs[attempt.orders.token].forgotten = True
    assert stays(lambda: attempt.poll() is None, LATE / 2)
    elsewhere.put(attempt.folder, "result.json", StageResult(outcome=Outcome.SUCCEEDED, attempt=attempt.context.attempt_id))
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)


def one_that_runs_too_long_or_hangs_is_ended(bench: Bench) -> None:
    late = bench.start(dataclasses.replace(BOUNDS, timeout=1.0), held=True)
    assert outcome(late) == (Outcome.RETRYABLE, FaultCode.TIMEOUT)
    silent = bench.start(dataclasses.replace(BOUNDS, silence=1.5), held=True)
    until(lambda: runs(silent))
    for pid in _children(bench, silent.orders.token):
        _signal(pid, signal.SIGSTOP)
    assert outcome(silent) == (Outcome.RETRYABLE, FaultCode.HUNG)


def _children(bench: Bench, token: str) -> list[int]:
    from tests.cluster.fake import children_of

    return [pid for run in fake_of(bench).jobs[token].runs for pid in children_of(run.pid)]


def _signal(pid: int, number: int) -> None:
    import os

    os.kill(pid, number)


def a_daemon_that_died_before_it_asked_asks_once(bench: Bench) -> None:
    fake = fake_of(bench)
    fake.down = True
    order = bench.order()
    attempt = bench.executor.start(order)
    bench.executor.close()
    fake.down = False
    elsewhere.put(order.folder, ORDERS, elsewhere.get(order.folder, ORDERS, Orders).model_copy(update={"submission": "none"}))  # type: ignore[union-attr]
    taken = bench.restart(attempt)  # type: ignore[arg-type]
    assert outcome(taken) == (Outcome.SUCCEEDED, None)
    assert fake.submitted == [taken.orders.token]


def last_words_that_can_not_be_written_are_tried_again(bench: Bench) -> None:
    attempt = bench.start(held=True)
    until(lambda: runs(attempt))
    (attempt.folder / END / "in the way").mkdir(parents=True)
    bench.release(attempt)
    until((attempt.folder / "result.json").exists)
    assert stays(lambda: attempt.poll() is None and fake_of(bench).jobs[attempt.orders.token].runs[0].poll() is None, 1)
    shutil.rmtree(attempt.folder / END)
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)
    assert (attempt.folder / END).is_file()


FAILURES = (
    each_end_by_the_scheduler_is_told_apart, a_worker_that_is_told_to_end_waits_for_the_word_of_its_scheduler,
    a_time_limit_is_followed_by_twice_the_time, a_scheduler_that_gives_no_answer_ends_nothing,
    one_that_is_started_by_nobody_waits_for_as_long_as_that_lasts, an_answer_that_was_lost_submits_nothing_twice,
    a_submission_that_was_lost_is_taken_back_before_another_is_made, a_job_that_is_started_again_does_nothing,
    a_job_that_its_scheduler_forgot_goes_on_while_it_is_heard, a_zombie_is_fenced, what_waits_and_is_stopped_never_begins,
    a_refusal_is_said, a_full_scheduler_is_asked_again, a_job_that_can_not_begin_is_said, other_releases_are_refused_before_anything_runs,
    a_result_that_is_seen_late_counts, one_that_runs_too_long_or_hangs_is_ended, a_daemon_that_died_before_it_asked_asks_once,
    last_words_that_can_not_be_written_are_tried_again,
)  # fmt: skip
