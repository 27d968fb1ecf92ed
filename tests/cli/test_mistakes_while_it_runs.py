"""A mistake in the configuration file hides no daemon: what needs the state directory alone says the mistake and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from daemon.cli.main import app
from daemon.config.instances import announced
from daemon.config.paths import StatePaths
from daemon.config.sources import given_on_command_line
from daemon.contract.errors import UsageError
from daemon.journal.journal import Journal
from daemon.system.lock import locked

STEERING = {
    ("status",): 0, ("status", "--json"): 0, ("list",): 0, ("list", "--json"): 0, ("logs",): 0, ("pause",): 0, ("resume",): 0,
    ("show", "x"): "no job begins with", ("cancel", "x"): "no job begins with", ("pause", "x"): "no job begins with",
    ("resume", "x"): "no job begins with", ("first", "x"): "no job begins with", ("compare", "x", "y"): "no job id begins with",
}  # fmt: skip
"""Verbs that need a state directory alone → what they end with here."""
OTHERS = {
    "run", "export", "explain", "check", "formats", "demo", "retry", "reload", "verify", "fsck", "prune", "notify-test", "init",
    "install-service", "config", "toolchain",
}  # fmt: skip
"""Verbs that work by the configuration itself, or need none."""
MISTAKES = {
    "a misspelt key": lambda text: text.replace("roots", "rots"),
    "a wrong value": lambda text: text + "[limits]\njobs = 'many'\n",
    "an unknown section": lambda text: text + "[stat]\nx = 1\n",
    "a line that is not TOML": lambda text: text + "roots = [\n",
    "no file": lambda text: None,
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The configuration of a daemon that says it runs, which is this process."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    for name in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CKPTD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    config, state = tmp_path / "my.toml", tmp_path / "state"
    config.write_text(f'[state]\ndirectory = "{state}"\n[watch]\nroots = ["{tmp_path}/runs"]\n')
    state.mkdir(mode=0o700)
    Journal(StatePaths(state).journal).close()
    with announced(config, state), locked(StatePaths(state).lock):
        yield config


def spoil(file: Path, mistake: str) -> None:
    text = MISTAKES[mistake](file.read_text())  # type: ignore[no-untyped-call]
    file.unlink() if text is None else file.write_text(text)


def test_every_verb_is_known_here() -> None:
    names = {name for name, command in typer.main.get_command(app).commands.items() if not command.hidden}  # type: ignore[attr-defined]
    assert names == {words[0] for words in STEERING} | OTHERS


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_needs_the_state_alone_says_the_mistake_and_goes_on(file: Path, mistake: str) -> None:
    spoil(file, mistake)
    for words, end in STEERING.items():
        said = CliRunner().invoke(app, [*words, "--config", str(file)])
        if end == 0:
            assert said.exit_code == 0, (words, said.exception, said.output)
        else:
            assert isinstance(said.exception, UsageError) and str(end) in str(said.exception), words
        if words[0] != "status":
            assert said.stderr.count("ckptd: ") == 1 and f"{file} can't be used as it is now: " in said.stderr.splitlines()[0], words
            continue
        value = json.loads(said.stdout) if "--json" in words else None
        if value:
            assert value["daemon"]["running"] and f"{file} can't be used as it is now: " in value["config_problem"]
        else:
            assert said.stdout.startswith("running") and f"configuration The configuration {file} can't be used" in said.stdout


@pytest.mark.parametrize("words", [("check",), ("run",), ("reload",), ("retry", "x"), ("fsck",), ("config", "show")], ids=" ".join)
def test_what_works_by_the_configuration_still_refuses_it(file: Path, words: tuple[str, ...]) -> None:
    spoil(file, "a misspelt key")
    said = CliRunner().invoke(app, [*words, "--config", str(file)])
    assert isinstance(said.exception, UsageError) and "watch.rots: is not a known key; did you mean 'roots'?" in str(said.exception)


def test_an_option_of_the_command_itself_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(given_on_command_line, "limits.jbs", "2")  # as it is set below, and gone afterwards
    said = CliRunner().invoke(app, ["--set", "limits.jbs=2", "status", "--config", str(file)])
    assert isinstance(said.exception, UsageError)
    assert "1 thing is wrong:\n  --set limits.jbs (command line): names no setting; did you mean 'limits.jobs'?\n" in str(said.exception)


@pytest.mark.parametrize(("mistake", "is_known"), [("a misspelt key", True), ("a wrong value", True), ("an unknown section", True),
                                                   ("a line that is not TOML", False), ("no file", False)])  # fmt: skip
def test_where_no_daemon_runs_the_file_tells_the_state_if_it_can(tmp_path: Path, mistake: str, is_known: bool) -> None:
    file = tmp_path / "my.toml"
    file.write_text(f'[state]\ndirectory = "{tmp_path}/state"\n[watch]\nroots = ["{tmp_path}/runs"]\n')
    spoil(file, mistake)
    said = CliRunner().invoke(app, ["status", "--json", "--config", str(file)])
    assert isinstance(said.exception, UsageError) != is_known
    if is_known:
        assert json.loads(said.stdout)["state_directory"] == str(tmp_path / "state")


def test_a_directory_that_may_be_misspelt_is_not_guessed(tmp_path: Path) -> None:
    for text in (f'[stat]\ndirectory = "{tmp_path}"\n', f'[state]\ndirectry = "{tmp_path}"\n', "[state]\ndirectory = 3\n", "state = 3\n"):
        (tmp_path / "my.toml").write_text(text)
        said = CliRunner().invoke(app, ["status", "--config", str(tmp_path / "my.toml")])
        assert isinstance(said.exception, UsageError), text
