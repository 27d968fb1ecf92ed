"""What the journal accepts: legal transitions for every writer, one job for one identity, and the flow of a stage."""

from __future__ import annotations

import itertools
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.journal.attempts import Intent
from daemon.journal.journal import Journal
from daemon.journal.outbox import Target
from daemon.journal.rows import AttemptId, Notice
from tests.journal.entries import STAGES, enter, reference

JOB_STATES = ("pending", "running", "succeeded", "partial", "failed", "superseded", "cancelled")
JOB_LEGAL = {
    ("pending", "running"), ("pending", "superseded"), ("running", "succeeded"), ("running", "partial"), ("running", "failed"),
    ("running", "superseded"), ("partial", "pending"), ("failed", "pending"),
    ("pending", "cancelled"), ("running", "cancelled"), ("cancelled", "pending"), ("succeeded", "pending"),
}  # fmt: skip
STAGE_STATES = ("waiting", "running", "succeeded", "failed", "skipped")
STAGE_LEGAL = {
    ("waiting", "running"), ("waiting", "failed"), ("waiting", "skipped"), ("running", "succeeded"), ("running", "failed"),
    ("running", "waiting"), ("succeeded", "waiting"), ("failed", "waiting"), ("skipped", "waiting"),
    ("waiting", "succeeded"),
}  # fmt: skip
SHIPMENT_STATES = ("waiting", "running", "delivered", "failed", "dropped")
SHIPMENT_LEGAL = {
    ("waiting", "running"), ("waiting", "failed"), ("waiting", "dropped"), ("running", "waiting"), ("running", "delivered"),
    ("running", "failed"), ("running", "dropped"), ("delivered", "waiting"), ("failed", "waiting"), ("failed", "dropped"),
    ("dropped", "waiting"),
}  # fmt: skip
FAULT = Fault(code="c", operation="o", cause="because", remedy="r")
SUCCEEDED = StageResult(outcome=Outcome.SUCCEEDED)
RETRYABLE = StageResult(outcome=Outcome.RETRYABLE, fault=FAULT)


@pytest.mark.parametrize(
    ("table", "states", "legal"),
    [("job", JOB_STATES, JOB_LEGAL), ("stage", STAGE_STATES, STAGE_LEGAL), ("shipment", SHIPMENT_STATES, SHIPMENT_LEGAL)],
)
def test_the_schema_refuses_every_illegal_transition_of_any_writer(
    journal: Journal, file: Path, table: str, states: tuple[str, ...], legal: set[tuple[str, str]]
) -> None:
    """Through a connection of its own, without any of our code in between."""
    assert enter(journal)
    with closing(sqlite3.connect(file, isolation_level=None)) as raw:
        raw.execute("INSERT INTO shipment (job, target, entered) VALUES ('job', 'hub', '')")
        trigger = raw.execute("SELECT sql FROM sqlite_master WHERE name = ?", (f"{table}_transition",)).fetchone()[0]
        for old, new in itertools.permutations(states, 2):
            raw.execute(f"DROP TRIGGER {table}_transition")
            raw.execute(f"UPDATE {table} SET state = ?", (old,))
            raw.execute(trigger)
            if (old, new) in legal:
                raw.execute(f"UPDATE {table} SET state = ?", (new,))
            else:
                with pytest.raises(sqlite3.IntegrityError, match="illegal transition"):
                    raw.execute(f"UPDATE {table} SET state = ?", (new,))
        with pytest.raises(sqlite3.IntegrityError):
            raw.execute(f"UPDATE {table} SET state = 'invented'")


def test_a_refused_transition_leaves_the_journal_as_it_was_and_usable(journal: Journal) -> None:
    enter(journal)
    journal.stages.end("job", "merge", "failed", FAULT)
    with pytest.raises(sqlite3.IntegrityError, match="illegal transition of a stage"):
        journal.stages.end("job", "merge", "skipped", None)
    stage = journal.stages.of("job")["merge"]
    assert (stage.state, stage.fault) == ("failed", FAULT)
    assert not journal.jobs.finish("job", "succeeded", Notice("succeeded", "title", "body")), "it was never started"
    job = journal.jobs.get("job")
    assert job is not None
    assert (job.state, journal.outbox.pending()) == ("pending", 0)
    journal.jobs.start("job", None)
    journal.jobs.finish("job", "succeeded", Notice("succeeded", "title", "body"))
    assert journal.outbox.pending() == 1


