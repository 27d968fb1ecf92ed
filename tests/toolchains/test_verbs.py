"""`ckptd toolchain` as a user types it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from daemon.cli.main import app
from daemon.contract.faults.errors import UsageError
from daemon.toolchains import install
from daemon.toolchains.overview import costs
from daemon.toolchains.registry import definitions
from tests.toolchains.conftest import Fake, copied


@pytest.fixture
def ckptd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command, with a state of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, list(words), env={"XDG_STATE_HOME": str(tmp_path / "xdg")})


def test_every_toolchain_says_what_it_costs_and_what_brings_it_before_anything_is_fetched(ckptd: Callable[..., Result]) -> None:  # R5.4
    unmeasured = [name for name, known in definitions().items() if known.download is None]
    assert unmeasured == [], "measure what installing it downloads, and write it into its .toml"
    listed = json.loads(ckptd("toolchain", "list", "--json").stdout)["toolchains"]
    shown = [" ".join(line.split()) for line in ckptd("formats", "--all").stdout.splitlines()]
    for name, known in definitions().items():
        row, command = listed[name], f"ckptd toolchain install {name}"
        assert (row["download"], row["disk"], row["seconds"]) == (known.download, known.disk, known.seconds)
        assert (row["installed"], row["folders"], row["command"]) == (False, [], command)
        (line,) = [line for line in shown if line.startswith((f"toolchain {name} (", f"toolchain {name}:"))]
        assert f"`{command}` {costs(known.fetched, known.disk, known.seconds)}" in line
    missing = ckptd("--set", "export.variants=gguf-q8_0", "check")
    assert missing.exit_code != 0 and "which is not installed (it downloads about" in " ".join(missing.stdout.split())


def test_of_several_a_wrong_name_is_told_before_anything_is_fetched(ckptd: Callable[..., Result], tmp_path: Path) -> None:
    answer = ckptd("toolchain", "install", "optimum", "nothing")
    assert isinstance(answer.exception, UsageError) and answer.exception.fault.code == "no-such-toolchain"
    assert not list(tmp_path.rglob(".optimum*")), "nothing was begun"


def test_the_doctor_says_which_installed_toolchain_no_longer_works(fake: Fake, tmp_path: Path, ckptd: Callable[..., Result]) -> None:
    chains = copied(fake, tmp_path / "copy")
    (row,) = install.examine_all(chains)
    assert row.works and row.error is None and row.folder
    shutil.rmtree(next(Path(row.folder).glob("lib/python*/site-packages/fakelib*.dist-info")))
    (row,) = install.examine_all(chains)
    assert not row.works and "its packages are not the ones that were installed" in str(row.error) and "--again" in str(row.error)
    nothing = ckptd("toolchain", "doctor")
    assert nothing.exit_code == 0 and "No toolchain is installed" in nothing.stdout
