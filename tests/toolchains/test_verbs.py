"""`ckptd toolchain` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_bad_input import ckptd


def test_list_tells_what_is_missing_and_what_brings_it(tmp_path: Path) -> None:
    answer = ckptd(tmp_path, "toolchain", "list", "--json")
    assert answer.returncode == 0, answer.stderr
    row = json.loads(answer.stdout)["toolchains"]["optimum"]
    assert row["installed"] is False and row["folders"] == []
    assert row["command"] == "ckptd toolchain install optimum"
    assert "optimum: not installed; `ckptd toolchain install optimum` installs it" in ckptd(tmp_path, "toolchain", "list").stdout


def test_what_is_not_installed_or_not_known_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    for verb, name, words in (
        ("check", "optimum", "check the toolchain optimum: it is not installed. Fix: run `ckptd toolchain install optimum`."),
        ("remove", "optimum", "it is not installed. Fix: there is nothing to remove; `ckptd toolchain list` shows what is installed."),
        ("install", "nothing", "there is no toolchain 'nothing'. Fix: use one of: openvino, optimum."),
    ):
        answer = ckptd(tmp_path, "toolchain", verb, name)
        assert answer.returncode == 2, answer.stderr
        assert words in answer.stderr and answer.stderr.count("\n") == 1
