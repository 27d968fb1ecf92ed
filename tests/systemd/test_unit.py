"""The unit file, and the protocol that it relies on."""

from __future__ import annotations

import configparser
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.cli.exit_codes import EXIT_TEMPORARY, EXIT_USAGE
from daemon.cli.main import main
from daemon.config.places.states import state_of_system
from daemon.operating import systemd
from daemon.system.lock import locked
from tests.service import Service

UNIT = Path(__file__).parents[2] / "daemon" / "installing" / "units" / "ckptd.service"
SLICE = UNIT.with_suffix(".slice")
DROP_INS = UNIT.parent / "drop-ins"


def test_the_unit_passes_systemd_analyze_verify(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        assert not os.environ.get("CI"), "CI must have systemd-analyze"
        pytest.skip("systemd-analyze is not installed here")
    command = Path(sys.executable).with_name("ckptd")
    text = UNIT.read_text().replace("/opt/ckptd/.venv/bin/ckptd", str(command)).replace("=ckptd\nGroup=ckptd", "=root\nGroup=root")
    (tmp_path / "ckptd.service").write_text(text)
    shutil.copyfile(SLICE, tmp_path / "ckptd.slice")
    (tmp_path / "ckptd.service.d").mkdir()
    for file in DROP_INS.iterdir():  # also what is commented out there
        (tmp_path / "ckptd.service.d" / file.name).write_text(re.sub(r"(?m)^#(?=[A-Z]\w+=)", "", file.read_text()))
    for name in ("ckptd.service", "ckptd.slice"):
        answer = subprocess.run([tool, "--man=no", "verify", str(tmp_path / name)], capture_output=True, text=True, check=False)
        assert answer.returncode == 0
        assert not complaints(answer.stderr), answer.stderr


def complaints(said: str) -> list[str]:
    """What systemd says of our units, but for the two keys that it knows since version 254, and ignores before."""
    later = re.compile(r"Unknown key( name)? '(RestartSteps|RestartMaxDelaySec)' in section .?Service.?, ignoring")
    version = re.match(r"systemd (\d+)", subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=False).stdout)
    old = version is not None and int(version[1]) < 254
    return [line for line in said.splitlines() if re.search(r"ckptd\.(service|slice)|\.conf:", line) and not (old and later.search(line))]


def test_a_daemon_that_ends_at_once_is_started_with_growing_pauses_and_never_given_up() -> None:
    for unit in (UNIT, UNIT.parent / "user" / UNIT.name):
        parsed = configparser.ConfigParser(strict=False, interpolation=None)
        parsed.read_string(unit.read_text())
        assert parsed["Unit"]["StartLimitIntervalSec"] == "0"
        first, steps, last = (int(parsed["Service"][key]) for key in ("RestartSec", "RestartSteps", "RestartMaxDelaySec"))
        assert 1 <= first <= 10 and steps > 1 and 30 <= last <= 120


