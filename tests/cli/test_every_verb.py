"""What every verb does alike: the configuration, and the refusals before any work. A sweep over the parser, so that none is left out."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len

from daemon.cli.exit_codes import EXIT_USAGE
from daemon.cli.main import app, main
from daemon.config.places.paths import StatePaths, prepare
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import CheckpointRef
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from tests.cli.test_bad_input import ckptd, one_sentence
from tests.cli.test_width import WHOLE
from tests.journal.entries import WORK
from tests.publish.test_run_figures import report
from tests.sampling import some

WITHOUT_CONFIGURATION = (("demo",), ("init",), ("version",))
"""Verbs that make a configuration of their own, or need none."""
NAMES_A_JOB = (("export",), ("queue", "retry"), ("deliver",))
"""Verbs whose argument is not required by the parser, but by themselves."""
Told = Callable[..., tuple[int, str]]


def verbs(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every verb of the command line: its words, and typer's command."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from verbs(command, (*before, name))
        else:
            yield (*before, name), command


VERBS = dict(verbs(typer.main.get_command(app)))
CONFIGURED = [words for words in VERBS if words not in WITHOUT_CONFIGURATION]


def with_arguments(words: tuple[str, ...]) -> list[str]:
    """A verb with a value for each argument that it needs."""
    verb = tuple(word for word in words if not word.startswith("-"))
    needed = [one for one in VERBS[verb].params if one.param_type_name == "argument" and (one.required or verb in NAMES_A_JOB)]
    return [*words, *("x" for _ in needed)]


def test_every_verb_takes_a_configuration_in_the_same_way() -> None:
    for words in CONFIGURED:
        options = {one.name: one for one in VERBS[words].params if one.param_type_name == "option"}
        assert "config" in options, f"ckptd {' '.join(words)} has no --config"
        assert options["config"].opts == ["--config", "-c"] and options["config"].help.startswith(
            "Configuration file. Default: $CKPTD_CONFIG"
        )
        if "json_" in options:
            assert options["json_"].opts == ["--json"]
    assert len(CONFIGURED) >= 22


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a verb in this process: (exit code, what it said on stderr)."""

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["ckptd", *words])
        code = main()
        return code, capsys.readouterr().err

    for name in list(os.environ):
        if name.startswith(("CKPTD_", "EXPORT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.parametrize("by", ["--config", "CKPTD_CONFIG"])
def test_every_verb_refuses_a_wrong_configuration_with_the_same_words(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:  # R5.4
    config = tmp_path / "config.toml"
    config.write_text('[wach]\nx = 1\n[watch]\nroots = ["/nowhere"]\n')
    given = ("--config", str(config)) if by == "--config" else ()
    if not given:
        monkeypatch.setenv("CKPTD_CONFIG", str(config))
    answers = {words: told(*with_arguments(words), *given) for words in CONFIGURED}
    assert {code for code, _ in answers.values()} == {2}, answers
    assert len({said for _, said in answers.values()}) == 1, answers
    assert "wach: is not a known key; did you mean 'watch'?" in answers["verify",][1]
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_every_verb_says_alike_that_its_configuration_is_not_there(told: Told, tmp_path: Path) -> None:
    answers = {words: told(*with_arguments(words), "--config", "missing.toml") for words in CONFIGURED}
    assert {code for code, _ in answers.values()} == {2}
    assert len({said for _, said in answers.values()}) == 1 and "there is no such file" in answers["verify",][1]


def configured(folder: Path) -> Path:
    """A configuration whose state and output lie below `folder`; neither is made."""
    config = folder / "config.toml"
    config.write_text(f'[output]\ndirectory = "{folder}/exports"\n[state]\ndirectory = "{folder}/state"\n')
    return config


def test_every_verb_that_needs_a_job_says_alike_that_there_is_no_journal(told: Told, tmp_path: Path) -> None:
    config = str(configured(tmp_path))
    verbs = [("show",), *(("queue", verb) for verb in ("retry", "cancel", "pause", "resume", "first"))]
    answers = {verb: told(*verb, "x", "--config", config) for verb in verbs}
    assert set(answers.values()) == {answers["show",]}
    code, said = answers["show",]
    assert code == 2 and "no daemon has run on this state directory" in said
    assert not (tmp_path / "state").exists()


def test_verify_without_a_path_looks_at_the_configured_output(told: Told, tmp_path: Path) -> None:
    config = str(configured(tmp_path))
    code, said = told("verify", "--config", config)
    assert code == 2 and f"({tmp_path}/exports): there is no such path" in said
    (tmp_path / "exports").mkdir()
    code, said = told("verify", "--config", config)
    assert code == 2 and "there is no MANIFEST.json in it" in said


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root reads everything")
@pytest.mark.parametrize(
    ("closed", "code", "verbs_that_read", "words"),
    some(
        [
            ("state", 2, ("status", "logs", "check", "formats", "queue retry", "verify", "export"), "this user has no access to it"),
            ("state/lock", 2, ("status", "show", "verify --journal"), "this user has no access to it"),
            (
                "state/journal.sqlite3",
                75,
                ("status", "show", "queue pause"),
                "check that its folder exists and that this user can read and write it",
            ),
        ],
        of=3,
    ),
)
def test_the_state_of_another_user_is_told_in_one_sentence(
    tmp_path: Path, closed: str, code: int, verbs_that_read: tuple[str, ...], words: str
) -> None:
    """Without the right that lets root into everything; what is closed is another user's then, or open to nobody."""
    config = configured(tmp_path)
    Journal(prepare(tmp_path / "state", tmp_path / "exports").journal).close()
    (tmp_path / "state" / "lock").touch()
    (tmp_path / closed).chmod(0)
    if os.geteuid() == 0:
        os.chown(tmp_path / closed, 65534, 65534)
    prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    for verb in verbs_that_read:
        answer = ckptd(tmp_path, *with_arguments(tuple(verb.split())), "--config", config, prefix=prefix)
        assert answer.returncode == code, answer.stderr
        assert words in one_sentence(answer) and str(tmp_path / closed) in one_sentence(answer)


def test_no_help_has_words_that_the_terminal_takes_for_a_style() -> None:
    for words, command in VERBS.items():
        texts = [command.help or "", *(one.help or "" for one in command.params)]
        assert [text for text in texts if "[" in text] == [], f"ckptd {' '.join(words)}"


@pytest.mark.parametrize("words", [(), *VERBS], ids=" ".join)
def test_an_option_that_a_verb_does_not_have_is_one_sentence(told: Told, words: tuple[str, ...]) -> None:
    code, said = told(*words, "--no-such-thing")
    assert code == EXIT_USAGE and said.count("\n") == 1
    assert said.startswith("ckptd: Could not understand the command line: no such option: --no-such-thing")
    assert said.endswith(f". Fix: see {' '.join(('ckptd', *words))} --help.\n")


@pytest.mark.parametrize(
    ("words", "cause", "remedy"),
    [
        ("statsu", "no such command 'statsu'", "did you mean 'status'? See ckptd --help"),
        ("show", "missing argument 'job'", "see ckptd show --help"),
        ("status extra", "unexpected argument: extra", "see ckptd status --help"),
        ("logs -n x", "invalid value for '--lines' / '-n': it should be a whole number", "see ckptd logs --help"),
        ("logs -n -4", "invalid value for '--lines' / '-n': it should be greater than or equal to 0", "see ckptd logs --help"),
        (
            "check --set limits.jobs=2",
            "no such option: --set",
            "give it before the command: ckptd --set KEY=VALUE check. See ckptd check --help",
        ),
        ("--set", "option '--set' requires an argument", "see ckptd --help"),
        ("logs -n", "option '-n' requires an argument", "see ckptd logs --help"),
        ("status --json=3", "option '--json' does not take a value", "see ckptd status --help"),
        ("status --wach", "no such option: --wach (possible options: --watch)", "see ckptd status --help"),
    ],
)
def test_a_mistake_in_the_command_line_is_named_with_what_to_do(told: Told, words: str, cause: str, remedy: str) -> None:
    assert told(*words.split()) == (EXIT_USAGE, f"ckptd: Could not understand the command line: {cause}. Fix: {remedy}.\n")


@pytest.mark.parametrize("words", [(), ("toolchain",), ("config",)], ids=" ".join)
def test_without_a_verb_the_help_is_shown(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ckptd", *words])
    assert main() == EXIT_USAGE
    caught = capsys.readouterr()
    assert "Usage: ckptd" in caught.out and caught.err == ""


ACTS = (("run",), ("bench",), ("install-service",), ("demo",), ("init",), ("uninstall-service",))
"""Verbs that work for long, or change the machine."""


@pytest.fixture
def lived_in(tmp_path: Path) -> Path:
    """A configuration with two exports of one run, of which one failed with a long sentence, and a path that is longer than a line."""
    top = tmp_path / ("a-long-name-of-a-folder-" * 3)
    exports = top / "exports" / "run"
    exports.mkdir(parents=True)
    (top / "state").mkdir()
    journal = Journal(StatePaths(top / "state").journal)
    fault = Fault(code=FaultCode.UNEXPECTED, operation="merge", cause="a reason that goes on and on, " * 8, remedy="try it again " * 9)
    for step in (2, 4):
        folder = exports / f"step-{step}"
        folder.mkdir()
        (folder / "report.json").write_text(json.dumps(report(step)))
        (folder / "MANIFEST.json").write_text(json.dumps({"export_id": f"run-{step}", "files": [], "run": "run", "step": step}))
        reference = CheckpointRef(
            root="/runs",
            run="run",
            step=step,
            path=f"/runs/run/checkpoint-{step}",
            layout="trainer-adapter",
            digest=str(step),
            method="LORA",
        )
        journal.jobs.add(NewJob(f"run-{step}", reference, WORK, (), top / "pin", folder, str(step)))
        journal.jobs.start(f"run-{step}", None)
        journal.jobs.finish(f"run-{step}", "failed" if step == 4 else "succeeded", None, reason=fault.sentence() if step == 4 else None)
    journal.close()
    return configured(top)


WORDS = {
    ("quality",): ["run"], ("show",): ["run-4"], ("compare",): ["run/2", "run/4"], ("prune",): ["--dry-run"], ("explain",): ["."],
    ("config", "show"): ["watch"],
}  # fmt: skip
"""What else a verb is given than an argument that is wrong."""


@pytest.mark.parametrize("words", [words for words in CONFIGURED if words not in ACTS], ids=" ".join)
def test_no_verb_prints_a_line_that_is_wider_than_the_terminal(
    words: tuple[str, ...], lived_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sentences and tables of every verb on a state that was lived in, and refusals; what is to be copied stays in one line."""
    monkeypatch.setenv("COLUMNS", "80")
    given = WORDS.get(words) or with_arguments(words)[len(words) :]
    monkeypatch.setattr(sys, "argv", ["ckptd", *words, *given, "--config", str(lived_in)])
    capsys.readouterr()
    code = main()
    printed = capsys.readouterr()
    lines = [*printed.out.splitlines(), *printed.err.splitlines()]
    assert code in (0, 1, 2, 75) and lines, words
    assert [line for line in lines if cell_len(line) > 80 and not WHOLE.search(line)] == []


NOT_GIVEN = [
    *(words for words, command in VERBS.items() if any(one.param_type_name == "argument" for one in command.params)),
    *(
        (*words, option.opts[0])
        for words, command in VERBS.items() for option in command.params
        if option.param_type_name == "option" and not option.is_flag and not option.hidden and words != ("run",)
    ),
]  # fmt: skip
"""Every verb without its arguments, and with each of its options without the value."""


@pytest.mark.parametrize("line", some(map(" ".join, NOT_GIVEN), of=3))
def test_what_is_not_given_is_called_as_the_usage_of_that_verb_calls_it(line: str, tmp_path: Path) -> None:
    words = line.split()
    answer = ckptd(tmp_path, *words, CKPTD_CONFIG=str(tmp_path / "config.toml"))
    verb = [word for word in words if not word.startswith("-")]
    help_page = ckptd(tmp_path, *verb, "--help").stdout
    usage = help_page.partition("\n\n")[0]
    assert "Traceback" not in answer.stderr
    said = answer.stderr.replace(str(tmp_path), "")
    assert not [name for name in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", said) if name not in usage and name != "CKPTD_CONFIG"]
    if "missing argument" in said or "requires an argument" in said:
        (name,) = re.findall(r"(?:missing argument|option) '([^']+)'", said)
        assert name in (help_page if name.startswith("-") else usage) and f"see ckptd {' '.join(verb)} --help" in said
