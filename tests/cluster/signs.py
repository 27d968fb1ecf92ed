"""What a scheduler or a file system shows of an attempt in another way than most do. As `tests.cluster.failures`."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

from daemon.contract.disk.files import seal
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.contract.jobs.processes import elsewhere
from daemon.contract.jobs.processes.elsewhere import END, Claim, End
from daemon.running.cluster.port import Ending
from tests.cluster.bench import BOUNDS, LATE, Bench, outcome, result_of, runs, stays, until
from tests.cluster.failures import fake_of
from tests.cluster.fake import OUTPUT


def a_signal_to_the_job_is_told_apart_from_its_schedulers(bench: Bench) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        attempt = bench.start(held=True)
        until(lambda attempt=attempt: runs(attempt))
        fake_of(bench).jobs[attempt.orders.token].runs[-1].send_signal(number)
        result = result_of(attempt)
        assert result.fault is not None and result.fault.code == FaultCode.LOST_THERE
        assert "was told to end by a signal" in result.fault.cause
    attempt = bench.start(held=True)
    until(lambda: runs(attempt))
    fake_of(bench).signal(attempt.orders.token, signal.SIGUSR1)  # all of its processes
    bench.release(attempt)
    assert outcome(attempt) == (Outcome.SUCCEEDED, None), "a warning before a time limit ends nothing"


def want_of_memory_is_known_by_the_words_of_slurm(bench: Bench) -> None:
    """Where control groups are not used, Slurm's state of such a job is FAILED or CANCELLED."""
    said = "slurmstepd-node7: error: StepId=7.batch exceeded memory limit (9 > 8), being killed\nslurmstepd-node7: error: *** JOB 7\n"
    for ending in (Ending.ENDED, Ending.CANCELLED):
        attempt = bench.start(held=True)
        until(lambda attempt=attempt: runs(attempt))
        with open(attempt.folder / OUTPUT, "a") as stream:
            stream.write(said)
        fake_of(bench).end(attempt.orders.token, ending)
        result = result_of(attempt)
        assert result.fault is not None and result.fault.code == FaultCode.OUT_OF_MEMORY, ending
        assert result.peak_rss >= attempt.orders.memory > 0


def what_is_seen_half_is_waited_for(bench: Bench) -> None:
    """Another machine's files may be seen one after the other, and the last pages of each later than the file."""
    fake = fake_of(bench)
    fake.held = True
    for is_healed in (True, False):
        attempt = bench.start()
        until(lambda attempt=attempt: attempt.orders.token in fake.jobs)
        output, result = Path(attempt.context.staging) / "out.bin", attempt.folder / "result.json"
        output.write_text("all of it")
        whole = StageResult(outcome=Outcome.SUCCEEDED, attempt=attempt.context.attempt_id, files=seal(output.parent)).model_dump_json()
        result.write_text(whole[:40])
        assert elsewhere.take(attempt.folder, Claim(by="worker"))
        elsewhere.put(attempt.folder, END, End(code=0, result=True))
        fake.jobs[attempt.orders.token].forgotten = True
        assert stays(lambda attempt=attempt: attempt.poll() is None, LATE / 4)
        output.write_text("all")
        result.write_text(whole)
        assert stays(lambda attempt=attempt: attempt.poll() is None, LATE / 4), "the output's end is not seen yet"
        if is_healed:
            output.write_text("all of it")
            assert outcome(attempt) == (Outcome.SUCCEEDED, None)
        else:
            assert outcome(attempt) == (Outcome.RETRYABLE, FaultCode.BAD_RESULT)


def one_that_its_scheduler_suspends_is_not_hung(bench: Bench) -> None:
    fake, attempt = fake_of(bench), bench.start(dataclasses.replace(BOUNDS, silence=3.0, timeout=60.0), held=True)
    until(lambda: runs(attempt))
    fake.pause(attempt.orders.token)
    until(lambda: "it is suspended" in attempt.progress.message)
    before = attempt.course.begun_at
    assert stays(lambda: attempt.poll() is None, 5)
    assert attempt.course.begun_at is not None and before is not None and attempt.course.begun_at > before + 2, "its time stands still"
    fake.pause(attempt.orders.token, go_on=True)
    until(lambda: "it is suspended" not in attempt.progress.message)
    bench.release(attempt)
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)


SIGNS = (
    a_signal_to_the_job_is_told_apart_from_its_schedulers, want_of_memory_is_known_by_the_words_of_slurm, what_is_seen_half_is_waited_for,
    one_that_its_scheduler_suspends_is_not_hung,
)  # fmt: skip
