"""docs/answers.md says what a program gets: the codes and fields of every verb, as they are."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from daemon.cli.main import main
from tests.cli.test_every_verb import VERBS
from tests.words.answers import ALWAYS, ANSWERS, EXITS, PAGE, fields_of, page, shapes


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `python -m tests.words.answers`"


def test_every_verb_has_its_exit_codes_and_every_verb_with_json_its_answer() -> None:
    assert sorted(EXITS) == sorted(VERBS)
    with_json = [verb for verb, command in VERBS.items() if any(one.name == "json_" for one in command.params)]
    assert sorted(ANSWERS) == sorted(with_json)


def test_a_code_that_a_verbs_help_names_is_on_the_page() -> None:
    for verb, command in VERBS.items():
        for code in re.findall(r"(?:Exit code |; )(\d+):", command.help or ""):
            assert int(code) in EXITS[verb], f"ckptd {' '.join(verb)}: {command.help}"
        assert set(EXITS[verb]) <= {*ALWAYS, 3}


def test_every_field_of_an_answer_has_a_meaning() -> None:
    lacking = {(shape.__name__, name) for shape in shapes() for name, one in fields_of(shape).items() if not one.meaning}
    assert not lacking, "add a docstring below the field"


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Gives what a verb answers as JSON, on a configuration without a daemon, and its exit code."""
    config = tmp_path / "config.toml"
    config.write_text(
        f'[output]\ndirectory = "{tmp_path}/exports"\n[state]\ndirectory = "{tmp_path}/state"\n[watch]\nroots = ["{tmp_path}/runs"]\n'
    )
    monkeypatch.setenv("CKPTD_CONFIG", str(config))

    def ask(*words: str) -> tuple[Any, int]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["ckptd", *words, "--json"])
        code = main()
        return json.loads(capsys.readouterr().out), code

    return ask


def same_names(value: dict[str, Any], *parts: Any) -> bool:
    """Whether an object has the fields that the page lists for it, and no others."""
    return list(value) == [name for part in parts for name in fields_of(part)]


def test_answers_have_the_fields_that_the_page_lists(answer: Any, tmp_path: Path) -> None:
    (snapshot, _), (variants, *_), (diagnosis, *_) = ANSWERS["status",][1], ANSWERS["formats",][1], ANSWERS["check",][1]
    value, code = answer("status")
    assert code == 0 and same_names(value, snapshot) and same_names(value["daemon"], fields_of(snapshot)["daemon"].type)
    value, code = answer("formats")
    assert code == 0 and same_names(value, variants) and same_names(value["processor"], fields_of(variants)["processor"].type)
    value, code = answer("check")
    assert code in (0, 2) and same_names(value, diagnosis)
    assert answer("list") == ([], 0)


def test_answers_that_a_verb_puts_together_have_the_fields_that_the_page_lists(answer: Any, tmp_path: Path) -> None:
    value, code = answer("config", "show", "limits")
    assert code == 0 and list(value) == ["files", "values"] and same_names(value["values"]["limits.jobs"], *ANSWERS["config", "show"][1])
    value, code = answer("toolchain", "list")
    assert code == 0 and list(value) == ["toolchains"]
    assert all(same_names(one, *ANSWERS["toolchain", "list"][1]) for one in value["toolchains"].values())
    value, code = answer("prune", "--dry-run")
    assert code == 0 and list(value) == re.findall(r'"(\w+)"', ANSWERS["prune",][0])
