"""`ckptd init`: a configuration of what lies on the box, valid before it is written."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.config.loading import load
from daemon.contract.faults.errors import UsageError
from daemon.installing import discovery, first_config
from daemon.installing.places import output_beside
from tests.cli.test_bad_input import ckptd, one_sentence

CONFIG = Path(__file__).parents[2] / "config.toml"


def init(folder: Path, *words: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The verb without a terminal, in an own home."""
    (folder / "home").mkdir(exist_ok=True)
    return ckptd(folder, "init", *words, stdin=stdin, HOME=str(folder / "home"), XDG_CONFIG_HOME=str(folder / "home" / ".config"))


def test_with_every_option_it_asks_nothing_and_writes_what_check_accepts(tmp_path: Path) -> None:
    file, runs = tmp_path / "etc" / "config.toml", tmp_path / "runs"
    words = ("--root", runs, "--root", tmp_path / "more", "--base", tmp_path, "--output", tmp_path / "out", "--variant", "onnx")
    done = init(tmp_path, file, *words)
    assert done.returncode == 0, done.stderr
    assert f"{file} is written: 2 roots, exports go to {tmp_path}/out." in done.stdout
    assert f"`ckptd check --config {file}`" in done.stdout
    assert tomllib.loads(file.read_text())["watch"]["roots"] == [str(runs), str(tmp_path / "more")]
    loaded = load(file, need_roots=True)
    assert (loaded.output.directory, loaded.export.variants) == (tmp_path / "out", ("onnx",))
    assert ckptd(tmp_path, "check", "--config", file).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o644


def test_the_file_may_be_named_as_the_other_commands_take_it(tmp_path: Path) -> None:
    file, words = tmp_path / "own.toml", ("--root", tmp_path / "runs", "--base", tmp_path)
    done = init(tmp_path, "--config", file, *words)
    assert done.returncode == 0 and "[watch]" in file.read_text() and f"`ckptd check --config {file}`" in done.stdout
    other = init(tmp_path, tmp_path / "other.toml", "--config", file, *words)
    assert other.returncode == 2 and "are two files" in one_sentence(other) and not (tmp_path / "other.toml").exists()


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    words = (file, "--root", tmp_path / "runs", "--base", tmp_path)
    file.write_text("mine")
    done = init(tmp_path, *words)
    assert done.returncode == 2 and "a file already exists there; it was not changed" in one_sentence(done)
    assert file.read_text() == "mine"
    assert init(tmp_path, *words, "--dry-run").returncode == 0 and file.read_text() == "mine"
    assert init(tmp_path, *words, "--force").returncode == 0 and "[watch]" in file.read_text()
    for target, said in ((tmp_path, f"it is a directory, not a file. Fix: give the file to write, for example {file}"),
                         (file / "x.toml", f"{file} is a file, not a directory")):  # fmt: skip
        for force in (True, False):
            with pytest.raises(UsageError, match=re.escape(said)):
                first_config.refuse_existing(target, force=force)
    link = tmp_path / "link.toml"
    link.symlink_to(tmp_path / "nowhere")
    assert init(tmp_path, link, *words[1:]).returncode == 2 and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--root", "runs", "--variant", "onx"), "there is no variant 'onx'; did you mean 'onnx'"),
        (("--root", "runs", "--output", "runs/out"), "lies inside the watched root"),
        (("--root", "runs/\udcff"), "a path is not UTF-8"),
        (("--root", "file"), "/file): it is a file, not a directory"),
        (("--root", "runs", "--base", "file/bases"), "/file is a file, not a directory"),
        (("--root", "runs", "--output", "file"), "/file): it is a file, not a directory"),
        (("--root", "runs", "--notify", "nothing"), "notify.urls_file: there is no such file"),
        (("--root", "runs", "--notify", "json://user:S3CRETword@host.example"), "use --notify: it is a URL, and others can see a command"),
        (("--root", "runs", "--notify", "unknown"), "no Apprise service has such a URL"),
        (("--root", "runs", "--notify", "no-urls"), "notify.urls_file: line 3 is no URL"),
    ],
)
def test_what_would_not_be_valid_is_said_and_nothing_is_written(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "unknown").write_text("nosuch://S3CRET")
    (tmp_path / "no-urls").write_text("# mine\njson://localhost\nS3CRET")
    done = init(tmp_path, "config.toml", "--base", "bases", *words)
    assert done.returncode == 2 and said in done.stderr and "ckptd-init-" not in done.stderr and "S3CRET" not in done.stdout + done.stderr
    assert not (tmp_path / "config.toml").exists()


