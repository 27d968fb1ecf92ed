"""No line that a verb prints is longer than the terminal: it would be broken in the middle of a word. Made data."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from daemon.cli.configuration import show
from daemon.cli.views.benchmark import print_bench
from daemon.cli.views.details import print_job
from daemon.cli.views.explanation import print_explanation
from daemon.cli.views.logs import print_log
from daemon.cli.views.machine import print_check, print_formats
from daemon.cli.views.markup import say, set_up_outputs, terminal
from daemon.cli.views.status import print_jobs, print_status
from daemon.operating.diagnosis.doctor import Diagnosis, formats_here
from daemon.operating.log.log_line import log_line, log_lines
from daemon.operating.log.wrapping import fold
from daemon.operating.monitoring.explain import CheckpointExplanation, FileRow, Remembered, RunExplanation, Selected
from daemon.operating.monitoring.live import RootState
from daemon.operating.monitoring.status import AttemptStatus, JobDetails
from tests.bench.made import BENCH
from tests.cli.test_bad_input import ckptd
from tests.cli.test_layout import LONG, job, stage, status
from tests.sampling import some

SENTENCE = (
    "Could not find the base model meta-llama/Llama-3.2-1B-Instruct: it is not below /srv/models, and base.search names nothing else. "
)
AT = "2026-11-23T08:00:00+00:00"
FOUND = CheckpointExplanation(
    path="/srv/trainings/alpha/checkpoint-500", layout="hf-peft", writer="transformers", run="alpha", step=500, method="LORA",
    base="meta-llama/Llama-3.2-1B-Instruct", base_folder="/srv/models/llama", base_problem=SENTENCE, complete=False, missing=(SENTENCE,),
    incomplete_seconds=1748, quiet_seconds=1748.0, settles_in_seconds=None, refusal=SENTENCE, unreadable=None, unmergeable=(SENTENCE,),
    journal=Remembered("daemon", "taken", AT, f"{LONG}-500-0123456789ab", "succeeded", True), selected=Selected(False, SENTENCE, SENTENCE),
    watched=True, unwatched=SENTENCE, daemon_running=False, files=(FileRow("pytorch_model-00001-of-00002.safetensors", 7, True),),
)  # fmt: skip
ATTEMPT = AttemptStatus("onnx", 1, "default", "permanent", None, AT, AT, SENTENCE, "/s/jobs/x/onnx/1/job.json", "/s/jobs/x/onnx/1/log")
RECORD = {
    "timestamp": AT, "level": "warning", "event": "x", "message": SENTENCE, "run": "my-run", "step": 30, "stage": "onnx", "attempt": 1,
    "roots": {"/tmp/a b": "inotify", "/srv": "poll"}, "id": "local:15086:62082.13", "exception": "Traceback\n    a = b\n" + SENTENCE,
}  # fmt: skip
MADE = (job(waiting_for=SENTENCE, stages=(stage(left_seconds=70.0),)), job(step=7, state="failed", error=SENTENCE, warnings=(SENTENCE,)))
Printing = Callable[[Path], Any]


def _log(folder: Path) -> None:
    (folder / "ckptd.log").write_text(json.dumps(RECORD) + "\n")
    print_log(folder / "ckptd.log", follow=False, lines=5, job="", as_json=False)


def _config(folder: Path) -> None:
    (folder / "c.toml").write_text(
        f'[watch]\nroots = {json.dumps([f"/srv/trainings/{name}-of-a-person" for name in "abcd"])}\n[state]\ndirectory = "{folder}/s"\n'
    )
    show("watch", config=folder / "c.toml")


PRINTINGS: dict[str, Printing] = {
    "status": lambda folder: print_status(status(*MADE, roots=(RootState("/srv/trainings", "inotify", True),))),
    "list": lambda folder: print_jobs(MADE),
    "show": lambda folder: print_job(JobDetails(**vars(MADE[1]), attempts=(ATTEMPT,))),
    "check": lambda folder: print_check(
        Diagnosis({"toolchains": SENTENCE, "base": SENTENCE * 2}, (SENTENCE,), (SENTENCE * 2,)), everything=True
    ),
    "explain": lambda folder: print_explanation(FOUND),
    "explain run": lambda folder: print_explanation(RunExplanation("/srv", False, (FOUND, replace(FOUND, missing=())), (SENTENCE,))),
    "formats": lambda folder: print_formats(formats_here(folder), ("onnx", "web")),
    "formats --all": lambda folder: print_formats(formats_here(folder), everything=True),
    "logs": _log,
    "bench": lambda folder: print_bench(BENCH, folder / "page.html"),
    "config show": _config,
    "a sentence": lambda folder: say(SENTENCE),
}
WHOLE = re.compile(r"^(id|checkpoint|target|report) +\S+$|: ckptd queue retry \S+$|: python -m handlers \S+$|; its log: \S+$")
"""What `show` leaves in one line, to be copied."""


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., list[str]]]:
    def function(name: str, width: int | None) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width)) if width else monkeypatch.delenv("COLUMNS", raising=False)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: name == "a sentence" and width is not None)
        monkeypatch.setenv("NO_COLOR", "1")
        capsys.readouterr()
        PRINTINGS[name](tmp_path)
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    yield function


@pytest.mark.parametrize("name", PRINTINGS)
def test_no_word_is_broken_by_the_terminal(name: str, printed: Callable[..., list[str]]) -> None:
    whole = printed(name, None)
    words = {word for line in whole for word in line.split() if len(word) < 20}
    for width in (60, 80):
        lines = printed(name, width)
        assert lines and [line for line in lines if cell_len(line) > width and not WHOLE.search(line)] == []
        if name not in ("status", "list", "bench"):  # which shorten names in the middle, or leave columns out
            shown = {word for line in lines for word in line.split()}
            assert {word for word in words if name != "logs" or word in SENTENCE} <= shown | {"["}


def test_where_there_is_no_terminal_each_line_is_whole(printed: Callable[..., list[str]]) -> None:
    assert any(SENTENCE.strip() in line for line in printed("check", None))
    assert any("roots={'/tmp/a b': 'inotify'" in line and "id=local:15086:62082.13" in line for line in printed("logs", None))


@pytest.mark.parametrize("columns", some(["39", "0", "1", "-80", "wide"], of=2))
def test_a_width_that_makes_no_sense_is_as_good_as_none(columns: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f'[state]\ndirectory = "{tmp_path}/s"\n')
    asked = (tmp_path, "status", "--config", tmp_path / "config.toml")
    answer = ckptd(*asked, COLUMNS=columns)
    assert "no checkpoint has been taken yet" in answer.stdout and answer.returncode == 0
    assert answer.stdout == ckptd(*asked, COLUMNS="").stdout


def test_the_artifacts_of_an_export_are_shown_at_such_a_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    set_up_outputs()
    shown = Table(box=None)
    shown.add_column("variant")
    shown.add_row("onnx-int8-weight")
    terminal().print(shown)
    assert "onnx-int8-weight" in capsys.readouterr().out


def test_the_log_on_a_terminal_is_words(printed: Callable[..., list[str]]) -> None:
    said = " ".join(" ".join(printed("logs", 80)).split())
    assert "roots=/tmp/a b (inotify), /srv (poll)" in said and "local:15086" not in said and "run=my-run step=30 stage=onnx" in said


def test_each_value_of_the_configuration_has_its_origin_in_sight(printed: Callable[..., list[str]]) -> None:
    lines = printed("config show", 60)
    place = next(number for number, line in enumerate(lines) if line.startswith("roots"))
    assert lines[place] == "roots = [" and "c.toml" in " ".join(lines[place - 3 : place])
    assert any(re.fullmatch(r"depth = 0 +# default", line) for line in lines)


@given(
    words=st.lists(st.text("ab東é[/", min_size=1, max_size=90), min_size=1, max_size=20), width=st.integers(60, 100), seed=st.integers(0, 9)
)
def test_a_folded_text_keeps_its_words_and_their_styles(words: list[str], width: int, seed: int) -> None:
    text = Text()
    for word in words:
        text.append(word, random.Random(seed).choice(("", "red", "bold"))).append(" ")
    lines = fold(text, width, 7)
    assert all(cell_len(line.plain.rstrip()) <= width for line in lines)
    kept = [(char, str(style)) for line in lines for char, style in _styled(line)]
    assert kept == [(char, str(style)) for char, style in _styled(text)]


def _styled(text: Text) -> list[tuple[str, str]]:
    found = [(char, "") for char in text.plain]
    for span in text.spans:
        found[span.start : span.end] = [(char, str(span.style)) for char, _ in found[span.start : span.end]]
    return [one for one in found if one[0] != " "]


def test_a_record_for_a_file_is_as_it_was() -> None:
    assert [line.plain for line in log_lines(RECORD, None)] == [log_line(RECORD).plain]