def exposure(folder: Path, *drop_ins: str) -> float:
    """What `systemd-analyze security` says of our unit with some of our drop-ins; 0 is closed, 10 open."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        assert not os.environ.get("CI"), "CI must have systemd-analyze"
        pytest.skip("systemd-analyze is not installed here")
    shutil.copyfile(UNIT, folder / UNIT.name)
    (folder / f"{UNIT.name}.d").mkdir()
    for name in drop_ins:
        shutil.copyfile(DROP_INS / f"{name}.conf", folder / f"{UNIT.name}.d" / f"{name}.conf")
    answer = subprocess.run([tool, "security", "--offline=true", str(folder / UNIT.name)], capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for ckptd.service: ([0-9.]+)", answer.stdout)
    assert found, answer.stdout + answer.stderr
    return float(found[1])


def test_the_service_is_hardly_exposed(tmp_path: Path) -> None:
    assert exposure(tmp_path) <= 1.0


@pytest.mark.parametrize(
    ("names", "most"),
    [(("output",), 1.0), (("trainer",), 1.0), (("memory",), 1.0), (("gpu",), 1.4), (("notifications",), 2.2), (("page",), 2.2)],
)
def test_each_drop_in_opens_only_what_it_is_for(tmp_path: Path, names: tuple[str, ...], most: float) -> None:
    assert exposure(tmp_path, *names) <= most
    answer = subprocess.run(
        ["systemd-analyze", "--man=no", "verify", str(tmp_path / UNIT.name)], capture_output=True, text=True, check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )  # fmt: skip
    ours = [line for line in complaints(answer.stderr) if "is not executable" not in line]
    assert not ours, answer.stderr


def test_every_path_that_the_daemon_writes_by_default_is_one_that_the_unit_lets_it_write() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert service["ProtectSystem"] == "strict" and service["ProtectHome"] == "read-only"
    command = service["ExecStart"].split()
    config = Path(command[command.index("--config") + 1])
    assert state_of_system(config) == Path("/var/lib") / service["StateDirectory"]
    assert service["ExecReload"].split()[1:] == ["reload", "--config", str(config)]
    # The delegated control group is named by its path, since the rest of that tree is read-only.
    assert service["ReadWritePaths"] == f"-/sys/fs/cgroup/{SLICE.name}/{UNIT.name}"
    # It lies where the readers look, and its name is what they look for.
    assert service["RuntimeDirectory"] == "ckptd" and service["RuntimeDirectoryMode"] == "0755"


def test_the_service_is_weighed_against_all_other_slices_and_weighs_least() -> None:
    unit, group = (configparser.ConfigParser(strict=False, interpolation=None) for _ in range(2))
    unit.read_string(UNIT.read_text())
    group.read_string(SLICE.read_text())
    # A name without a dash is a child of the root slice: a sibling of the system's and the users' slices.
    assert unit["Service"]["Slice"] == SLICE.name == "ckptd.slice"
    assert group["Slice"]["CPUWeight"] == group["Slice"]["IOWeight"] == "1"
    assert "CPUWeight" not in unit["Service"]


def test_the_daemon_tells_systemd_ready_alive_and_stopping(
    make_service: Callable[..., Service], service_manager: tuple[socket.socket, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, (listening, address) = make_service(), service_manager
    listening.settimeout(20)
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "1500000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    service.start()
    assert listening.recv(4096).decode().splitlines()[0] == "READY=1"
    assert listening.recv(4096) == b"WATCHDOG=1"
    assert listening.recv(4096) == b"WATCHDOG=1"
    assert service.stop() == 0
    said = b"WATCHDOG=1"
    while said == b"WATCHDOG=1":
        said = listening.recv(4096)
    assert said == b"STOPPING=1"


def test_a_service_manager_that_does_not_read_holds_nobody_up(
    service_manager: tuple[socket.socket, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "PATIENCE_SECONDS", 0.01)
    listening, address = service_manager
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert any(not systemd.notify("WATCHDOG=1") for _ in range(100_000)), "its queue is never full"
    assert listening.recv(100) == b"WATCHDOG=1" and systemd.notify("READY=1")


@pytest.mark.parametrize("unit", ["ckptd.service", "user/ckptd.service"])
def test_a_wrong_configuration_is_not_tried_again_and_what_may_pass_is(unit: str) -> None:
    text = (UNIT.parent / unit).read_text()
    assert "Restart=on-failure\n" in text and "RestartPreventExitStatus=2\n" in text
    assert EXIT_USAGE == 2 and EXIT_TEMPORARY == 75


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str]]:
    """Runs `ckptd run` in this process on a configuration with this text behind it: (exit code, what it said)."""

    def run(text: str) -> tuple[int, str]:
        config = tmp_path / "config.toml"
        (tmp_path / "runs").mkdir(exist_ok=True)
        config.write_text(f'[watch]\nroots = ["{tmp_path}/runs"]\n[state]\ndirectory = "{tmp_path}/state"\n{text}')
        monkeypatch.setattr(sys, "argv", ["ckptd", "run", "--config", str(config)])
        return main(), capsys.readouterr().err

    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.parametrize("text", ["[limits]\njobs = 'many'\n", "[wach]\nx = 1\n", "[limits\n", "[notify]\nurls = 'json://a/b'\n"])
def test_a_wrong_configuration_ends_the_daemon_with_the_code_that_is_not_tried_again(
    told: Callable[[str], tuple[int, str]], text: str
) -> None:
    assert told(text)[0] == EXIT_USAGE


def test_a_first_start_on_a_full_disk_names_the_place_and_is_tried_again(
    told: Callable[[str], tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("daemon.config.places.paths.write_atomic", full)
    code, said = told("")
    assert code == EXIT_TEMPORARY and f"write to state.directory ({tmp_path}/state/instance): No space left" in said


def test_another_ckptd_on_the_state_and_a_folder_that_can_not_be_written_are_tried_again(
    told: Callable[[str], tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    with locked(tmp_path / "state" / "lock"):
        assert told("")[0] == EXIT_TEMPORARY

    def closed(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.TemporaryFile", closed)
    code, said = told("")
    assert code == EXIT_TEMPORARY and "write to state.directory" in said
