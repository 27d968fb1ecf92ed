"""The unit file, and the protocol that it relies on."""

from __future__ import annotations

import configparser
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.operating import systemd
from tests.service import Service

UNIT = Path(__file__).parents[2] / "systemd" / "ckptd.service"
SLICE = UNIT.with_suffix(".slice")


def test_the_unit_passes_systemd_analyze_verify(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        assert not os.environ.get("CI"), "CI must have systemd-analyze"
        pytest.skip("systemd-analyze is not installed here")
    command = Path(sys.executable).with_name("ckptd")
    text = UNIT.read_text().replace("/opt/ckptd/.venv/bin/ckptd", str(command)).replace("=ckptd\nGroup=ckptd", "=root\nGroup=root")
    (tmp_path / "ckptd.service").write_text(text)
    shutil.copyfile(SLICE, tmp_path / "ckptd.slice")
    for name in ("ckptd.service", "ckptd.slice"):
        answer = subprocess.run([tool, "verify", str(tmp_path / name)], capture_output=True, text=True, check=False)
        assert answer.returncode == 0
        assert name not in answer.stderr, answer.stderr


def test_the_service_is_weighed_against_all_other_slices_and_weighs_least() -> None:
    unit, group = (configparser.ConfigParser(strict=False, interpolation=None) for _ in range(2))
    unit.read_string(UNIT.read_text())
    group.read_string(SLICE.read_text())
    # A name without a dash is a child of the root slice: a sibling of the system's and the users' slices.
    assert unit["Service"]["Slice"] == SLICE.name == "ckptd.slice"
    assert group["Slice"]["CPUWeight"] == group["Slice"]["IOWeight"] == "1"
    assert "CPUWeight" not in unit["Service"]


def test_the_daemon_tells_systemd_ready_alive_and_stopping(make_service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch) -> None:
    service = make_service()
    address = service.folder / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(address))
        listening.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
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


def test_a_service_manager_that_does_not_read_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "PATIENCE_SECONDS", 0.01)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify.sock"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify.sock"))
        assert any(not systemd.notify("WATCHDOG=1") for _ in range(100_000)), "its queue is never full"
        assert listening.recv(100) == b"WATCHDOG=1" and systemd.notify("READY=1")
