"""What a daemon writes of its settings is what its files say; verbs that only look take that in their place, or validate the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.config import layers
from daemon.config.known import KnownSettings
from daemon.config.loading import load
from daemon.config.settings import Settings
from daemon.contract.faults.secrets import keep
from daemon.contract.version import __version__
from daemon.operating.monitoring.as_read import settings_as_read
from daemon.operating.monitoring.live import ConfigLoad, LiveFile, read_live, write_live
from tests.service import Service, making

MORE = (
    '[select]\npolicy = "every"\nevery = 500\nfinal = false\nbest_by = "quality"\n'
    '[base]\nsearch = ["models"]\n[base.map]\n"org/name" = "/models/name"\n'
    '[merge]\nweight = 0.5\n[[merge.add]]\npath = "beside"\nweight = 2\n'
)


@pytest.fixture
def make_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Service]]:
    for name in [name for name in os.environ if name.startswith(("CKPTD_", "EXPORT_"))]:
        monkeypatch.delenv(name)
    yield from making(Service, tmp_path)


def as_read(config: Path) -> KnownSettings | None:
    return settings_as_read(config, layers.read(config))


def validated(config: Path) -> KnownSettings:
    return replace(KnownSettings.of(load(config, ask_running=True)), file=config)


def test_a_daemon_writes_the_settings_that_its_files_say(make_service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch) -> None:
    service = make_service(extra=MORE)
    service.start()
    service.wait_for(lambda status: status["daemon"]["healthy"], 60)
    assert as_read(service.config) == validated(service.config)
    service.config.write_text(service.config.read_text().replace("every = 500", "every = 250"))
    assert as_read(service.config) is None
    assert service.run_verb("reload") == 0, service.said
    known = as_read(service.config)
    assert known == validated(service.config) and known is not None and known.select.every == 250
    monkeypatch.setenv("CKPTD_SELECT__EVERY", "3")
    assert as_read(service.config) is None
    assert service.stop() == 0


def test_a_daemon_with_values_from_elsewhere_writes_none(make_service: Callable[..., Service]) -> None:
    service = make_service(extra=MORE)
    service.environment["CKPTD_SELECT__EVERY"] = "3"
    service.start()
    service.wait_for(lambda status: status["daemon"]["healthy"], 60)
    live = read_live(service.state / "live.json")
    assert live.configuration is not None and live.known == ""
    assert service.stop() == 0


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a configuration, and the live file of a daemon of another user that has read it."""
    for name in [name for name in os.environ if name.startswith(("CKPTD_", "EXPORT_"))]:
        monkeypatch.delenv(name)

    def write(text: str, home: str) -> Path:
        config, state = tmp_path / "config.toml", tmp_path / "state"
        state.mkdir()
        config.write_text(f'[state]\ndirectory = "{state}"\n{text}')
        loaded = ConfigLoad("2026-01-31T00:00:00+00:00", file=str(config), digest=layers.read(config).digest)
        known = replace(KnownSettings.of(load(config)), home=home).text()
        write_live(state / "live.json", LiveFile(version=__version__, configuration=loaded, known=known))
        return config

    return write


def test_another_users_settings_count_where_no_path_is_below_a_home_directory(written: Callable[..., Path]) -> None:
    config = written(MORE, home="/home/other")
    known = as_read(config)
    assert known is not None and replace(known, home=validated(config).home) == validated(config)


@pytest.mark.parametrize("text", ['[watch]\nroots = ["~/runs"]\n', '[base.map]\n"org/name" = "~/name"\n'])
def test_another_users_home_directory_is_not_taken_for_ones_own(text: str, written: Callable[..., Path]) -> None:
    assert as_read(written(text, home="/home/other")) is None


def test_ones_own_home_directory_is(written: Callable[..., Path]) -> None:
    config = written('[watch]\nroots = ["~/runs"]\n', home=os.path.expanduser("~"))
    assert as_read(config) == validated(config)


@pytest.mark.parametrize("linked", ["config", "folder"])
def test_relative_paths_of_a_link_are_not_those_of_the_configuration_that_it_leads_to(
    linked: str, written: Callable[..., Path], tmp_path: Path
) -> None:
    config, there = written(MORE, home=os.path.expanduser("~")), tmp_path / "there"
    if linked == "folder":
        there.symlink_to(config.parent)
    else:
        there.mkdir()
        (there / config.name).symlink_to(config)
    assert as_read(config) == validated(config)
    assert as_read(there / config.name) is None
    assert validated(there / config.name).base.search == (there / "models",)


def test_a_link_in_the_same_folder_has_the_same_paths(written: Callable[..., Path], tmp_path: Path) -> None:
    config = written(MORE, home=os.path.expanduser("~"))
    beside = tmp_path / "state" / ".." / "beside.toml"
    (tmp_path / "beside.toml").symlink_to(config)
    assert as_read(beside) == validated(beside)


@pytest.mark.parametrize("damaged", ["", "settings", "{}", '{"home": "/", "watch": null}', "[" * 100_000])
def test_settings_that_can_not_be_read_are_none(damaged: str) -> None:
    assert KnownSettings.read(damaged) is None


def test_what_must_not_be_shown_is_not_written() -> None:
    known = KnownSettings.of(Settings())
    keep("S3CRETfolderOFthistest")
    assert known.text() and not replace(known, home="/srv/S3CRETfolderOFthistest").text()
