"""Keys of earlier versions still count, and what takes their place is said for each place that sets one."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.config import layers, older_keys
from daemon.config.loading import load
from daemon.config.settings import Settings
from daemon.config.sources import given_on_command_line
from daemon.operating.diagnosis.doctor import examine


def setting(key: str) -> object:
    """The default of a dotted key; AttributeError for one that is none."""
    value: object = Settings()
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_every_key_of_an_earlier_version_still_is_one_and_its_new_name_too() -> None:
    for key in (*older_keys.HIDDEN, *older_keys.RENAMED.values()):
        setting(key)


def test_each_place_that_sets_one_is_named_with_what_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[watch]\nstale_seconds = 7.0\n[validate.thresholds.onnx-int8]\nkl = 0.25\n[limits]\njobs = 2\n[toolchains]\ninstaller = "uv"\n'
    )
    monkeypatch.setenv("CKPTD_VALIDATE__THRESHOLDS__ONNX__KL", "0.5")
    monkeypatch.setitem(given_on_command_line, "limits.crashes", "9")
    settings = load(file)
    assert (settings.watch.stale_seconds, settings.limits.crashes) == (7.0, 9)
    assert (settings.validate.thresholds["onnx-int8"].kl, settings.validate.thresholds["onnx"].kl) == (0.25, 0.5)
    assert settings.older == (
        f"{file}: validate.thresholds is the name of an earlier version, and still counts; write validate.limits instead",
        "CKPTD_VALIDATE__THRESHOLDS__ONNX__KL (environment): validate.thresholds is the name of an earlier version, and still counts;"
        " write validate.limits instead",
        f"{file}: watch.stale_seconds is no key of the configuration any more: ckptd has a value that fits; what you set still counts,"
        " but leave it out",
        "--set (command line): limits.crashes is no key of the configuration any more: ckptd has a value that fits; what you set still"
        " counts, but leave it out",
        f"{file}: toolchains.installer is no key of the configuration any more, and has no effect: pip installs the same packages;"
        " leave it out",
    )
    assert set(settings.older) <= set(examine(settings, file).warnings), "`ckptd check` says it"


def test_a_configuration_of_today_says_nothing_of_earlier_versions(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[limits]\njobs = 2\n[validate.limits.onnx]\nkl = 0.3\n")
    assert load(file).older == () == older_keys.notes(layers.Files())
