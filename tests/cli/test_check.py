"""`ckptd check` tells each thing once, by what it is, and its last line does not hide the notes."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from daemon.config.loading import load
from daemon.config.places.output_owners import Owner, record_of
from daemon.operating.diagnosis import doctor
from daemon.operating.diagnosis.doctor import Diagnosis, examine
from daemon.operating.diagnosis.readability import Reading
from daemon.system.filesystems import access
from tests.cli.test_bad_input import ckptd

NOBODY = 65534
ROOT = os.geteuid() == 0


def examined(folder: Path, *, roots: str = "", search: str = "") -> Diagnosis:
    """What `check` finds with these lists of paths, written as in TOML."""
    file = folder / "check.toml"
    file.write_text(f'[watch]\nroots = [{roots}]\n[base]\nsearch = [{search}]\n[state]\ndirectory = "{folder}/state"\n'
                    f'[output]\ndirectory = "{folder}/exports"\n')  # fmt: skip
    return examine(load(file), file)


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_root_that_is_a_file_is_called_one_and_told_once(tmp_path: Path, mode: int) -> None:
    (tmp_path / "my.toml").touch(mode)
    found = examined(tmp_path, roots=f'"{tmp_path}/my.toml"')
    about = [one for one in (*found.problems, *found.warnings) if "my.toml" in one]
    assert about == [f"watch.roots: {tmp_path}/my.toml is a file, not a directory; give the directory below which trainings write"]


def test_a_base_folder_that_is_a_file_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "weights").touch()
    assert f"base.search: {tmp_path}/weights is a file, not a directory" in examined(tmp_path, search=f'"{tmp_path}/weights"').warnings


def test_nothing_is_told_twice_whatever_looks_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "tried", lambda settings: Reading("", ["one", "two", "one"], ["two", "three", "three"]))
    found = examined(tmp_path, roots=f'"{tmp_path}/gone", "{tmp_path}/gone"')
    assert (found.problems.count("one"), found.problems.count("two"), found.warnings.count("three")) == (1, 1, 1)
    assert not {*found.problems} & {*found.warnings} and len({*found.warnings}) == len(found.warnings)


@pytest.mark.skipif(not ROOT, reason="becomes another user")
def test_a_base_folder_that_the_service_can_not_come_to_is_a_note(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "bases").mkdir(parents=True)
    closed.chmod(0)
    (tmp_path / "state").mkdir(0o700)
    os.chown(tmp_path / "state", NOBODY, NOBODY)
    found = examined(tmp_path, search=f'"{closed}/bases"')
    (note,) = (one for one in found.warnings if one.startswith("base.search"))
    assert f"the user {access.user_name(NOBODY)} has no right to enter " in note and "setfacl" in note and "does not exist" not in note


def test_the_last_line_tells_of_the_notes_above_it(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    state = {"CKPTD_STATE__DIRECTORY": str(tmp_path / "state"), "CKPTD_OUTPUT__DIRECTORY": str(tmp_path / "exports")}
    answer = ckptd(tmp_path, "check", CKPTD_WATCH__ROOTS=f"{tmp_path}/runs,{tmp_path}/rusn", **state)
    assert answer.returncode == 0, answer.stderr
    notes = sum(line.startswith("note") for line in answer.stdout.splitlines())
    assert f"the root {tmp_path}/rusn does not exist yet; did you mean {tmp_path}/runs?" in answer.stdout and notes > 0
    word = "note" if notes == 1 else "notes"
    assert answer.stdout.splitlines()[-1] == f"The configuration is valid, with {notes} {word} above."


def test_a_mistake_in_the_file_is_a_problem_in_json_too(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[watch]\nrots = ["/x"]\n')
    done = ckptd(tmp_path, "check", "--json", "--config", file)
    assert done.returncode == 2
    (problem,) = json.loads(done.stdout)["problems"]
    assert "watch.rots" in problem and "did you mean 'roots'" in problem


def test_without_a_file_it_says_that_only_the_defaults_were_checked(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(f'[state]\ndirectory = "{tmp_path}/state"\n[output]\ndirectory = "{tmp_path}/exports"\n')
    state = {"CKPTD_STATE__DIRECTORY": str(tmp_path / "state"), "CKPTD_OUTPUT__DIRECTORY": str(tmp_path / "exports"), "HOME": str(tmp_path)}
    for more, said in (([], True), (["--config", tmp_path / "my.toml"], False)):
        told = json.loads(ckptd(tmp_path, "check", "--json", *more, **state).stdout)["warnings"]
        assert any("no configuration file was found" in one for one in told) is said


def test_a_run_whose_exports_another_ckptd_publishes_is_named(tmp_path: Path) -> None:
    """As the daemon says it (`target-taken`) when an export of the run begins."""
    folder = tmp_path / "exports" / "run"
    for made in (folder, tmp_path / "runs" / "run", tmp_path / "other"):
        made.mkdir(parents=True)
    claim = Owner(
        instance="another", host=socket.gethostname(), state=str(tmp_path / "other"), root=str(tmp_path / "runs"), run="run",
        since="2026-01-02T03:04:05Z",
    )  # fmt: skip
    record = folder / record_of("run")
    roots = f'"{tmp_path}/runs"'

    def said(owner: Owner) -> list[str]:
        record.write_text(owner.model_dump_json())
        return [warning for warning in examined(tmp_path, roots=roots).warnings if "another ckptd" in warning]

    (warning,) = said(claim)
    assert f"publishes the run run in {folder} (state {tmp_path}/other on" in warning and "since 2026-01-02)" in warning
    assert "target-taken" in warning and f"`rm {record}`" in warning
    assert said(claim.model_copy(update={"root": "/elsewhere"})) == [], "a training that merely has the same name gets another folder"
    assert said(claim.model_copy(update={"run": "ended"})) == [], "a run that is no longer there has no new exports"
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "instance").write_text("another\n")
    assert said(claim) == [], "its own record"