def test_one_identity_with_one_configuration_is_one_job(journal: Journal) -> None:
    assert enter(journal, "a")
    assert not enter(journal, "b")
    assert enter(journal, "c", reference(digest="other", run="another run"))
    assert journal.jobs.open_ids() == {"a", "c"}
    assert list(journal.stages.of("a")) == list(STAGES)
    assert journal.sightings.fingerprint(reference().path) == "f"


def test_a_newer_step_supersedes_the_waiting_ones_of_its_run_and_no_others(journal: Journal) -> None:  # R1.1
    enter(journal, "running", reference(1))
    journal.jobs.start("running", None)
    enter(journal, "older", reference(2))
    enter(journal, "other run", reference(2, run="other"))
    enter(journal, "same run name in another root", reference(2, root="/elsewhere"))
    enter(journal, "newer", reference(3), supersede=True)
    states = {
        name: job.state for name in ("running", "older", "other run", "same run name in another root") if (job := journal.jobs.get(name))
    }
    assert states == {
        "running": "running", "older": "superseded", "other run": "pending", "same run name in another root": "pending",
    }  # fmt: skip


def claim(journal: Journal, number: int) -> None:
    """Claim the merge of a job that has been started."""
    journal.jobs.start("job", Path("/base"))
    assert journal.attempts.claim(Intent(AttemptId("job", "merge", number), Path("/attempt"), Path("/staging"), 5))


def test_a_stage_is_claimed_settled_and_its_attempts_are_counted(journal: Journal) -> None:  # R6.5
    enter(journal)
    journal.jobs.start("job", Path("/base"))
    claim(journal, 1)
    journal.attempts.started(AttemptId("job", "merge", 1), "local:77:1.5")
    (open_attempt,) = journal.attempts.open()
    assert (open_attempt.executor_id, open_attempt.number) == ("local:77:1.5", 1)
    before = time.time()
    journal.attempts.settle(AttemptId("job", "merge", 1), RETRYABLE, state="waiting", retry_delay=30)
    merge = journal.stages.of("job")["merge"]
    assert (merge.state, merge.attempts, merge.failures, merge.fault) == ("waiting", 1, 1, FAULT)
    assert merge.retry_at is not None
    assert before + 30 <= merge.retry_at <= time.time() + 30
    assert not merge.due(time.time())
    assert merge.due(merge.retry_at)
    assert merge.due(time.time() - 3600), "a wall clock that was set back holds nothing up"
    claim(journal, 2)
    journal.attempts.settle(AttemptId("job", "merge", 2), SUCCEEDED, state="succeeded")
    merge = journal.stages.of("job")["merge"]
    assert (merge.state, merge.attempts, merge.failures, merge.folder, merge.result) == ("succeeded", 2, 1, Path("/staging"), SUCCEEDED)
    assert journal.stages.of("job")["merge"].result is merge.result, "what has ended is read once, however often it is asked for"
    assert [attempt.outcome for attempt in journal.attempts.of("job")] == ["retryable", "succeeded"]
    assert journal.attempts.open() == []


def test_an_interrupted_attempt_counts_as_attempt_but_not_as_failure(journal: Journal) -> None:  # R6.5
    enter(journal)
    claim(journal, 1)
    interrupted = StageResult(outcome=Outcome.INTERRUPTED)
    journal.attempts.settle(AttemptId("job", "merge", 1), interrupted, state="waiting")
    merge = journal.stages.of("job")["merge"]
    assert (merge.state, merge.attempts, merge.failures, merge.due(time.time())) == ("waiting", 1, 0, True)


def test_a_running_stage_is_not_claimed_twice(journal: Journal) -> None:
    enter(journal)
    claim(journal, 1)
    with pytest.raises(sqlite3.IntegrityError):
        claim(journal, 1)
    assert len(journal.attempts.of("job")) == 1


def test_retrying_a_job_starts_its_stages_afresh_and_goes_on_counting_attempts(journal: Journal) -> None:
    enter(journal)
    journal.jobs.start("job", None)
    assert not journal.jobs.retry("job"), "only what ended badly is retried"
    claim(journal, 1)
    journal.attempts.settle(AttemptId("job", "merge", 1), RETRYABLE, state="failed")
    for stage in ("pytorch", "merged", "report"):
        journal.stages.end("job", stage, "skipped", FAULT)
    journal.jobs.finish("job", "failed", None)
    assert journal.jobs.open_ids() == set()
    assert journal.jobs.retry("job")
    stages = journal.stages.of("job").values()
    assert {(stage.state, stage.failures, stage.retry_at, stage.fault, stage.result) for stage in stages} == {
        ("waiting", 0, None, None, None)
    }  # fmt: skip
    assert (journal.jobs.open_ids(), journal.jobs.counts()) == ({"job"}, {"pending": 1})
    claim(journal, journal.stages.of("job")["merge"].attempts + 1)
    assert [attempt.number for attempt in journal.attempts.of("job")] == [1, 2]


