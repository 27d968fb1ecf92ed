"""A secret in a configuration, at its place or at any other, right or wrong: nothing that is said or kept shows it."""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import re
import signal
import sys
import tokenize
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import structlog
from pydantic import BaseModel

from daemon.cli.main import main
from daemon.config import receivers
from daemon.config.loading import load
from daemon.config.settings import LogSettings, NotifySettings, Settings
from daemon.config.sources import given_on_command_line
from daemon.contract.faults import secrets
from daemon.contract.faults.errors import Fault, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.secret_url import SecretUrl
from daemon.operating.log import logs
from tests.cli.test_every_verb import VERBS, with_arguments
from tests.sampling import some
from tests.service import Service

CANARY = "json://user:S3CRETword@host.example/S3CRETpath99?token=S3CRETtoken1"
BARE = "S3CRETbare4711WithoutScheme"
SHAPES = {
    "text": "{0}", "list": "[{0}]", "key": "{{ {0} = 1 }}", "value": "{{ x = {0} }}", "both": "{{ {0} = {0} }}", "nested list": "[[{0}]]",
    "list of tables": "[{{ {0} = {0} }}]", "nested table": "{{ {0} = {{ {0} = {0} }} }}", "number first": "[1, {0}]",
    "name": "{{ urls = {0} }}",
}  # fmt: skip
"""Ways in which a value can hold a text, as TOML."""
BROKEN = (
    "{key} = {raw}", '{key} = "{raw}', '{key} = ["{raw}"', '{key} = "{raw}" "{raw}"', '"{raw}" = 1\n"{raw}" = 2', '["{raw}"]\n["{raw}"]',
    '{key} = {{ "{raw}" = 1, "{raw}" = 2 }}', '{key} = "{raw}\\q"', '{key} = "{raw}"\n{key}."{raw}" = 1', "{key} = 1979-99-99{raw}",
    "{raw}",
    '["{raw}".x]\ny = 1\n["{raw}"]\nx = 1', "{key} = '''{raw}",
)  # fmt: skip
"""Texts that are not TOML, or say something twice."""


def keys() -> Iterator[tuple[str, str]]:
    """Each section and key of the settings; "" for the section itself."""
    for section, field in Settings.model_fields.items():
        kind: Any = field.annotation
        yield section, ""
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from ((section, key) for key in kind.model_fields)


def texts() -> Iterator[str]:
    """Configurations, each with a canary: every key, keys that there are not, and every shape."""
    for text in (CANARY, BARE):
        quoted = json.dumps(text)
        for section, key in keys():
            if text is BARE and section != "notify":
                continue
            for shape in SHAPES.values():
                value = shape.format(quoted)
                yield f"[{section}]\n{key} = {value}\n" if key else f"{section} = {value}\n"
        for section in ("notify", "deliver", "notfy", "output", "base.map", "merge.add", "validate.thresholds", "validate.thresholds.onnx"):
            if text is BARE and section not in ("notify", "deliver"):
                continue
            yield f"[{section}]\n{quoted} = {quoted}\n"
            yield f"[{section}]\nurl = {quoted}\nURLS = [{quoted}]\nx = {{ {quoted} = {quoted} }}\n"
            yield f"[{section}.{quoted}]\nx = {quoted}\n"
        yield f"[notify]\nurls = [1, {quoted}]\n[select]\npolicy = 5\n"
        yield f"[notify.{quoted}]\n[notify.urls]\nx = 1\n"
    yield f"{json.dumps(CANARY)} = 1\n"
    yield f"[{json.dumps(CANARY)}]\nx = 1\n"


def broken() -> Iterator[str]:
    """Texts that are not TOML and hold a canary."""
    for form in BROKEN:
        for key in ("urls", "x"):
            yield "[notify]\n" + form.format(key=key, raw=CANARY)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", {})
    monkeypatch.setattr("daemon.config.sources.given_on_command_line", {})
    given_on_command_line.clear()


@pytest.fixture
def without_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """What leaves is not looked through: messages must be made without secrets."""
    monkeypatch.setattr(secrets, "_keep_text", lambda text: None)
    monkeypatch.setattr(secrets, "_NET", re.compile(r"(\A\Z)(?!)"))


def leaks(text: str) -> bool:
    return "s3cret" in text.lower()


def said_of(path: Path) -> str:
    """All that comes of loading a file: the settings in every form, or the error with its traceback."""
    try:
        settings = load(path)
    except UsageError as error:
        return f"{error} {error!r} {error.fault!r} {error.fault.model_dump_json()} " + "".join(traceback.format_exception(error))
    return f"{settings} {settings!r} {settings.notify.receivers!r} {settings.model_dump()} {settings.model_dump_json()}"


def refuse_leaks(write: Callable[[str], Path], configurations: list[str]) -> None:
    for text in configurations:
        said = said_of(write(text))
        assert not leaks(said), f"{text}\n→ {said[:2000]}"