def test_urls_of_notifications_lie_in_a_file_for_the_owner_alone(tmp_path: Path) -> None:
    file, urls = tmp_path / "config.toml", tmp_path / "notify-urls"
    words = (file, "--root", "r", "--base", "b", "--notify", "-")
    shown = init(tmp_path, *words, "--dry-run", stdin="json://localhost/S3CRET")
    assert shown.returncode == 0 and f'urls_file = "{urls}"' in shown.stdout and "S3CRET" not in shown.stdout and not urls.exists()
    done = init(tmp_path, *words, stdin="# mine\njson://localhost/S3CRET\njson://localhost/other")
    assert done.returncode == 0 and "S3CRET" not in done.stdout + done.stderr + file.read_text()
    assert (urls.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o600, 0o644)
    assert [one.url.get_secret_value() for one in load(file).notify.receivers] == ["json://localhost/S3CRET", "json://localhost/other"]
    # One's own file is named, and neither copied nor changed; a file that is there already is not replaced.
    own = tmp_path / "own"
    own.write_text("json://localhost/mine\n")
    assert init(tmp_path, *words[:-1], own, "--force").returncode == 0
    assert load(file).notify.urls_file == own and own.read_text() == "json://localhost/mine\n"
    file.unlink()
    refused = init(tmp_path, *words, stdin="json://localhost/new")
    assert refused.returncode == 2 and f"({urls}): a file already exists there" in one_sentence(refused) and not file.exists()


@pytest.mark.parametrize(("given", "said"), [
    ("S3CRET", "line 1 is no URL"), ("S3CRET\udcff", "it is not UTF-8 text"), ("nosuch://S3CRET", "no Apprise service has such a URL"),
    ("json://S3CRET\n" * 5000, "it has more than 64 KiB"),
])  # fmt: skip
def test_what_standard_input_says_is_not_shown(tmp_path: Path, given: str, said: str) -> None:
    done = init(tmp_path, "config.toml", "--root", "r", "--base", "b", "--notify", "-", stdin=given)
    assert done.returncode == 2 and said in one_sentence(done) and "S3CRET" not in done.stderr and not (tmp_path / "config.toml").exists()


def test_without_a_terminal_it_never_asks(tmp_path: Path) -> None:
    done = init(tmp_path, "config.toml", "--base", tmp_path)
    assert done.returncode == 2 and "there is no terminal. Fix: give them with --root" in one_sentence(done)
    assert not (tmp_path / "config.toml").exists()


