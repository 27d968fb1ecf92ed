"""What `ckptd status` expects of open exports: why they wait, and how long they take by what earlier ones took."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.cli.views.details import print_job
from daemon.cli.views.jobs import jobs_lines
from daemon.config.places.paths import StatePaths, foreground_state, prepare
from daemon.contract.faults.errors import Fault, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.contract.jobs.plan import spec_of
from daemon.journal.attempts import Intent
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId, StageRow
from daemon.journal.states import told_state
from daemon.operating.disks.advice import sizes
from daemon.operating.monitoring.filter import Filter
from daemon.operating.monitoring.live import LiveFile, StageProgress, write_live
from daemon.operating.monitoring.outlook import Earlier, about, job_left, stage_left, starved, starving
from daemon.operating.monitoring.status import JobStatus, find, snapshot
from daemon.running.attempts.executor import CpuShare
from daemon.running.rules import ready
from daemon.system.lock import locked
from tests.cli.test_bad_input import ckptd
from tests.cli.test_layout import job as shown_job
from tests.journal.entries import STAGES, enter, reference
from tests.runner.conftest import Toy, copied


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return prepare(tmp_path / "state", tmp_path / "out").state


def end_stage(journal: Journal, job: str, stage: str, seconds: float) -> None:
    attempt = AttemptId(job, stage, 1)
    assert journal.attempts.claim(Intent(attempt, Path("/a"), Path("/s"), 0))
    journal.attempts.settle(attempt, StageResult(outcome=Outcome.SUCCEEDED, seconds=seconds), state="succeeded")


def exported(journal: Journal, job: str, step: int, seconds: float) -> None:
    enter(journal, job, reference(step, digest=job))
    journal.jobs.start(job, None)
    for stage in STAGES:
        end_stage(journal, job, stage, seconds)
    journal.jobs.finish(job, "succeeded", None)


def running(**more: object) -> LiveFile:
    known = {"pid": 1, "jobs": 1, "progress": {"b": {"merge": StageProgress(1, 0.1, "tensors", 20.0, "x", 0)}}}
    return LiveFile(**{**known, **more})  # type: ignore[arg-type]


def seen(state: Path, live: LiveFile | None) -> dict[str, JobStatus]:
    """The jobs, while a daemon that wrote `live` runs, or none does."""
    if live is None:
        return {one.id: one for one in snapshot(state).jobs}
    write_live(StatePaths(state).live, live)
    with locked(StatePaths(state).lock):
        return {one.id: one for one in snapshot(state).jobs}


@pytest.fixture
def three(state: Path) -> Path:
    """A state directory with one export that ended, `a`, one whose merge runs, `b`, and one that waits, `c`."""
    journal = Journal(StatePaths(state).journal)
    exported(journal, "a", 4, 100.0)
    for name, step in (("b", 8), ("c", 12)):
        enter(journal, name, reference(step, digest=name))
    journal.jobs.start("b", None)
    assert journal.attempts.claim(Intent(AttemptId("b", "merge", 1), Path("/a"), Path("/s"), 0))
    journal.close()
    return state


def test_a_running_export_is_expected_to_take_what_the_one_before_took(three: Path) -> None:
    jobs = seen(three, running())
    assert jobs["b"].stages[0].left_seconds == 80 and jobs["b"].left_seconds == 380
    assert (jobs["b"].activity, jobs["b"].waiting_for) == ("running", None)
    assert jobs["c"].left_seconds == 400 and jobs["a"].left_seconds is None


def test_nothing_is_expected_of_the_first_export_of_its_kind(state: Path) -> None:
    journal = Journal(StatePaths(state).journal)
    enter(journal)
    journal.close()
    assert seen(state, running(progress={}))["job"].left_seconds is None


def test_a_starved_stage_says_so_and_its_time_is_not_estimated_from_earlier_ones(three: Path) -> None:
    progress = StageProgress(1, 0.1, "tensors", 20.0, "x", 0, cores=0.03, wanted=1.0, priority="idle")
    (merge, *_) = seen(three, running(progress={"b": {"merge": progress}}))["b"].stages
    began = 'limits.priority = "idle", with which this stage began, lets them go first ("normal" counts for later stages)'
    gets = f"gets 3 % of a core and could use 100 %: other processes have the rest; {began}"
    assert (merge.starved, merge.left_seconds, merge.cores) == (gets, None, 0.03)


def test_a_waiting_export_says_that_it_is_not_its_turn(three: Path) -> None:
    waits = seen(three, running())["c"]
    assert (waits.activity, waits.waiting_for) == ("waiting", "It waits for its turn: limits.jobs allows 1 at a time.")
    assert seen(three, running(jobs=2))["c"].waiting_for is None


def test_after_the_daemon_ended_nothing_is_called_running(three: Path) -> None:
    jobs = seen(three, None)
    assert {name: one.activity for name, one in jobs.items()} == {"a": "succeeded", "b": "stopped", "c": "waiting"}
    assert all("No daemon runs" in (jobs[name].waiting_for or "") for name in "bc") and jobs["a"].waiting_for is None
    assert jobs["b"].state == "running", "what the journal says, for programs"


def test_what_is_paused_says_how_it_goes_on(three: Path) -> None:
    journal = Journal(StatePaths(three).journal)
    journal.controls.pause("c", True)
    one = seen(three, running())["c"]
    journal.controls.pause("c", False)
    journal.controls.pause_all(True)
    all_of_them = seen(three, running())["c"]
    journal.close()
    assert (one.activity, one.waiting_for) == ("paused", "It is paused; `ckptd queue resume c` continues it.")
    assert (all_of_them.activity, all_of_them.waiting_for) == ("paused", "Everything is paused; `ckptd queue resume` continues the work.")


def test_what_is_paused_is_called_so_while_no_daemon_runs(three: Path) -> None:
    journal = Journal(StatePaths(three).journal)
    journal.controls.pause("c", True)
    journal.close()
    one = seen(three, None)["c"]
    assert (one.activity, one.waiting_for) == ("paused", "It is paused; `ckptd queue resume c` continues it.")


def test_what_was_put_first_is_marked(three: Path) -> None:
    journal = Journal(StatePaths(three).journal)
    journal.controls.prefer("c")
    journal.close()
    jobs = seen(three, running())
    assert [name for name, one in jobs.items() if one.first] == ["c"]
    assert "`ckptd queue first` put it at the front of the queue" in " ".join(line.plain for line in jobs_lines([jobs["c"]], None))


@given(stages=st.lists(st.floats(0, 1e5), min_size=1, max_size=4), side_by_side=st.floats(1, 8), others=st.lists(st.floats(1, 1e5)))
def test_an_export_never_takes_less_time_than_one_of_its_stages(stages: list[float], side_by_side: float, others: list[float]) -> None:
    rows = [StageRow(f"s{n}", "running", 1, 0, None, None, None, None, None) for n in range(len(stages))]
    rows += [StageRow(f"o{n}", "waiting", 0, 0, None, None, None, None, None) for n in range(len(others))]
    running: dict[str, float | None] = {f"s{n}": left for n, left in enumerate(stages)}
    left = job_left(rows, running, Earlier({f"o{n}": [one] for n, one in enumerate(others)}, side_by_side))
    assert left is not None and left >= max(stages)


def test_a_mere_wait_is_no_fault() -> None:
    spec = spec_of("merge")
    waits = [ready.waiting_for_turn(spec, "threads", ["a"]), ready.waiting_to_time(spec), ready.retrying(spec), ready.verifying()]
    for one in waits:
        assert "waits: " in ready.describe(one) and "Could not" not in ready.describe(one) and "othing" not in ready.describe(one)
    assert ready.describe(waits[0]).startswith(
        "The stage merge waits: limits.threads allows no more stages together with a; it starts when"
    )
    real = Fault(code=FaultCode.DISK_NOW, operation="merge", cause="the disk was full", remedy="free some")
    assert ready.describe(real) == real.sentence()


def test_files_with_several_names_take_room_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "x").write_bytes(b"x" * 100_000)
    for name in ("a/y", "b/z"):
        os.link(tmp_path / "a" / "x", tmp_path / name)
    os.truncate(os.open(tmp_path / "b" / "hole", os.O_CREAT | os.O_RDWR), 1 << 30)
    ((what, _, taken),) = sizes([("one", tmp_path / "a"), ("two", tmp_path / "b")])
    assert what == "one" and taken == (tmp_path / "a" / "x").stat().st_blocks * 512 < 200_000


@pytest.mark.parametrize("state", ["pending", "succeeded", "failed", "partial", "cancelled", "superseded", "running", "stopped"])
def test_a_state_is_told_in_plain_words(state: str) -> None:
    assert told_state(state) not in ("it is succeeded", "it is pending", "it is failed") and told_state(state).startswith("it ")


def test_a_stage_that_is_tried_again_says_when_and_why(three: Path) -> None:
    fault = Fault(code=FaultCode.DISK_NOW, operation="merge", cause="the disk was full", remedy="free some")
    journal = Journal(StatePaths(three).journal)
    journal.attempts.settle(
        AttemptId("b", "merge", 1), StageResult(outcome=Outcome.RETRYABLE, fault=fault), state="waiting", retry_delay=300.0
    )
    journal.close()
    waits = seen(three, running(progress={}))["b"]
    assert waits.activity == "waiting"
    assert waits.waiting_for == f"The stage merge is tried again in about 5 min (attempt 2), after: {fault.sentence()}"
    told = seen(three, running(progress={}, waiting={"b": "It waits for memory."}))["b"]
    assert told.waiting_for == "It waits for memory.", "what keeps another stage of it is said first"


def test_an_export_in_the_foreground_is_in_the_status_while_it_runs(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = prepare(foreground_state(three, Path("/elsewhere/checkpoint-7")), three.parent / "out")
    journal = Journal(mine.journal)
    enter(journal, "mine", reference(7))
    journal.close()
    assert snapshot(three).foreground == ()
    with locked(mine.lock):
        write_live(mine.live, LiveFile(pid=2, progress={"mine": {"merge": StageProgress(1, 0.5, "tensors", 9.0, "y", 0)}}))
        (found,) = snapshot(three).foreground
    assert (found.id, found.foreground, found.activity) == ("mine", True, "running")


# The arithmetic


@given(st.floats(0, 1e9))
def test_an_estimate_is_told_in_one_or_two_digits(seconds: float) -> None:
    said = about(seconds)
    assert said == "less than a minute" or said.startswith("about ")
    assert len([letter for letter in said.split()[1] if letter.isdigit()]) <= 2 or seconds > 86400 * 99


@pytest.mark.parametrize(("seconds", "said"), [
    (0, "less than a minute"), (50, "about 1 min"), (130, "about 2 min"), (760, "about 15 min"), (5000, "about 85 min"),
    (6000, "about 1.5 h"), (30000, "about 8 h"), (300000, "about 3 days"),
])  # fmt: skip
def test_a_time_is_told_as_roughly_as_it_is_known(seconds: float, said: str) -> None:
    assert about(seconds) == said


@given(
    expected=st.none() | st.floats(0.1, 1e5), seconds=st.floats(0, 1e5), fraction=st.floats(0, 1),
    share=st.none() | st.builds(CpuShare, st.floats(0, 4), st.floats(0, 4)),
)  # fmt: skip
def test_what_is_left_is_never_negative_and_lies_between_history_and_progress(
    expected: float | None, seconds: float, fraction: float, share: CpuShare | None
) -> None:
    left = stage_left(expected, seconds, fraction, share)
    assert left is None or left >= 0
    if fraction >= 0.2 and left is not None:
        guesses = [seconds / fraction] + ([expected] if expected is not None else [])
        assert min(guesses) - seconds - 1e-6 <= left <= max(*guesses, seconds) - min(seconds, *guesses) + 1e-6
    if expected is None or starved(share):
        assert left is None, "nothing that was measured tells"


def test_stages_that_ran_side_by_side_are_expected_to_do_so_again() -> None:
    rows = [StageRow(name, "waiting", 0, 0, None, None, None, None, None) for name in ("merge", "onnx", "gguf")]
    seconds = {"merge": [100.0], "onnx": [60.0, 80.0, 70.0], "gguf": [50.0]}
    assert job_left(rows, {}, Earlier(seconds)) == 220
    assert job_left(rows, {}, Earlier(seconds, 2.0)) == 110
    assert job_left(rows, {}, Earlier(seconds, 8.0)) == 100, "never less than the longest stage"
    assert job_left([*rows, replace(rows[0], name="new")], {}, Earlier(seconds)) is None
    assert job_left([replace(rows[0], state="succeeded"), rows[1]], {"onnx": 7.0}, Earlier(seconds)) == 7


def test_a_share_of_next_to_nothing_is_told_as_such() -> None:
    others = "of a core and could use 100 %: other processes have the rest"
    assert starving(CpuShare(0.004, 1), "") == f"gets less than 1 % {others}; limits.priority decides"
    assert starving(CpuShare(0.3, 1), "normal") == f'gets 30 % {others}, though limits.priority is "normal"'
    assert not starved(CpuShare(0.9, 1.0)) and not starved(CpuShare(0.01, 0.02)) and starved(CpuShare(0.3, 1.0))


# The verbs


def test_show_tells_each_cause_once_with_the_report_and_the_command_to_try_again(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    why = Fault(code=FaultCode.BASE_NOT_FOUND, operation="find the base model 'acme/late'", cause="no folder has it", remedy="set base.map")
    journal = Journal(StatePaths(state).journal)
    enter(journal)
    journal.jobs.start("job", None)
    journal.stages.end("job", "merge", "failed", why)
    for stage, need in (("pytorch", "merge"), ("merged", "merge")):
        skipped = why.model_copy(update={"operation": f"run the stage {stage}", "cause": f"the stage {need} gave no output: {why.cause}"})
        journal.stages.end("job", stage, "skipped", skipped)
    journal.stages.end("job", "report", "skipped", why)
    journal.jobs.finish("job", "failed", None)
    journal.close()
    (details,) = find(state, "job")
    report = state.parent / "report.json"
    report.write_text("{}")
    monkeypatch.setenv("COLUMNS", "80")
    print_job(replace(details, report_file=str(report)))
    said = capsys.readouterr().out
    assert said.count("no folder has it") == 1 and " ".join(said.split()).count("set base.map") == 1
    assert f"report      {report}" in said.splitlines() and "Can't be tried again, because the checkpoint was deleted" in said.splitlines()
    assert said.count("needs merge") == 2


@pytest.mark.slow
def test_a_beginning_that_several_jobs_share_names_them_all_and_the_last_part_finds_one(tmp_path: Path, state: Path) -> None:
    journal = Journal(StatePaths(state).journal)
    for number in range(3):
        enter(journal, f"run-{number}-abcdef{number}0", reference(number + 1, digest=str(number)))
    journal.close()
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndirectory = "{state}"\n')
    answer = ckptd(tmp_path, "show", "run", "--config", config)
    assert answer.returncode == 2 and "3 jobs are meant by 'run': run-0-abcdef00, run-1-abcdef10, run-2-abcdef20" in answer.stderr
    for ending in ("abcdef1", "cdef10", "1-abcdef10"):
        assert "id          run-1-abcdef10" in ckptd(tmp_path, "show", ending, "--config", config).stdout
    assert "no job's id begins or ends with 'bcdef1'" in ckptd(tmp_path, "show", "bcdef1", "--config", config).stderr
    log = [
        {"event": f"e{number}", "job": f"run-{number % 3}-abcdef{number % 3}0", "timestamp": "2026-05-01T12:34:56Z"} for number in range(9)
    ]
    StatePaths(state).log.write_text("".join(json.dumps(one) + "\n" for one in log))
    lines = ckptd(tmp_path, "logs", "-n", "2", "--job", "abcdef0", "--config", config).stdout.splitlines()
    assert [line.split()[4] for line in lines] == ["e3", "e6"], lines


def listed(*words: str) -> list[str]:
    now = time.time()
    jobs = [
        shown_job(run="alpha", state="succeeded", id="1", created=stamp(now - 60)),
        shown_job(run="beta", state="failed", id="2", created=stamp(now - 3 * 3600)),
        shown_job(run="beta", state="running", activity="waiting", id="3", created=stamp(now - 3 * 86400)),
    ]
    options = dict(zip(words[::2], words[1::2], strict=True))
    wanted = Filter.of(options.get("run", ""), options["state"].split(",") if "state" in options else (), options.get("since", ""))
    return [one.id for one in jobs if wanted.takes(one)]


def stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(at))


def test_list_takes_runs_states_and_times() -> None:
    assert listed() == ["1", "2", "3"]
    assert listed("run", "beta") == ["2", "3"] and listed("run", "*a") == ["1", "2", "3"] and listed("run", "al*") == ["1"]
    assert listed("state", "ended") == ["1", "2"] and listed("state", "waiting") == listed("state", "running") == ["3"]
    assert listed("state", "failed,succeeded") == ["1", "2"]
    assert listed("since", "2h") == ["1"] and listed("since", "1d") == ["1", "2"] and listed("since", "2020-01-01") == ["1", "2", "3"]
    assert listed("since", "3d", "run", "beta", "state", "ended") == ["2"]


@pytest.mark.parametrize("words", [("state", "done"), ("since", "yesterday"), ("since", "2x"), ("since", "h"), ("since", "9" * 30 + "d")])
def test_a_filter_that_is_none_is_refused_with_what_to_give(words: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=r"Fix: give") as refused:
        listed(*words)
    assert refused.value.fault.code == FaultCode.BAD_OPTION


@pytest.mark.slow
def test_status_of_a_real_daemon_tells_what_runs_what_waits_and_that_it_stopped(
    make_toy: Callable[..., Toy], pico_checkpoint: Path
) -> None:
    toy = make_toy()
    toy.held.touch()
    copied(pico_checkpoint, toy, "a-run-of-a-name-that-is-very-long-and-longer-still")
    copied(pico_checkpoint, toy, "b")
    toy.start()
    toy.wait_held()
    value = toy.wait_for(lambda v: len(v["jobs"]) == 2 and any(job["waiting_for"] for job in v["jobs"]), 60)
    assert sorted(job["activity"] for job in value["jobs"]) == ["running", "waiting"]
    assert [job["waiting_for"] for job in value["jobs"] if job["waiting_for"]] == ["It waits for its turn: limits.jobs allows 1 at a time."]
    toy.kill()
    value = toy.status()
    assert sorted(job["activity"] for job in value["jobs"]) == ["stopped", "waiting"]
    assert toy.run_verb("list", "--state", "stopped", "--json") == 0 and len(json.loads(toy.said)) == 1