@pytest.mark.usefixtures("without_net")
def test_no_message_about_notifications_shows_a_secret_of_them(write: Callable[[str], Path]) -> None:
    refuse_leaks(write, [*(text for text in texts() if "[notify" in text), *broken()])


@pytest.mark.usefixtures("without_net")
@pytest.mark.parametrize("part", some(range(20), 7))
def test_no_message_about_a_configuration_shows_a_secret_of_it(write: Callable[[str], Path], part: int) -> None:
    everything = [text for text in texts() if "[notify" not in text]
    assert len(everything) > 1000
    refuse_leaks(write, everything[part::20])


@pytest.mark.usefixtures("without_net")
def test_a_token_in_the_place_of_a_word_is_not_shown_in_lower_case_either(write: Callable[[str], Path]) -> None:
    refuse_leaks(write, ['[log]\nlevel = "S3CRETA1b2C3d4E5f6G7h8"\n'])


@pytest.mark.usefixtures("without_net")
@pytest.mark.parametrize("part", some(range(8), 8))
def test_no_message_about_the_environment_or_an_option_shows_a_secret_of_it(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    file = write("")
    for text in (CANARY, BARE):
        meant = [(section, key) for section, key in keys() if text is CANARY or section == "notify"]
        variables = [f"CKPTD_{section}__{key}".upper().rstrip("_") for section, key in meant]
        variables += ["CKPTD_NOTIFY__URL", "CKPTD_NOTIFY__X", f"CKPTD_NOTIFY__{BARE}", f"CKPTD_{BARE}"]
        variables += ["CKPTD_NOTFY__URLS", "EXPORT_ENABLE_ONNX"] if text is CANARY else []
        values = (text, json.dumps([text]), json.dumps({text: text}), json.dumps({"urls": text}), f'{{"urls": ["{text}')
        for name, value in list(itertools.product(variables, values))[part::8]:
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                assert not leaks(said_of(file)), f"{name}={value}"
        for key in [*(f"{section}.{key}".rstrip(".") for section, key in meant[part::8]), f"notify.{BARE.lower()}"]:
            given_on_command_line[key] = text
            assert not leaks(said_of(file)), f"--set {key}"
            given_on_command_line.clear()


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    f'[notify]\nurls = "{CANARY}"\n', f'[notify]\nurls = ["{CANARY}", "slack://{BARE}", "{BARE}"]\n', f'[notify]\n"{CANARY}" = 1\n',
    f'[output]\ndirectory = "{CANARY}"\n', f'[notify]\nurls = {CANARY}\n', f'"{CANARY}" = 1\n',
])  # fmt: skip
def test_no_verb_shows_or_keeps_a_secret_of_a_configuration(
    write: Callable[[str], Path], text: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    config = write(f'{text}[state]\ndirectory = "{state}"\n' if "directory = " not in text else text)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("daemon.publishing.telling.sender.LIMIT_SECONDS", 3.0)
    monkeypatch.chdir(tmp_path)
    for words in VERBS:
        if words in (("demo",), ("init",), ("run",), ("bench",)):
            continue
        for json_ in ([], ["--json"]) if any(one.name == "json_" for one in VERBS[words].params) else ([],):
            named = ["--config", str(config)] if any(one.name == "config" for one in VERBS[words].params) else []
            dry = ["--dry-run"] if words == ("install-service",) else []
            monkeypatch.setattr(sys, "argv", ["ckptd", *with_arguments(words), *named, *json_, *dry])
            main()
            said = "".join(capfd.readouterr())
            assert not leaks(said), f"{words}: {said}"
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != config)
    assert b"s3cret" not in kept.lower()


def test_a_secret_on_the_command_line_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (
        ["--set", f"notify.urls={CANARY}", "status"], ["--set", CANARY, "status"], ["--set", f"notify.url={CANARY}", "status"],
        [CANARY], ["status", CANARY], ["config", "show", CANARY], ["status", f"--{CANARY}"], ["--set", f"{CANARY}=1", "config", "show"],
        ["show", CANARY], ["--set", f"limits.jobs={CANARY}", "config", "show"],
    ):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["ckptd", *words])
        main()
        said = capsys.readouterr()
        assert not leaks(said.out + said.err), words


