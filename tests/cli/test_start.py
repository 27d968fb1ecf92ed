"""The help, the version and completion import neither pydantic nor rich: each of them takes longer than all the rest. What shows the state
of a daemon or steers it imports neither pydantic, nor the types of the configuration, nor what only the daemon needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.config import layers, loading
from daemon.config.known import KnownSettings
from daemon.contract.version import __version__
from daemon.operating.monitoring.live import ConfigLoad, LiveFile, write_live
from tests.upgrades.frozen import STATES, thaw

COMPLETION = {"_CKPTD_COMPLETE": "complete_bash", "COMP_WORDS": "ckptd sta", "COMP_CWORD": "1"}


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (("--help",), {}, "Usage: ckptd"), (("queue", "retry", "-h"), {}, "Usage: ckptd queue retry"), (("version",), {}, "ckptd "),
        ((), COMPLETION, "status"),
    ],
)  # fmt: skip
def test_what_needs_no_settings_imports_none(words: tuple[str, ...], environment: dict[str, str], said: str) -> None:
    answer, modules, _ = asked(words, environment)
    assert said in answer and not modules & {"pydantic", "rich", "structlog", "sqlite3"}


@pytest.fixture
def read_before(tmp_path: Path) -> Path:
    """A configuration that its daemon, which was killed, read as it is now."""
    thaw(STATES / "1.0.0.tar.gz", home := tmp_path / "home")
    file = home / "config.toml"
    loaded = ConfigLoad("2026-01-31T00:00:00+00:00", file=str(file), digest=layers.read(file).digest)
    known = KnownSettings.of(loading.load(file)).text()
    write_live(home / "state" / "live.json", LiveFile(pid=1, version=__version__, configuration=loaded, known=known))
    return file


OF_THE_DAEMON = {
    "pydantic", "pydantic_core", "annotated_types", "importlib.metadata", "importlib.resources", "email", "socket", "graphlib",
    "daemon.contract.language.recorded", "daemon.contract.jobs.options", "structlog", "psutil", "apscheduler", "watchdog", "apprise",
    "pydantic_settings", "asyncio", "rich.live", "rich.table", "numpy", "jinja2", "starlette", "daemon.config.settings",
    "daemon.config.loading", "daemon.contract.jobs.figures", "daemon.watching.watcher", "daemon.running.runner",
    "daemon.publishing.publication", "daemon.checkpoints.pinning",
}  # fmt: skip


@pytest.mark.parametrize(
    "words", [("status",), ("status", "--json"), ("list",), ("list", "--state", "succeeded", "--json"), ("show", "done")]
)
def test_what_shows_the_state_imports_nothing_that_only_the_daemon_needs(words: tuple[str, ...], read_before: Path) -> None:
    answer, modules, _ = asked((*words, "--config", str(read_before)))
    assert "succeeded" in answer
    assert not modules & OF_THE_DAEMON
    assert not modules & {
        "logging", "statistics", "decimal", "concurrent.futures", "ctypes", "daemon.watching", "daemon.publishing", "daemon.checkpoints",
    }  # fmt: skip


def test_what_explains_a_checkpoint_imports_nothing_that_watches_or_works(read_before: Path) -> None:
    checkpoint = next((read_before.parent / "runs").glob("*/checkpoint-*"))
    answer, modules, _ = asked(("explain", str(checkpoint), "--config", str(read_before)))
    assert "layout" in answer and not modules & OF_THE_DAEMON


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("queue", "pause"), "paused now"), (("queue", "resume", "waits"), "was not paused"), (("queue", "first", "waits"), "is next"),
        (("queue", "cancel", "waits"), "is cancelled"), (("logs",), "checkpoint"), (("logs", "--job", "done", "--json"), "done-4"),
    ],
)  # fmt: skip
def test_what_steers_the_daemon_and_shows_its_log_imports_nothing_that_only_the_daemon_needs(
    words: tuple[str, ...], said: str, read_before: Path
) -> None:
    log = {"timestamp": "2026-01-31T00:00:00Z", "level": "info", "message": "a checkpoint was taken", "job": "done-4-65e2f9d05339"}
    (read_before.parent / "state" / "ckptd.log").write_text(json.dumps(log) + "\n")
    answer, modules, _ = asked((*words, "--config", str(read_before)))
    assert said in answer and not modules & OF_THE_DAEMON


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("verb", ["status", "list"])
def test_the_answer_is_the_same_whether_the_configuration_is_validated_or_not(
    verb: str, options: tuple[str, ...], read_before: Path
) -> None:
    words = (verb, *options, "--config", str(read_before))
    asked_quickly, asked_in_full = asked(words), asked(words, {"CKPTD_LIMITS__STAGES": "2"})
    assert asked_quickly[0] == asked_in_full[0]
    assert "daemon.config.loading" in asked_in_full[1] - asked_quickly[1]


@pytest.mark.parametrize("of_run", ["", '[select]\npolicy = "every"\nevery = 3\nfinal = false\n', "[limits]\njobs = 2\n"])
def test_an_explanation_is_the_same_whether_the_configuration_is_validated_or_not(of_run: str, read_before: Path) -> None:
    run = read_before.parent / "runs" / "done"
    if of_run:
        (run / "ckptd.toml").write_text(of_run)
    words = ("explain", str(run / "checkpoint-4"), "--json", "--config", str(read_before))
    asked_quickly, asked_in_full = asked(words), asked(words, {"CKPTD_LIMITS__STAGES": "2"})
    quick, full = (json.loads(answer) | {"quiet_seconds": None} for answer, *_ in (asked_quickly, asked_in_full))
    assert quick == full
    assert quick["selected"]["wanted"] == ("every" not in of_run) and bool(quick["selected"]["warning"]) == ("limits" in of_run)
    assert ("daemon.config.loading" in asked_quickly[1]) == bool(of_run) and "daemon.config.loading" in asked_in_full[1]


def test_a_configuration_that_was_changed_since_is_validated(read_before: Path) -> None:
    assert asked(("list", "--config", str(read_before)))[2] == ""
    read_before.write_text(read_before.read_text() + "[limits.x]\njbs = 1\n")
    assert "limits" in asked(("list", "--config", str(read_before)))[2]


def test_what_another_version_read_is_validated(read_before: Path) -> None:
    live = read_before.parent / "state" / "live.json"
    live.write_text(live.read_text().replace(f'"{__version__}"', '"0.0.1"'))
    assert "daemon.config.loading" in asked(("list", "--config", str(read_before)))[1]


def asked(words: tuple[str, ...], environment: dict[str, str] | None = None) -> tuple[str, set[str], str]:
    """The answer of a command line, the modules that it imported, and what it said on stderr."""
    code = (
        "import sys, daemon.cli.main; sys.argv = ['ckptd', *sys.argv[1:]]; daemon.cli.main.main();"
        " print('', *sys.modules, sep='\\n', file=sys.stderr)"
    )
    known = {name: value for name, value in os.environ.items() if not name.startswith(("CKPTD_", "EXPORT_"))}
    answer = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, env={**known, **(environment or {})}
    )
    said, _, modules = answer.stderr.partition("\nsys\n")
    return answer.stdout, {"sys", *modules.split()}, said