def typed(folder: Path, answers: list[str], *words: str) -> str:
    """What the verb shows on a terminal where these answers are typed, each when it waits."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / ".config"), "TERM": "dumb"}
    command = [sys.executable, "-m", "daemon", "init", *words]
    shown, end = "", time.monotonic() + 100
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment):
        os.close(theirs)
        while time.monotonic() < end:
            if answers and shown.endswith(": ") and not select.select([ours], [], [], 0.2)[0]:
                os.write(ours, (answers.pop(0) + "\n").encode())
            try:
                if select.select([ours], [], [], 0.2)[0]:
                    shown += os.read(ours, 4096).decode()
            except OSError:  # it has ended
                break
    os.close(ours)
    return shown


@pytest.mark.slow
def test_on_a_terminal_it_asks_and_takes_the_answers(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answers = [
        f"{tmp_path}/file", f"{tmp_path}/runs '{tmp_path}/more runs'", f"{tmp_path}/file/bases", "none",
        f"{tmp_path}/runs/out", f"{tmp_path}/file", f"{tmp_path}/out", "pytorch onx", "pytorch onnx-int8", "nonsense",
        "json://localhost/S3CRET",
    ]  # fmt: skip
    shown = " ".join(typed(tmp_path, answers, "config.toml").split())  # where a line is broken depends on the length of the path
    assert not answers and shown.count("is a file, not a directory. Fix: give a directory") == 3
    assert "did you mean 'onnx'" in shown and "lies inside the watched root" in shown and "no Apprise service has such a URL" in shown
    assert "with spaces between them" in shown and "Apprise URLs [none]:" in shown and "[]" not in shown
    assert "Directories below which trainings write" in shown and "is written: 2 roots" in shown, shown
    loaded = load(tmp_path / "config.toml")
    assert loaded.watch.roots == (tmp_path / "runs", tmp_path / "more runs")
    assert (loaded.output.directory, loaded.export.variants) == (tmp_path / "out", ("pytorch", "onnx-int8"))
    assert [one.place for one in loaded.notify.receivers] == ["notify.urls_file.0 (json)"]
    assert "S3CRET" not in (tmp_path / "config.toml").read_text()


def test_only_what_was_chosen_is_written_each_with_one_line_of_comment() -> None:
    chosen = {"watch": {"roots": ["/data/runs"]}, "base": {"map": {}}, "merge": {"verify": "full"}, "export": {"variants": []}}
    text = first_config.text(chosen)
    assert _keys(text) == {("watch", "roots"): ["/data/runs"], ("merge", "verify"): "full"}
    lines = text.splitlines()
    head = lines[: lines.index("")]
    assert all(line.startswith("# ") for line in head) and "docs/configuration.md explains every key" in head[0]
    assert "keeps the latest 5, the best 3" in head[-1], "what is removed by default is said"
    tables = [row for row in "\n".join(lines[len(head) :]).split("\n\n") if row.strip()]
    assert [[line[0] for line in row.split("\n") if line] for row in tables] == [["[", "#", "r"], ["[", "#", "v"]]


def test_what_was_proposed_to_everybody_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    done = init(tmp_path, file, "--root", tmp_path / "runs", "--base", tmp_path, "--output", tmp_path / "out")
    assert set(_keys(file.read_text())) == {("watch", "roots"), ("base", "search"), ("output", "directory")}, done.stderr
    assert "Exports: ckptd keeps the latest 5, the best 3 and what `prune --keep` names" in " ".join(done.stdout.split())


def _keys(text: str) -> dict[tuple[str, str], Any]:
    """(section, key) → value of every key of a file; the section of those before the first is ""."""
    tables = tomllib.loads(text)
    inner = {(section, key): value for section, keys in tables.items() if isinstance(keys, dict) for key, value in keys.items()}
    return inner | {("", key): value for key, value in tables.items() if not isinstance(value, dict)}


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=3),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])), max_size=2),
)
def test_any_path_is_written_so_that_it_is_read_again(paths: list[str], mapped: dict[str, str]) -> None:
    read = tomllib.loads(first_config.text({"watch": {"roots": paths}, "base": {"map": mapped}}))
    assert read.get("watch", {}).get("roots", []) == paths and read.get("base", {}).get("map", {}) == mapped


def test_a_key_that_is_not_documented_can_not_be_written() -> None:
    with pytest.raises(KeyError, match=r"watch\.root"):
        first_config.text({"watch": {"root": ["/data"]}})


@pytest.fixture
def box(tmp_path: Path, pico_base: Path, pico_checkpoint: Path) -> Path:
    """A box with two runs below /data, one in a home, a folder of models and a Hugging Face cache."""

    def run(folder: Path, base: str) -> None:
        shutil.copytree(pico_checkpoint, folder / "checkpoint-4")
        file = folder / "checkpoint-4" / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))

    run(tmp_path / "data" / "runs" / "one", "org/cached")
    run(tmp_path / "data" / "runs" / "team" / "two", "org/pico")
    run(tmp_path / "home" / "anna" / "sft", "org/nowhere")
    shutil.copytree(pico_base, tmp_path / "data" / "models" / "pico")
    hub = tmp_path / "home" / "anna" / ".cache" / "huggingface" / "hub" / "models--org--cached"
    for commit in ("abc", "def"):
        shutil.copytree(pico_base, hub / "snapshots" / commit)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("def")
    return tmp_path


def looked(box: Path, monkeypatch: pytest.MonkeyPatch) -> discovery.Proposal:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HF_HOME", raising=False)
    home = box / "home" / "anna"
    monkeypatch.setenv("HOME", str(home))
    return discovery.look([box / "data", home], [home])


def test_roots_and_bases_of_the_box_are_proposed(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(box, monkeypatch)
    # In a home more lies than trainings: the run itself.
    assert {one.path: one.runs for one in found.roots} == {box / "data" / "runs": 2, box / "home" / "anna" / "sft": 1}
    assert found.searched == (box / "data" / "models",)
    hub = box / "home" / "anna" / ".cache" / "huggingface" / "hub"
    assert dict(found.mapped) == {"org/cached": hub / "models--org--cached" / "snapshots" / "def"}
    assert found.missing == ("org/nowhere",)


def test_an_export_of_ours_and_what_lies_in_it_is_no_root(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = box / "data" / "exports" / "one" / "step-4"
    shutil.copytree(box / "data" / "models" / "pico", export / "pytorch")
    for name in ("MANIFEST.json", "report.json"):
        (export / name).touch()
    assert looked(box, monkeypatch).searched == (box / "data" / "models",)


def test_a_place_that_can_not_be_read_is_left_out(tmp_path: Path) -> None:
    assert discovery.look([tmp_path / "nowhere"], []) == discovery.Proposal()


def test_exports_never_go_where_they_would_be_watched(tmp_path: Path) -> None:
    assert output_beside([tmp_path / "runs"], system=False) == tmp_path / "exports"
    assert output_beside([tmp_path / "exports"], system=False) == Path.home() / "exports"
    assert output_beside([tmp_path / "runs"], system=True) == Path("/srv/exports")
    there, later = tmp_path / "here" / "runs", tmp_path / "new" / "runs"
    there.mkdir(parents=True)
    assert output_beside([there, later], system=False) == output_beside([later, there], system=False) == tmp_path / "here" / "exports"
    assert output_beside([later], system=False) == tmp_path / "new" / "exports", "the root is not there yet"
    assert output_beside([Path("/srv")], system=True) != Path("/srv/exports")