@pytest.mark.parametrize("given", [
    f"notify.urls={CANARY}", f"notify={CANARY}", f"notify.urls_file={CANARY}", f"notify.on={CANARY}", f"deliver.x={BARE}",
    f"limits.jobs={CANARY}", f'base.map={{"x": "{CANARY}"}}', f"{CANARY}=1", f"output.directory={CANARY}",
])  # fmt: skip
def test_a_secret_on_the_command_line_is_refused_with_the_places_where_it_belongs(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ckptd", "--set", given, "status"])
    assert main() == 2
    said = capsys.readouterr()
    ours = given.startswith("deliver")
    where = "the configuration, or set the variable CKPTD_DELIVER" if ours else "the configuration or the file of notify.urls_file"
    assert f"others can see a command line. Fix: write it into {where}" in said.err
    assert (ours or "CKPTD_NOTIFY__URLS" in said.err) and not leaks(said.out + said.err)


def test_the_last_net_catches_what_a_library_says(tmp_path: Path) -> None:
    load_ = NotifySettings(urls=(SecretUrl(CANARY), SecretUrl(f"slack://{BARE}/x"), SecretUrl('json://h/?k="S3CRET\\quoted"')))
    secrets.keep(load_.urls)
    for said in (
        CANARY,
        f"no host in {CANARY}",
        "401 for url: //user:S3CRETword@host.example/x",
        "token=S3CRETtoken1",
        f"x {BARE} y",
        repr(CANARY),
    ):
        assert not leaks(secrets.censored(said)), said
    assert not leaks(secrets.censored(json.dumps({"x": 'json://h/?k="S3CRET\\quoted"'})))
    fault = Fault(code=FaultCode.UNEXPECTED, operation=f"send {CANARY}", cause=CANARY, remedy=CANARY, path=CANARY, details=CANARY)
    assert not leaks(fault.model_dump_json() + fault.sentence())
    file, stream = tmp_path / "log", io.StringIO()
    logs.set_up(LogSettings(), file, stderr=False)
    try:
        raise ValueError(f"cannot parse {CANARY}")
    except ValueError as error:
        structlog.get_logger("x").exception(f"a {CANARY} b", url=CANARY, more=[CANARY, {"k": CANARY}], error=error, settings=load_)
        logging.getLogger("library").warning("got %s", CANARY)
    assert not leaks(file.read_text()) and len(file.read_text().splitlines()) == 2
    assert stream.getvalue() == ""


def test_words_and_paths_of_a_url_are_not_hidden_elsewhere() -> None:
    secrets.keep(["json://checkpoint", "json://localhost/exports", "/data/runs", "notifications"])
    for said in ("the checkpoint in /data/runs is exported", "notifications wait", "https://docs.example.org/page#x", "a@b.example"):
        assert secrets.censored(said) == said


def test_the_path_of_a_store_is_no_secret() -> None:
    secrets.keep("sqlite:////srv/pytest-850/exports7/mlflow.db")
    secrets.keep("file:/srv/pytest-851/mlruns")
    assert secrets.censored("/srv/pytest-850/exports7 and /srv/pytest-851") == "/srv/pytest-850/exports7 and /srv/pytest-851"


@pytest.mark.parametrize(
    "value", ["Qwen2.5-0.5B-Instruct", "/models/Qwen3-30B-A3B", "checkpoint-1000", "onnx-int8", "4GiB", "* 20-23,0-6 * * *", 5]
)
def test_ordinary_values_are_shown(value: object) -> None:
    assert secrets.shown(value) == repr(value)


def test_urls_come_from_a_file_too_and_from_the_service_managers_credential(
    write: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "urls"
    file.write_text(f"# services\n{CANARY}\n\nslack://{BARE}/x\n")
    settings = load(write(f'[notify]\nurls = ["json://localhost/a"]\nurls_file = "{file}"\n'))
    assert [one.place for one in settings.notify.receivers] == [
        "notify.urls.0 (json)",
        "notify.urls_file.0 (json)",
        "notify.urls_file.1 (slack)",
    ]
    assert settings.notify.receivers[1].url.get_secret_value() == CANARY and not leaks(f"{settings!r} {settings.notify.receivers!r}")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / receivers.CREDENTIAL).write_text(f"json://{BARE}\n")
    assert [one.place for one in load(write("")).notify.receivers] == ["notify.urls_file.0 (json)"]
    other = load(write(f'[notify]\nurls_file = "{file}"\n'))
    assert len(other.notify.receivers) == 2 and other != load(write("")), "another file of URLs is another configuration"


def test_a_file_that_only_its_owner_may_read_reaches_the_service_as_a_credential(
    write: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, given = tmp_path / "urls", tmp_path / "given"
    file.write_text("slack://owner\n")
    given.mkdir()
    (given / receivers.CREDENTIAL).write_text(f"json://{BARE}\n")
    config = write(f'[notify]\nurls_file = "{file}"\n')
    monkeypatch.setattr(receivers, "is_closed", lambda path: path == file)  # root may read everything
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(given))
    assert [one.place for one in load(config).notify.receivers] == ["notify.urls_file.0 (json)"]
    file.unlink()
    monkeypatch.undo()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(given))
    assert "notify.urls_file: there is no such file" in said_of(config), "a wrong path is no missing right"


