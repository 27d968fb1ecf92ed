"""`[[notify.targets]]`: what is wrong with one is said by its place, without its secrets; what 1.0 wrote means what it meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from daemon.cli.main import app
from daemon.config.loading import WrongValues, load
from daemon.config.notify import NotifySettings
from daemon.operating.diagnosis.doctor import examine
from daemon.operating.reload import changes

SECRET = "whsec_" + "UzNDUkVU" * 5
HOOK = 'name = "hook"\nwebhook = "https://host/S3CRET/path"\nsecret_file = "secret"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    return tmp_path / "config.toml"


def write(config: Path, *tables: str) -> Path:
    config.write_text("".join(f"[[notify.targets]]\n{table}\n" for table in tables))
    return config


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('name = "x"', "give exactly one of url, url_file, webhook, command, heartbeat, tensorboard, mlflow and wandb"),
        (HOOK + 'command = ["x"]', "notify.targets.0: give exactly one of"),
        ('name = "x"\nwebhook = "https://h/S3CRET"', "webhook and secret_file belong together"),
        ('name = "x"\nwebhook = "http://h/S3CRET"\nsecret_file = "secret"', "webhook and heartbeat are https:// addresses"),
        ('name = "x"\nheartbeat = "http://h/S3CRET"', "webhook and heartbeat are https:// addresses"),
        ('name = "x"\nheartbeat = "https://a..S3CRET/"', "webhook and heartbeat are https:// addresses"),
        ('name = "x"\ncommand = ["./hook.sh"]', "notify.targets.0: a command begins with an absolute path"),
        ('name = "x"\nurl_file = "nowhere"', "notify.targets.0.url_file: there is no such file"),
        ('name = "x"\nwebhook = "https://h/S3CRET"\nsecret_file = "config.toml"', "notify.targets.0.secret_file: the file is no secret"),
        ('name = "x x"\nurl = "json://S3CRET"', "notify.targets.0.name"),
        (HOOK + 'quiet = "22-7"', "notify.targets.0.quiet: must be two times of the day"),
        (HOOK + 'quiet = "22:00-22:00"', "notify.targets.0.quiet: must be two times of the day"),
        (HOOK + 'events = ["failed"]', "notify.targets.0.events: is not a known key; did you mean 'on'?"),
        (HOOK + 'quiet_hours = "S3CRET"', "notify.targets.0.quiet_hours: is not a known key; did you mean 'quiet'?"),
        (HOOK + 'S3CRETx = "a"', "notify.targets.0.***: is not a known key"),
        (HOOK + 'on = ["finished"]', "notify.targets.0.on.0: must be 'found'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_target_is_said_by_its_place_and_without_its_secret(config: Path, table: str, said: str) -> None:
    with pytest.raises(WrongValues) as caught:
        load(write(config, table))
    assert said in str(caught.value)
    assert "S3CRET" not in str(caught.value) and "UzND" not in str(caught.value)


def test_two_targets_of_one_name_are_refused(config: Path) -> None:
    with pytest.raises(WrongValues, match="each needs a name of its own"):
        load(write(config, HOOK, HOOK))


def test_neither_show_nor_check_nor_a_change_shows_a_secret_and_names_stay_readable(config: Path) -> None:
    before = load(write(config, HOOK + 'quiet = "22:00-07:00"'))
    shown = CliRunner().invoke(app, ["config", "show", "notify", "--config", str(config)]).output
    assert "S3CRET" not in shown and "UzND" not in shown and "https://***" in shown
    assert "22:00-07:00" in shown and '"hook"' in shown
    after = load(write(config, HOOK.replace("/path", "/other")))
    assert changes(before, after) == ("notify.targets: changed",)
    (config.parent / "secret").write_text(SECRET.replace("UzND", "UzNE"))
    assert changes(after, load(config)) == ("notify.targets: changed",)
    assert load(config).notify.receivers[0].place == "notify.targets.hook (webhook)"


def test_what_1_0_wrote_means_what_it_meant() -> None:
    old = NotifySettings.model_validate({"urls": ["json://h"], "on": ["failed", "waiting"]})
    assert old.receivers[0].on == {"failed", "stuck", "recovered"}, "1.0 told the end of what waited without a word for it"
    assert NotifySettings.model_validate({"urls": ["json://h"], "on": ["failed"]}).receivers[0].on == {"failed"}
    assert old.wants("stuck") and not old.wants("succeeded")
    target = NotifySettings.model_validate({"targets": [{"name": "x", "url": "json://h", "on": ["waiting"]}]})
    assert target.receivers[0].on == {"stuck"}, "a target says exactly what it wants"


def test_a_heartbeat_is_told_of_nothing(config: Path) -> None:
    settings = load(write(config, 'name = "alive"\nheartbeat = "https://h/S3CRET"'))
    assert not settings.notify.wants("failed", "succeeded", "daemon_unwell")


def test_targets_can_be_given_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTD_NOTIFY__TARGETS", json.dumps([{"name": "x", "command": ["/bin/true"], "on": ["failed"]}]))
    (receiver,) = load(None).notify.receivers
    assert (receiver.command, receiver.on) == (("/bin/true",), {"failed"})


def test_check_names_a_program_that_is_not_there_and_a_secret_that_others_may_read(config: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").chmod(0o644)
    state = f'\n[state]\ndirectory = "{tmp_path}/state"\n[watch]\nroots = ["{tmp_path}/runs"]\n[output]\ndirectory = "{tmp_path}/out"\n'
    config.write_text(f'[[notify.targets]]\n{HOOK}[[notify.targets]]\nname = "script"\ncommand = ["/no/program"]\n{state}')
    config.chmod(0o600)
    said = examine(load(config), config)
    script = [problem for problem in said.problems if problem.startswith("notify.targets.script")]
    assert [problem.partition(";")[0] for problem in script] == [
        'notify.targets.script (command): there is no program "/no/program" that can be run'
    ]
    assert any(f"notify.targets.hook.secret_file: others may read {tmp_path}/secret" in warning for warning in said.warnings)
    (tmp_path / "secret").chmod(0o600)
    assert not any("may read" in warning and "notify" in warning for warning in examine(load(config), config).warnings)
