"""`ckptd --help` shows every verb in one group, every verb shows an example that the parser takes, and old names lead to the new ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from daemon.cli.main import app
from daemon.cli.parser.groups import GROUPS, RENAMED
from tests.cli.test_bad_input import ckptd
from tests.cli.test_every_verb import VERBS, configured
from tests.words.written import wrong_with

MOST_VERBS = 25


def test_every_verb_stands_in_one_group_of_the_help_with_one_line(tmp_path: Path) -> None:
    shown = ckptd(tmp_path, "-h", COLUMNS="80").stdout
    assert shown == ckptd(tmp_path, "--help", COLUMNS="80").stdout
    titles = [line.removesuffix(":") for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options", *GROUPS]
    listed = [verb for verbs in GROUPS.values() for verb in verbs]
    assert sorted(listed) == sorted(typer.main.get_command(app).commands) and len(listed) == len(set(listed)) == MOST_VERBS  # type: ignore[attr-defined]
    lines = shown.split("See:\n")[1].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")][:-1] == listed, "a line for each, and no other"
    assert "..." not in "".join(lines), "a help that does not fit into its line"


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_has_an_example_of_itself_that_the_parser_takes(words: tuple[str, ...]) -> None:
    said = CliRunner().invoke(app, [*words, "-h"], env={"COLUMNS": "80"})
    (example,) = [line.strip().removeprefix("Example: ") for line in said.stdout.splitlines() if line.strip().startswith("Example: ")]
    assert said.exit_code == 0 and f"ckptd {' '.join(words)}" in example
    assert wrong_with(example.removeprefix("sudo ")) is None and len(example) <= 66


def test_the_version_is_a_command_and_an_option(tmp_path: Path) -> None:
    assert ckptd(tmp_path, "version").stdout == ckptd(tmp_path, "--version").stdout != ""


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_gives_what_the_new_name_gives_and_says_it(tmp_path: Path, old: str) -> None:
    config = configured(tmp_path)
    new, rest = RENAMED[old], ["--config", str(config), *(["--json"] if old == "fsck" else ["x"])]
    was, now = ckptd(tmp_path, old, *rest), ckptd(tmp_path, *new, *rest)
    assert was.returncode == now.returncode
    if old == "fsck":
        assert list(json.loads(was.stdout)) == ["sound", "states"] == list(json.loads(now.stdout))
    line, _, others = was.stderr.partition("\n")
    assert line == f"ckptd: `ckptd {old}` is called `ckptd {' '.join(new)}` now; version 2 will not know the old name."
    assert others == now.stderr


@pytest.mark.parametrize("words", [
    ("--journal", "--exports"), ("--journal", "."), ("--deep", "--exports"), ("--variant", "onnx"), ("--variant", "onnx", "."),
    ("--artifact", "."), ("--like", "."), ("--artifact", ".", "--like", ".", "."), ("--artifact", ".", "--like", ".", "--journal"),
], ids=" ".join)  # fmt: skip
def test_parts_of_the_check_that_exclude_each_other_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    answer = ckptd(tmp_path, "verify", *words)
    assert answer.returncode == 2 and answer.stderr.startswith("ckptd: Could not verify: ")
