"""`ckptd install-service` on a box with a real systemd: from nothing to an export, and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd.booted import Booted, booted, missing
from tests.systemd.test_in_the_sandbox import configuration, ended, lay_out, save, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]
CONFIG = ("--config", "/etc/ckptd/config.toml")


@pytest.fixture
def bare(tmp_path: Path, pico_base: Path, pico_checkpoint: Path) -> Iterator[Booted]:
    """A booted box with a configuration, and without our unit, our user and our folders."""
    lay_out(tmp_path, pico_base, pico_checkpoint)
    with booted(tmp_path, configuration("pytorch")) as here:
        units = "/etc/systemd/system/ckptd.service /etc/systemd/system/ckptd.slice"
        here.run("sh", "-c", f"rm -r {units} /srv/exports; sed -i /^ckptd:/d /etc/passwd /etc/group")
        here.run("sh", "-c", "mkdir -p /run/systemd/system /home/trainer/runs/run && chown -R trainer:trainer /home/trainer")
        here.systemctl("daemon-reload")
        yield here


def test_it_is_installed_by_one_command_exports_and_is_taken_back(bare: Booted) -> None:
    before = bare.run("sh", "-c", "cat /etc/passwd /etc/group; ls -laR /etc/systemd/system /etc/ckptd | grep -v '^d\\|total'").stdout
    told = bare.verb("install-service", *CONFIG)
    assert "systemctl start ckptd.service" in told.stdout and "The service is installed." in told.stdout
    assert bare.systemctl("is-active", "ckptd").stdout.strip() == "active"
    assert bare.systemctl("is-enabled", "ckptd").stdout.strip() == "enabled"
    assert bare.run("stat", "-c", "%U:%G %a", "/srv/exports").stdout.strip() == "ckptd:ckptd 755"
    save(bare)
    (job,) = wait_for(bare, ended, 280)["jobs"]
    assert job["state"] == "succeeded", [job["error"], *(stage["error"] for stage in job["stages"])]
    assert "Nothing to do" in bare.verb("install-service", *CONFIG).stdout
    # A changed wish restarts it under the new unit.
    pid = bare.status()["daemon"]["pid"]
    assert "systemctl restart ckptd.service" in bare.verb("install-service", *CONFIG, "--memory", "3G").stdout
    assert bare.systemctl("show", "ckptd", "--property=MemoryMax").stdout.strip() == f"MemoryMax={3 << 30}"
    wait_for(bare, lambda value: value["daemon"]["running"] and value["daemon"]["pid"] != pid)
    undone = bare.verb("install-service", "--undo")
    assert "The installation is undone." in undone.stdout
    assert "the user ckptd is kept, because it has files in /var/lib/ckptd" in undone.stdout
    assert bare.systemctl("is-active", "ckptd", check=False).returncode != 0
    assert bare.run("ls", "/srv/exports/run", check=False).returncode == 0
    bare.run("sh", "-c", "userdel ckptd")
    after = bare.run("sh", "-c", "cat /etc/passwd /etc/group; ls -laR /etc/systemd/system /etc/ckptd | grep -v '^d\\|total'").stdout
    assert after == before
