"""A mistake in the configuration file hides no daemon: what needs the state directory alone says the mistake and goes on."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from daemon.cli.main import app
from daemon.cli.views.status import status_lines
from daemon.config import layers
from daemon.config.places.instances import announced
from daemon.config.places.paths import StatePaths
from daemon.config.sources import given_on_command_line
from daemon.contract.faults.errors import CkptdError, UsageError
from daemon.contract.faults.text import one_line
from daemon.journal.journal import Journal
from daemon.operating import reload
from daemon.operating.monitoring.live import ConfigLoad, LiveFile, write_live
from daemon.operating.monitoring.status import snapshot
from daemon.operating.reload import unread_change
from daemon.system.lock import locked
from tests.journal.entries import enter
from tests.service import Service

STEERING = {
    ("status",): 0, ("status", "--json"): 0, ("list",): 0, ("list", "--json"): 0, ("logs",): 0,
    ("queue", "pause"): 0, ("queue", "resume"): 0, ("notify", "list"): 0, ("notify", "resend"): 0,
    ("show", "x"): "no job's id begins", ("queue", "cancel", "x"): "no job's id begins", ("queue", "pause", "x"): "no job's id begins",
    ("queue", "resume", "x"): "no job's id begins", ("queue", "first", "x"): "no job's id begins",
    ("compare", "x", "y"): "no job id begins with",
}  # fmt: skip
"""Verbs that need a state directory alone → what they end with here."""
OTHERS = {
    "run", "export", "deliver", "explain", "check", "formats", "quality", "demo", "reload", "verify", "prune", "init",
    "install-service", "config", "toolchain", "bench", "convert", "version",
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
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # by which `reload` asks
    with announced(config, state), locked(StatePaths(state).lock):
        yield config
    signal.signal(signal.SIGHUP, before)


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


def test_where_no_daemon_runs_none_is_said_to_go_on(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndirectory = "{tmp_path}/state"\n[watch]\nrots = []\n')
    said = json.loads(CliRunner().invoke(app, ["status", "--json", "--config", str(config)]).stdout)["config_problem"]
    assert "No daemon runs on its state directory, and none would start." in said and "continues" not in said


@pytest.mark.parametrize(
    "words", [("check",), ("run",), ("reload",), ("queue", "retry", "x"), ("verify", "--journal"), ("config", "show")], ids=" ".join
)
def test_what_works_by_the_configuration_still_refuses_it(file: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "PATIENCE_SECONDS", 0.2)  # nobody answers here
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


def answer(*words: str) -> tuple[int, str]:
    """What a verb says, in one line, and its exit code."""
    said = CliRunner().invoke(app, words)
    error = str(said.exception) if isinstance(said.exception, CkptdError) else ""
    return (2 if error else said.exit_code), f"{said.output}{error}"


def test_a_daemon_says_which_file_it_works_on_what_it_read_and_how_it_ended(make_service: Callable[..., Service]) -> None:
    service = make_service()
    other = service.folder / "other.toml"
    other.write_text(service.config.read_text())
    mine, theirs = ("--config", str(service.config)), ("--config", str(other))
    service.start()
    service.wait_for(lambda value: bool(value["daemon"]["running"] and value["roots"]), 60)
    assert service.process is not None
    pid = service.process.pid

    # Another file with the same state directory.
    code, said = answer("reload", *theirs)
    assert code == 2 and f"the daemon (pid {pid}) works on {service.config}, not on {other}" in said
    assert f"the daemon that is shown here works on {service.config}, not on {other}" in answer("status", *theirs)[1]
    assert "not on" not in answer("status", *mine)[1]
    link = service.folder / "link.toml"
    link.symlink_to(service.config)
    assert answer("reload", "--config", str(link)) == (0, "The daemon has read its configuration again; nothing has changed in it.\n")

    # What the file says now, and what the daemon has read.
    state = service.state
    service.config.write_text("# said otherwise\n" + service.config.read_text())
    assert unread_change(state) is None
    service.config.write_text(service.config.read_text() + "[limits]\nattempts = 2\n")
    assert "run `ckptd reload" in (unread_change(state) or "")
    assert answer("reload", *mine) == (0, "The daemon uses the new configuration now.\n  limits.attempts: 3 → 2\n")
    assert unread_change(state) is None

    # A reload that the service manager asks for, with two mistakes.
    good = service.config.read_text()
    service.config.write_text(good.replace("roots", "rots").replace("attempts", "attemts"))
    service.process.send_signal(signal.SIGHUP)
    service.wait_for(lambda value: bool(value["daemon"]["configuration"]["problem"]), 30)
    said = answer("status", *mine)[1]
    assert "the last reload was refused: Could not use the configuration" in said and "\\n" not in said
    assert "; limits.attemts: is not a known key" in said and ". Fix: change those keys" in said
    service.config.write_text(good)

    assert service.stop() == 0
    start = f"start it with `ckptd run --config {service.config}`"
    assert f"not running: {start}" in answer("status", *mine)[1]
    service.start()
    process = service.process
    service.wait_for(lambda value: value["daemon"]["running"] and value["daemon"]["pid"] == process.pid, 60)
    service.kill()
    said = answer("status", *mine)[1]
    assert "did not shut down cleanly" in said and "last seen alive at" in said and start in said
    value = snapshot(state)
    assert value.daemon.killed and value.daemon.said and value.daemon.pid is None
    # Without a word about the file it is the last daemon's.
    assert start in "".join(line.plain for line in status_lines(value, None, None))


@pytest.mark.parametrize(("text", "line"), [
    ("one", "one"), ("", ""), ("a (f): 2 things are wrong:\n  b: c\n  d: e\nFix: g.", "a (f): 2 things are wrong: b: c; d: e. Fix: g."),
    ("a\nb\n", "a. b"), ("a.\nb", "a. b"),
])  # fmt: skip
def test_a_list_of_mistakes_becomes_one_line(text: str, line: str) -> None:
    assert one_line(text) == line


def test_retry_says_that_the_daemon_has_not_read_the_changed_file(file: Path) -> None:
    state = file.parent / "state"
    loaded = ConfigLoad("2026-01-31T00:00:00+00:00", None, str(file), layers.read(file).digest)
    write_live(StatePaths(state).live, LiveFile(pid=1, configuration=loaded))
    file.write_text(file.read_text() + "[limits]\nattempts = 2\n")
    journal = Journal(StatePaths(state).journal)
    assert enter(journal, "job-1")
    journal.close()
    code, said = answer("queue", "retry", "job-1", "--config", str(file))
    assert "was changed since the daemon read it" in said, (code, said)
