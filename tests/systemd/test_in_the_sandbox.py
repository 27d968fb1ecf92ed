"""The unit as it is shipped, run by a real systemd: what it keeps the service from, and that exports need none of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.jobs.plan import find_variant, variant_names
from tests.service import QUICK
from tests.systemd.booted import PYTHON, UNITS, Booted, booted, missing
from tests.systemd.probe import MAY_NOT_WRITE, MAY_WRITE

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]

ENDED = ("succeeded", "partial", "failed")
TOO_COARSE = {"onnx-int4", "onnx-int4-fine", "onnx-genai-int4", "pytorch-bnb-nf4", "pytorch-w4a16"}
"""What a model of this size does not survive, on any box."""


def made_here() -> tuple[str, ...]:
    """The variants that are made and checked without a toolchain and without a GPU."""
    known = {name: one for name in variant_names() if (one := find_variant(name)) is not None}
    return tuple(name for name, one in known.items() if not (one.toolchain or one.limits.toolchain or one.limits.gpu))


def configuration(*variants: str) -> str:
    return (
        '[watch]\nroots = ["/home/trainer/runs"]\nsettle_seconds = 0.3\nrescan_seconds = 2\n[base]\nsearch = ["/srv/lab/bases"]\n'
        f'[output]\ndirectory = "/srv/exports"\n[export]\nvariants = {json.dumps(variants)}\n[validate]\n{QUICK}'
    )


def lay_out(lab: Path, base: Path, checkpoint: Path) -> None:
    """A base and a checkpoint that everybody may read, for a box that is booted on this folder."""
    lab.chmod(0o755)
    for source, name in ((base, "bases/pico"), (checkpoint, "checkpoint-4")):
        shutil.copytree(source, lab / name)
    for folder, _, files in os.walk(lab):
        os.chmod(folder, 0o755)
        for file in files:
            os.chmod(Path(folder, file), 0o644)


@pytest.fixture
def box(tmp_path: Path, pico_base: Path, pico_checkpoint: Path) -> Iterator[Booted]:
    """A booted box with our unit, the drop-in for the output, a base and a checkpoint that everybody may read."""
    lay_out(tmp_path, pico_base, pico_checkpoint)
    with booted(tmp_path, configuration("pytorch")) as here:
        here.run("sh", "-c", "mkdir -p /home/trainer/runs/run && chown -R trainer:trainer /home/trainer")
        here.drop_in("output", (UNITS / "drop-ins" / "output.conf").read_text())
        yield here


def save(box: Booted, mode: str = "a+rX") -> None:
    """The trainer writes its checkpoint."""
    box.run("sh", "-c", f"cp -r /srv/lab/checkpoint-4 /home/trainer/runs/run/ && chown -R trainer:trainer /home/trainer/runs"
                        f" && chmod -R {mode} /home/trainer/runs/run/checkpoint-4")  # fmt: skip


def wait_for(box: Booted, condition: Callable[[dict[str, Any]], bool], seconds: float = 120) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = box.status()
        if condition(value):
            return value
        time.sleep(0.5)
    raise AssertionError(f"not in time: {json.dumps(value, indent=1)[-3000:]}\n{box.journal()[-3000:]}")


def ended(value: dict[str, Any]) -> bool:
    return bool(value["jobs"]) and all(job["state"] in ENDED for job in value["jobs"])


def test_the_service_can_do_nothing_but_its_work(box: Booted) -> None:
    open_to_all = ("/home", "/home/trainer", "/home/trainer/runs", "/home/ckptd", "/srv", "/var/lib", "/etc/ckptd", "/root", "/opt")
    box.run("chmod", "a+rwx", *open_to_all)  # what only the unit forbids then; all of these are the box's own
    shutil.copyfile(Path(__file__).with_name("probe.py"), box.lab / "probe.py")
    box.drop_in("probe", f"[Service]\nType=oneshot\nRestart=no\nExecStart=\nExecStart={PYTHON} /srv/lab/probe.py\n")
    box.systemctl("start", "ckptd")
    found = json.loads(box.run("cat", "/srv/exports/probe.json").stdout)
    assert {folder: how for folder, how in found["writes"].items() if how == "ok"} == dict.fromkeys(MAY_WRITE, "ok")
    assert {found["writes"][folder] for folder in MAY_NOT_WRITE} <= {"EROFS", "EACCES", "EPERM", "ENOENT"}
    assert found["writes"]["/home/trainer/runs"] == found["writes"]["/srv"] == found["writes"]["/etc/ckptd"] == "EROFS"
    assert {what: how for what, how in found["denied"].items() if how == "ok"} == {}
    assert {what: how for what, how in found["allowed"].items() if how != "ok"} == {}
    assert not set(found["devices"]) & {"fuse", "kvm", "kmsg", "mem", "net", "vda", "loop0", "nvidia0"}
    assert found["interfaces"] == ["lo"]
    assert (found["capabilities"], found["no_new_privileges"]) == ("0000000000000000", "1")


@pytest.mark.timeout(1500)
def test_every_format_is_exported_inside(box: Booted) -> None:
    box.configure(configuration(*made_here()))
    box.systemctl("start", "ckptd")
    save(box)
    groups: set[str] = set()

    def done(value: dict[str, Any]) -> bool:
        listing = box.run("ls", "/sys/fs/cgroup/ckptd.slice/ckptd.service").stdout.split()
        groups.update(name for name in listing if re.fullmatch(r"ckptd-\d+-.+", name))
        return ended(value)

    (job,) = wait_for(box, done, 1400)["jobs"]
    assert set(job["artifacts"]) == set(made_here())
    assert {name for name, verdict in job["artifacts"].items() if verdict != "passed"} <= TOO_COARSE
    assert not [stage["error"] for stage in job["stages"] if stage["state"] == "failed"]
    assert groups, "no attempt had a control group of its own"
    assert not [entry["MESSAGE"] for entry in box.entries() if int(entry["PRIORITY"]) < 4]


def test_a_broken_configuration_fails_the_reload_and_the_one_before_stays(box: Booted) -> None:
    box.systemctl("start", "ckptd")
    before = box.status()["daemon"]
    box.configure(configuration("pytorch").replace("rescan_seconds = 2", "rescan_seconds = 3"))
    assert box.systemctl("reload", "ckptd").returncode == 0
    loaded = box.status()["daemon"]["configuration"]
    assert loaded["problem"] is None and loaded["at"] > before["configuration"]["at"]
    box.configure(configuration("pytorch") + "\n[nonsense]\n")
    assert box.systemctl("reload", "ckptd", check=False).returncode != 0
    assert "nonsense: is not a known key" in box.journal()
    # What only the daemon can refuse is told by the same command.
    box.configure(configuration("pytorch").replace("/srv/exports", "/srv/exports/other"))
    assert box.systemctl("reload", "ckptd", check=False).returncode != 0
    after = box.status()["daemon"]
    assert after["pid"] == before["pid"] and "output.directory" in after["configuration"]["problem"]
    assert box.systemctl("is-active", "ckptd").stdout.strip() == "active"
    assert "the configuration stays as it was" in box.systemctl("show", "ckptd", "--property=StatusText").stdout


def test_verbs_of_a_shell_find_the_service_and_its_journal_has_priorities(box: Booted) -> None:
    config = ("--config", "/etc/ckptd/config.toml")
    assert box.status()["daemon"]["running"] is False
    assert box.status()["state_directory"] == "/var/lib/ckptd"
    box.run("rmdir", "/home/trainer/runs/run", "/home/trainer/runs")
    box.systemctl("start", "ckptd")
    for words in ((), config):
        value = json.loads(box.verb("status", "--json", *words).stdout)
        assert value["daemon"]["running"] and value["state_directory"] == "/var/lib/ckptd"
    assert "is paused now" in box.verb("pause", *config).stdout
    assert "has read its configuration again" in box.verb("reload", *config).stdout
    levels = {json.loads(entry["MESSAGE"])["level"]: entry["PRIORITY"] for entry in box.entries() if entry["MESSAGE"].startswith("{")}
    assert levels == {"info": "6", "warning": "4"}  # the root that does not exist yet is the warning
    # A user of the box is told whose the state is.
    answer = box.run("setpriv", "--reuid=trainer", "--regid=trainer", "--clear-groups", "env", "-C", "/", "PYTHONPATH=/opt/ckptd",
                     str(PYTHON), "-m", "daemon", "status", check=False)  # fmt: skip
    assert answer.returncode == 2 and "as its user, ckptd" in answer.stderr
    box.systemctl("kill", "--signal=KILL", "ckptd")
    box.systemctl("stop", "ckptd")
    assert box.status()["daemon"]["running"] is False


def test_without_the_drop_in_the_sentence_names_what_the_unit_needs(box: Booted) -> None:
    box.drop_in("output", "[Service]\nRestart=no\n")
    assert box.systemctl("start", "ckptd", check=False).returncode != 0
    assert "ReadWritePaths=/srv/exports" in box.journal() and "systemctl edit ckptd" in box.journal()


def test_files_that_the_trainer_alone_may_read_are_listed_and_the_drop_in_for_that_mends_it(box: Booted) -> None:
    box.systemctl("start", "ckptd")
    save(box, "go-rwx,u+rwX")
    value = wait_for(box, lambda v: bool(v["unreadable"]))
    ((path, sentence),) = value["unreadable"].items()
    assert path == "/home/trainer/runs/run/checkpoint-4"
    assert f"the user ckptd has no right to list {path} (mode 0700, owner trainer, group trainer)" in sentence
    diagnosis = json.loads(box.verb("check", "--json", check=False).stdout)
    assert diagnosis["facts"]["reads"].startswith("as ckptd: 0 checkpoints")
    assert any("the user ckptd has no right to list" in one for one in diagnosis["problems"])
    # As safetensors leaves it: the directory is open, the file is not.
    box.run("sh", "-c", f"chmod 755 {path} && chmod 644 {path}/*.json && chmod 600 {path}/*.safetensors")
    value = wait_for(box, lambda v: "no right to read" in str(v["unreadable"]))
    assert f"no right to read {path}/adapter_model.safetensors (mode 0600, owner trainer" in value["unreadable"][path]
    assert "run the service as trainer" in value["unreadable"][path]
    box.drop_in("trainer", (UNITS / "drop-ins" / "trainer.conf").read_text())
    assert box.systemctl("restart", "ckptd", check=False).returncode != 0
    assert "Could not write to output.directory" in box.journal() and "chown -R" in box.journal()
    box.run("chown", "-R", "trainer:", "/srv/exports")
    box.systemctl("restart", "ckptd")
    value = wait_for(box, ended, 280)
    assert [job["state"] for job in value["jobs"]] == ["succeeded"] and not value["unreadable"]


def test_the_drop_in_for_notifications_opens_the_network_and_nothing_else(box: Booted) -> None:
    shutil.copyfile(Path(__file__).with_name("probe.py"), box.lab / "probe.py")
    box.drop_in("notifications", (UNITS / "drop-ins" / "notifications.conf").read_text())
    box.drop_in("probe", f"[Service]\nType=oneshot\nRestart=no\nExecStart=\nExecStart={PYTHON} /srv/lab/probe.py\n")
    box.systemctl("start", "ckptd")
    found = json.loads(box.run("cat", "/srv/exports/probe.json").stdout)
    assert {what for what, how in found["denied"].items() if how == "ok"} == {"AF_INET", "AF_INET6"}
    assert {folder for folder, how in found["writes"].items() if how == "ok"} == set(MAY_WRITE)