def test_a_damaged_checkpoint_goes_straight_to_its_report(journal: Journal) -> None:  # R1.5
    enter(journal, fault=FAULT)
    stages = journal.stages.of("job")
    assert (stages["merge"].state, stages["merge"].fault, stages["report"].state) == ("failed", FAULT, "waiting")


def test_a_forgotten_job_takes_everything_of_its_own_along(journal: Journal, file: Path) -> None:
    enter(journal)
    claim(journal, 1)
    journal.jobs.forget("job")
    with closing(sqlite3.connect(file)) as raw:
        assert [raw.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("job", "stage", "attempt")] == [0, 0, 0]
    assert enter(journal)


def test_the_outbox_gives_each_target_its_messages_in_order_whatever_becomes_of_the_others(journal: Journal) -> None:
    outbox = journal.outbox
    assert outbox.adopt([Target("a", "notify.urls.0"), Target("b", "notify.urls.1")]) == []
    enter(journal)
    journal.jobs.start("job", None)
    journal.jobs.finish("job", "failed", Notice("failed", "first", "body"))
    journal.jobs.retry("job")
    journal.jobs.start("job", None)
    journal.jobs.finish("job", "partial", Notice("partial", "second", "body"))

    def due(clock: float) -> list[tuple[str, str, str, int, int]]:
        return [(one.target, one.message.title, one.message.kind, one.attempts, one.failures) for one in outbox.due(clock, 3600.0)]

    assert due(1000.0) == [("a", "first", "failed", 0, 0), ("b", "first", "failed", 0, 0)]
    outbox.claim(1, "a")
    outbox.undelivered("a", "no answer", 1060.0)
    outbox.claim(1, "b")
    outbox.delivered(1, "b")
    assert due(1059.0) == [("b", "second", "partial", 0, 0)]
    assert (outbox.next_due(), outbox.pending()) == (0.0, 2)
    outbox.delivered(2, "b")
    assert (due(1059.0), outbox.next_due()) == ([], 1060.0)
    assert due(1060.0) == [("a", "first", "failed", 1, 1)]
    assert outbox.give_up("a", 1, "no answer", 2000.0, 0.0) == 1
    assert (due(1999.0), due(2000.0), outbox.pending()) == ([], [("a", "second", "partial", 0, 2)], 1)
    outbox.delivered(2, "a")
    assert (outbox.due(1e12, 3600.0), outbox.next_due(), outbox.pending()) == ([], None, 0)


def test_a_delivery_that_goes_on_claims_the_next_message_of_that_target_alone(journal: Journal) -> None:
    outbox = journal.outbox
    outbox.adopt([Target("a", "notify.urls.0"), Target("b", "notify.urls.1")])
    for title in ("first", "second"):
        outbox.announce(title, Notice("failed", title, "body"))
    outbox.claim(1, "a")
    following = outbox.delivered(1, "a", go_on=True)
    assert following is not None
    assert (following.target, following.message.title, following.attempts, following.failures) == ("a", "second", 0, 0)
    assert [(one.target, one.message.title, one.attempts) for one in outbox.due(1000.0, 3600.0)] == [("b", "first", 0), ("a", "second", 1)]
    assert outbox.delivered(2, "a", go_on=True) is None
    assert outbox.delivered(1, "b") is None and [one.attempts for one in outbox.due(1000.0, 3600.0)] == [0]


def test_a_clock_that_was_set_back_does_not_hold_up_a_target(journal: Journal) -> None:
    journal.outbox.adopt([Target("a", "notify.urls.0")])
    journal.outbox.announce("occasion", Notice("failed", "title", "body"))
    journal.outbox.undelivered("a", "no answer", 10_000.0)
    assert [len(journal.outbox.due(clock, 3600.0)) for clock in (6400.0, 6399.0)] == [0, 1]


def test_a_damaged_newer_checkpoint_takes_no_sound_one_off_the_queue(journal: Journal) -> None:  # R1.5
    enter(journal, "sound", reference(2))
    enter(journal, "damaged", reference(3), supersede=True, fault=FAULT)
    assert journal.jobs.open_ids() == {"sound", "damaged"}
