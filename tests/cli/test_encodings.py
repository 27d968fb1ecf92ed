"""Terminals and locales that are not UTF-8, and names that are none: a sentence or a `?`, never a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.cli import main
from daemon.journal.journal import Journal
from tests.cli.test_bad_input import ckptd, export, one_sentence
from tests.journal.entries import enter, reference
from tests.sampling import some

ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def checkpoint(tmp_path: Path, pico_checkpoint: Path) -> Path:
    """A checkpoint of which a part of the path is no UTF-8."""
    return Path(shutil.copytree(pico_checkpoint, tmp_path / os.fsdecode(b"b\xff") / pico_checkpoint.name))


@pytest.mark.parametrize("verb", ["export", "explain"])
def test_a_checkpoint_whose_name_is_no_text_is_refused_with_one_sentence(verb: str, tmp_path: Path, checkpoint: Path) -> None:
    answer = ckptd(checkpoint.parent, verb, checkpoint.name)
    assert answer.returncode == 2
    assert "the name is not UTF-8. Fix: rename it" in one_sentence(answer)


def test_a_name_that_is_no_text_in_another_place_is_refused_with_one_sentence(
    tmp_path: Path, pico_checkpoint: Path, checkpoint: Path
) -> None:
    answer = export(tmp_path, pico_checkpoint, "--add", checkpoint)
    assert answer.returncode == 2
    assert "the name is not UTF-8" in one_sentence(answer)


def test_what_no_verb_foresaw_of_such_a_name_is_one_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        os.fsdecode(b"b\xff").encode()

    monkeypatch.setattr(main, "_verb_of", lambda _: fail)
    assert main.main() == 2
    assert "'b\\udcff' holds a name that is not UTF-8" in capsys.readouterr().err


def test_a_path_that_an_ascii_locale_can_not_say_is_refused_with_the_locale(tmp_path: Path) -> None:
    (tmp_path / "läufe").mkdir()
    answer = ckptd(tmp_path, "export", tmp_path / "läufe", **ASCII_LOCALE)
    assert answer.returncode == 2
    assert "in the encoding of this locale" in one_sentence(answer) and "set LC_ALL=C.UTF-8" in answer.stderr


@pytest.mark.parametrize("environment", some([{"PYTHONIOENCODING": "ascii"}, ASCII_LOCALE], of=2), ids=["terminal", "locale"])
def test_an_export_succeeds_whatever_the_terminal_can_show(environment: dict[str, str], tmp_path: Path, pico_checkpoint: Path) -> None:
    answer = export(tmp_path, pico_checkpoint, **environment)
    assert "Traceback" not in answer.stderr
    assert answer.returncode == 0, answer.stderr
    assert "?" in answer.stdout and answer.stdout.isascii()


NARROW = ({"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, ASCII_LOCALE)


@pytest.mark.parametrize(
    ("verb", "environment"), some([(verb, narrow) for verb in ("status", "list", "check", "formats") for narrow in NARROW], of=2)
)
def test_every_verb_shows_names_that_the_terminal_can_not(verb: str, environment: dict[str, str], tmp_path: Path) -> None:
    config, runs = tmp_path / "config.toml", tmp_path / "runs"
    runs.mkdir()
    config.write_text(
        f'[watch]\nroots = ["{runs}"]\n[output]\ndirectory = "{tmp_path}/out"\n[state]\ndirectory = "{tmp_path}/state"\n# läufe, σ\n',
        encoding="utf-8",
    )
    (tmp_path / "state").mkdir(mode=0o700)
    journal = Journal(tmp_path / "state" / "journal.sqlite3")
    enter(journal, "job", reference(4, run="läufe-σ"))
    journal.close()
    answer = ckptd(tmp_path, verb, "--config", config, **environment)
    assert "Traceback" not in answer.stdout + answer.stderr
    assert answer.returncode == 0, answer.stdout + answer.stderr
    if verb in ("status", "list"):
        assert "ufe-?" in answer.stdout


@pytest.mark.parametrize(("encoding", "words"), [("latin-1", "Usage:"), ("gb18030", "用法："), ("utf-8", "用法：")])
def test_a_terminal_without_chinese_characters_is_told_in_english(encoding: str, words: str, tmp_path: Path) -> None:
    environment = {"LC_ALL": "zh_CN.UTF-8", "LANGUAGE": "zh_CN", "PYTHONIOENCODING": encoding, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "daemon", "status", "--help"]
    shown = subprocess.run(command, env={**os.environ, **environment}, cwd=tmp_path, capture_output=True, check=True).stdout
    assert shown.decode(encoding).startswith(words) and b"?" not in shown.splitlines()[0]