def test_who_asks_about_the_daemon_needs_no_right_to_read_the_addresses(
    write: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "urls"
    file.write_text("slack://owner\n")
    config = write(f'[notify]\nurls_file = "{file}"\n')
    monkeypatch.setattr("daemon.config.notify.is_closed", lambda path: path == file)  # root may read everything
    assert load(config, sends=False).notify.receivers == () and len(load(config).notify.receivers) == 1
    monkeypatch.undo()
    assert len(load(config, sends=False).notify.receivers) == 1


def test_who_is_told_of_what_counts_the_addresses_of_the_file(write: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "urls").write_text("slack://owner\n")
    notify = load(write(f'[notify]\nurls_file = "{tmp_path / "urls"}"\non = ["failed", "waiting"]\n')).notify
    assert notify.wants("failed") and notify.wants("stuck") and not notify.wants("disk_low")
    assert not load(write("")).notify.wants("failed")
    asked = {
        path.name for path in (Path(__file__).parents[2] / "daemon").rglob("*.py") if re.search(r"notify\.urls\b(?!_file)", code_of(path))
    }
    assert asked == set(), "`wants` asks for the addresses of the file too"


def code_of(path: Path) -> str:
    """A module without its texts and comments."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return "".join(token.string for token in tokens if token.type not in (tokenize.STRING, tokenize.COMMENT))


@pytest.mark.parametrize(("make", "why"), [
    (lambda path: None, "there is no such file"), (lambda path: path.mkdir(), "the file is no plain file"),
    (lambda path: os.mkfifo(path), "the file is no plain file"),
    (lambda path: path.write_bytes(b"S3CRET\xff"), "the file is not UTF-8 text"),
    (lambda path: path.write_text("S3CRET" * 20_000), "the file is no plain file of at most 64 KiB"),
    (lambda path: path.write_text("S3CRET\n" * 200), "the file has 200 URLs"),
    (lambda path: path.write_text('[notify]\nurls = ["json://S3CRET"]\n'), "line 1 is no URL"),
    (lambda path: path.write_text("# mine\n\njson://localhost/a\nS3CRET:word@host\n"), "line 4 is no URL"),
    (lambda path: path.write_text("json://localhost/a\nS3CRET://\n"), "line 2 is no URL"),
])  # fmt: skip
def test_a_file_of_urls_that_can_not_be_used_is_refused_without_showing_it(
    write: Callable[[str], Path], tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    make(tmp_path / "urls")
    said = said_of(write(f'[notify]\nurls_file = "{tmp_path}/urls"\n'))
    assert f"notify.urls_file: {why}" in said and not leaks(said)


@pytest.mark.slow
def test_a_daemon_that_reads_secrets_wrongly_and_rightly_again_keeps_none(make_service: Callable[..., Service]) -> None:
    daemon = make_service(extra=f'[notify]\nurls = ["{CANARY}"]\n')
    good = daemon.config.read_text()
    daemon.start()
    daemon.wait_for(lambda value: value["daemon"]["healthy"])
    everything = []
    wrong = [
        good.replace(f'["{CANARY}"]', f'"{CANARY}"'),
        good + f'"{CANARY}" = 1\n',
        good.replace('urls = ["', 'urls = ["\n'),
        "x = " + CANARY,
    ]
    for text in [*wrong, *(good + one for one in [one for one in texts() if one.startswith("[deliver")][::3])]:
        daemon.config.write_text(text)
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.run_verb("reload") != 0
        everything.append(daemon.said)
        for verb in (("status",), ("status", "--json"), ("check",), ("config", "show"), ("logs",)):
            daemon.run_verb(*verb)
            everything.append(daemon.said)
    arguments = Path(f"/proc/{daemon.process.pid}/cmdline").read_text() if daemon.process else ""
    daemon.config.write_text(good)
    assert daemon.run_verb("reload") == 0 and daemon.run_verb("status") == 0
    everything += [daemon.said, daemon.log(), arguments]
    assert daemon.stop() == 0
    daemon.config.write_text(wrong[0])
    daemon.start()
    assert daemon.wait_dead() == 2
    everything.append(daemon.log())
    kept = b"".join(path.read_bytes() for path in daemon.state.rglob("*") if path.is_file())
    assert not leaks("".join(everything)) and b"s3cret" not in kept.lower()


def test_the_type_of_a_secret_shows_nothing_of_it() -> None:
    (annotation,) = {one for one in get_args(NotifySettings.model_fields["urls"].annotation) if one is not Ellipsis}
    assert annotation is SecretUrl
    value = SecretUrl(CANARY)
    for form in (str(value), repr(value), f"{value}", f"{value!r:>5}", json.dumps([value], default=str)):
        assert not leaks(form)
    assert str(value) == "json://***" and value == SecretUrl(CANARY) and value != SecretUrl("json://x")
