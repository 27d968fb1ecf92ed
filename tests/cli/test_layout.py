"""What `ckptd status` and `list` show fits the terminal, whatever runs and stages are called and in whatever state they are."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Span, Text

from daemon.checkpoints.inspection import inspect
from daemon.cli.views.details import _note
from daemon.cli.views.export import ExportView
from daemon.cli.views.jobs import handles, jobs_lines
from daemon.cli.views.layout import hanging, middle
from daemon.cli.views.status import status_lines
from daemon.contract.faults.text import printable
from daemon.operating.log.wrapping import LEAST_WIDTH, wrap
from daemon.operating.monitoring.filter import STATES
from daemon.operating.monitoring.live import IncompleteState, RootState
from daemon.operating.monitoring.status import DaemonState, JobDetails, JobStatus, Snapshot, StageStatus
from tests.cli.test_tables import CONTROLLED

TITLES = ["job", "run", "step", "loss", "state", "what"]
STATES_OF_JOBS = [one for one in STATES if one not in ("open", "ended")]
LONG = "qwen3-0.6b-lora-code-assistant-v2-lr3e-4"


def stage(name: str = "check-onnx-int8", state: str = "running", **more: object) -> StageStatus:
    known = {"attempts": 1, "fraction": 0.4 if state == "running" else None, "message": "prompt 3 of 8", "seconds": 70.0, "error": None}
    return StageStatus(name, state, **{**known, **more})  # type: ignore[arg-type]


def job(run: str = LONG, step: int = 1500, state: str = "running", **more: object) -> JobStatus:
    known: dict[str, object] = {
        "id": f"{run[:60]}-{step}-4471284bb3b1", "run": run, "step": step, "ending": False, "state": state, "activity": state,
        "created": "2026-01-01T00:00:00+00:00", "started": None, "ended": None, "checkpoint": f"/r/{run}/checkpoint-{step}",
        "method": "LORA", "base": None, "loss": 1.25, "epoch": None, "rank": None, "best_metric": None, "evaluation": None,
        "target": "/o", "waiting_for": None, "error": None, "paused": False, "warnings": (), "artifacts": {}, "stages": (),
    }  # fmt: skip
    return JobStatus(**{**known, **more})  # type: ignore[arg-type]


def status(*jobs: JobStatus, **more: object) -> Snapshot:
    daemon = DaemonState(True, 4711, "2026-01-01T00:00:00+00:00", True, None, None, "healthy")
    known: dict[str, object] = {
        "version": "1", "state_directory": "/s", "daemon": daemon, "paused": None, "journal": None, "roots": (), "incomplete": (),
        "passed_over": {}, "unreadable": {}, "lost": (), "rewritten": (), "jobs": jobs, "counts": {}, "outbox": {}, "notified": (),
    }  # fmt: skip
    return Snapshot(**{**known, **more})  # type: ignore[arg-type]


def shown(lines: list[Text]) -> list[str]:
    """The lines as a terminal shows them, without colours."""
    return [line.plain for line in lines]


def from_cell(line: str, start: int) -> str:
    """What a line shows from a cell on."""
    return next((line[place:] for place in range(len(line) + 1) if cell_len(line[:place]) >= start), "")


NAMES = st.one_of(CONTROLLED, st.text("a東é́-[b]/ ", min_size=1, max_size=80), st.just(LONG))
JOBS = st.builds(
    job,
    run=NAMES,
    step=st.integers(0, 10**9),
    state=st.sampled_from(STATES_OF_JOBS),
    ending=st.booleans(),
    loss=st.none() | st.floats(),
    artifacts=st.dictionaries(NAMES, st.sampled_from(["passed", "failed", "unverified", "odd"]), max_size=4),
    stages=st.lists(st.builds(stage, name=NAMES, state=st.sampled_from(["running", "waiting", "failed"]), message=st.none() | NAMES,
                              left_seconds=st.none() | st.floats(0, 1e6)), max_size=3).map(tuple),
    waiting_for=st.none() | NAMES, error=st.none() | NAMES, left_seconds=st.none() | st.floats(0, 1e7),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(jobs=st.lists(JOBS, min_size=1, max_size=4), width=st.integers(LEAST_WIDTH, 200), place=NAMES)
def test_no_name_and_no_state_makes_a_line_longer_than_the_terminal_or_a_column_vanish(
    jobs: list[JobStatus], width: int, place: str
) -> None:
    jobs = [replace(one, id=f"{number}{one.id}") for number, one in enumerate(jobs)]
    value = status(*jobs, roots=(RootState(place, "inotify", False),), incomplete=(IncompleteState(place, (place,), 70),))
    lines = shown(status_lines(value, width, None))
    assert [line for line in lines if cell_len(line) > width] == []
    (header,) = (number for number, line in enumerate(lines) if line.split() == TITLES)
    rows = shown(jobs_lines(jobs, width))
    assert rows[0].split() == TITLES
    state_at = rows[0].index("state")
    firsts = [line for line in rows[1:] if from_cell(line, state_at).split(" ")[0] in STATES_OF_JOBS and not line.startswith(" ")]
    assert len(firsts) >= len(jobs), lines[header:]
    for one in jobs:
        step = "final" if one.ending else str(one.step)
        assert any(step[:3] in line and one.state in line for line in firsts)


@given(text=st.text("ab東 /-", max_size=200), width=st.integers(10, 100))
def test_lines_are_broken_between_words_alone_where_each_word_has_room(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(cell_len(line) <= width for line in lines)
    if all(cell_len(word) <= width for word in text.split(" ")):
        assert " ".join(lines) == text
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=80).map(printable), width=st.integers(0, 60))
def test_a_shortened_name_keeps_its_beginning_and_its_end(text: str, width: int) -> None:
    short = middle(text, width)
    assert cell_len(short) <= width
    if cell_len(text) <= width:
        assert short == text
    elif width > 8:
        begin, end = short.split("…", 1) if "…" not in text else (short[:1], short[-1:])
        assert text.startswith(begin) and text.endswith(end)


def test_a_path_that_is_longer_than_a_line_is_broken_after_its_slashes() -> None:
    assert wrap("see /srv/trainings/alpha/checkpoint-500 there", 24) == ["see", "/srv/trainings/alpha/", "checkpoint-500 there"]


def test_a_label_has_the_style_and_its_text_none_of_the_markup_in_it() -> None:
    assert hanging("root", "/r[red]x", 60, style="bold") == [Text("root /r[red]x", spans=[Span(0, 4, "bold")])]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_run_name_takes_neither_loss_nor_state_nor_verdicts_away(width: int) -> None:
    made = job(state="succeeded", artifacts={"pytorch": "passed", "onnx": "passed", "onnx-int8": "failed"})
    lines = shown(jobs_lines([made, job(step=2000, id="r-2000-deadbeef1111", stages=(stage(),), left_seconds=130)], width))
    head, ended, *_ = lines
    assert head.split() == TITLES
    assert ended.split()[0] == "4471284bb3b1"[:8] or width > 120
    assert "1500" in ended and "1.25" in ended and "succeeded" in ended and "failed" in " ".join(lines)
    assert ended[head.index("run") :].startswith(LONG[:5])


def test_where_nothing_is_cut_each_row_has_the_whole_id_and_each_verdict() -> None:
    (_, row) = shown(jobs_lines([job(state="partial", artifacts={"pytorch": "passed", "onnx": "failed"})], None))
    assert f"{LONG}-1500-4471284bb3b1" in row and row.endswith("pytorch:passed onnx:failed")


def test_short_ids_are_as_long_as_it_takes_to_tell_exports_apart() -> None:
    assert handles(["a-1-aaaaaaaa1111", "b-1-bbbbbbbb1111"]) == {"a-1-aaaaaaaa1111": "aaaaaaaa", "b-1-bbbbbbbb1111": "bbbbbbbb"}
    assert handles(["a-1-aaaaaaaa1111", "a-1-aaaaaaaa1122"]) == {"a-1-aaaaaaaa1111": "aaaaaaaa111", "a-1-aaaaaaaa1122": "aaaaaaaa112"}
    assert handles(["a-1-aaaa", "b-1-aaaa"]) == {"a-1-aaaa": "a-1-aaaa", "b-1-aaaa": "b-1-aaaa"}


def test_a_cause_that_several_exports_share_is_said_once() -> None:
    why = "It waits for its turn: limits.jobs allows 1 at a time."
    lines = shown(jobs_lines([job(step=step, id=f"r-{step}-{step:08x}", waiting_for=why) for step in range(1, 9)], 100))
    assert "\n".join(lines).count("limits.jobs") == 1
    assert lines[9].startswith("r-1-00000001, r-2-00000002, r-3-00000003, r-4-00000004, r-5-00000005 and 3 more: They wait for")


def test_a_running_stage_says_how_far_it_is_how_long_it_takes_yet_and_that_it_is_starved() -> None:
    told = stage(left_seconds=130, starved="gets 3 % of a core and could use 100 %")
    lines = " ".join(" ".join(shown(jobs_lines([job(stages=(told,), left_seconds=400)], 80))).split())
    assert (
        "check-onnx-int8 40 % after 70 s, prompt 3 of 8, about 2 min left for this stage; gets 3 % of a core and could use 100 %" in lines
    )
    assert "40 %, 7 min left" in lines


def test_the_status_fits_the_screen_and_keeps_what_is_not_finished() -> None:
    ended = [job(step=step, state="succeeded", id=f"r-{step}-{step:08x}") for step in range(40)]
    lines = shown(status_lines(status(*ended, job(step=99, id="r-99-99999999")), 80, 20))
    assert len(lines) <= 20
    assert any(line.startswith("99999999") for line in lines) and any(line.startswith("00000027") for line in lines)
    assert not any(line.startswith("00000000") for line in lines)
    assert lines[-1].startswith("and ") and "`ckptd list` lists them all" in lines[-1]


def test_every_state_of_an_export_has_a_row_of_its_own_look() -> None:
    for state, width in itertools.product(STATES_OF_JOBS, (60, 80)):
        assert state in shown(jobs_lines([job(state=state)], width))[1]


def test_the_counts_say_what_the_rows_say() -> None:
    jobs = [job(step=step, state="running", activity="waiting", id=f"r-{step}") for step in range(4)]
    value = status(*jobs, counts={"running": 4, "pending": 2, "succeeded": 3})
    assert "exports 6 waiting, 3 succeeded" in shown(status_lines(value, 80, None))


@pytest.mark.parametrize(("state", "verdict", "attempts", "open_limits", "said"), [
    ("succeeded", "failed", 1, (), "rejected the artifact"), ("succeeded", "passed", 1, (), ""),
    ("succeeded", "passed", 0, (), "reused: an earlier attempt made the same"), ("waiting", "passed", 0, (), ""),
    ("succeeded", "passed", 1, ("kl", "fine_tuning"), "undecided: KL, fine-tuning in it"),
    ("succeeded", "failed", 1, ("kl",), "rejected the artifact (undecided: KL)"),
])  # fmt: skip
def test_the_stages_of_an_export_say_what_came_of_them(
    state: str, verdict: str, attempts: int, open_limits: tuple[str, ...], said: str
) -> None:
    checked = stage(state=state, attempts=attempts)
    about = job(stages=(checked,), artifacts={"onnx-int8": verdict}, undecided={"onnx-int8": open_limits})
    assert _note(JobDetails(**vars(about), attempts=()), checked) == said


def test_unwell_always_has_a_reason() -> None:
    silent = replace(status(), daemon=DaemonState(True, 1, "then", False, None, None, "unwell"))
    assert any("unwell" in line and "ckptd logs" in line for line in shown(status_lines(silent, 80, None)))
    told = replace(status(), daemon=DaemonState(True, 1, "then", False, None, None, "unwell", ("The thread runner does not run.",)))
    lines = shown(status_lines(told, 80, None))
    assert "unwell The thread runner does not run." in lines and not any("does not say why" in line for line in lines)


def test_below_failed_exports_stands_the_command_that_tries_them_again() -> None:  # R6.4
    failed = job(state="failed", error="the base is gone. Fix: put it back.")
    assert (
        shown(jobs_lines([failed, job(step=7, state="succeeded")], None))[-1]
        == f"After you have removed the cause: ckptd queue retry {failed.id}"
    )
    two = [failed, replace(failed, id="another")]
    assert shown(jobs_lines(two, None))[-1] == "After you have removed the cause: ckptd queue retry --failed"
    gone = [failed, replace(failed, id="another", checkpoint_gone=True)]
    assert shown(jobs_lines(gone, None))[-2:] == [
        f"After you have removed the cause: ckptd queue retry {failed.id}",
        "Can't be tried again, because the checkpoint was deleted: another",
    ]
    for other in (replace(failed, foreground=True), job(state="succeeded"), job(state="cancelled")):
        assert "retry" not in " ".join(shown(jobs_lines([other], None)))


@pytest.mark.parametrize("width", [60, 80, None])
def test_an_export_that_was_cancelled_shows_no_verdicts_as_if_it_had_been_published(width: int | None) -> None:
    cancelled = job(run="run", state="cancelled", artifacts={"pytorch": "passed", "onnx": "unpublished"}, reason="it is not needed")
    said = " ".join(" ".join(shown(jobs_lines([cancelled], width))).split())
    assert "it is not needed" in said and "passed" not in said and "unpublished" not in said


def test_each_reason_is_said_once_with_the_variants_that_it_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # R4.5
    ended = job(state="failed", stages=tuple(stage(name, "failed", error="the base is gone") for name in ("merge", "pytorch")))
    rejected = {"verdict": "failed", "reasons": ["agreement 0.2 < 0.9"], "size_bytes": 1, "size_ratio": 1.0}
    other = rejected | {"variant": "onnx-int4", "reasons": ["no reference"]}
    report = {"artifacts": [rejected | {"variant": "onnx"}, other, rejected | {"variant": "onnx-int8"}]}
    ExportView(inspect(tmp_path), tmp_path / "ckptd.log", quiet=False).finish(ended, report)
    said = capsys.readouterr().err.splitlines()
    assert said.count("the base is gone") == 1
    rejections = said[said.index("the base is gone") + 1 :]
    assert rejections[:2] == ["onnx, onnx-int8: agreement 0.2 < 0.9", "onnx-int4: no reference"]
    assert str(tmp_path / "ckptd.log") in "".join(rejections[2:])


def test_an_export_that_could_not_be_published_ends_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why = "another ckptd publishes the run there. Fix: give it another output; then run `ckptd queue retry` on the job."
    ended = job(state="failed", error=why, stages=(stage("merge", "succeeded"),))
    ExportView(inspect(tmp_path), tmp_path / "ckptd.log", quiet=False).finish(ended, None)
    said = " ".join(capsys.readouterr().err.split())
    assert "another ckptd publishes the run there" in said and said.count("then run the same command again.") == 1
