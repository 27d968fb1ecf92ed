"""The daemon refuses a stage whose toolchain is missing, names the command that brings it, and takes nothing else from the export.

Where it is allowed to (`toolchains.auto_install`) it installs the toolchain itself, and the stage waits.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from daemon.config.settings import Settings
from daemon.running.sources import installing
from daemon.toolchains.registry import Toolchains
from tests.runner.conftest import ALL, Toy, copied
from tests.service import making
from tests.toolchains.conftest import Fake, define
from tests.toolchains.installing.index import Index


class Wanting(Toy):
    """A daemon whose stage `onnx-int8` wants the toolchain `fake`."""

    command = (sys.executable, "-m", "tests.toolchains.toy_daemon")


@pytest.fixture
def make_wanting(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Wanting]]:
    """Makes such daemons and ends whatever is left of them."""
    monkeypatch.setenv("TOY_DEFINITIONS", str(fake.chains.known["fake"].requirements.parent))
    yield from making(Wanting, tmp_path)


@pytest.mark.slow
def test_a_missing_toolchain_fails_its_stage_alone_until_it_is_there(
    make_wanting: Callable[..., Wanting], fake: Fake, pico_checkpoint: Path
) -> None:  # R4.5
    daemon = make_wanting(variants=ALL)
    copied(pico_checkpoint, daemon)
    daemon.start()
    daemon.wait_ended()
    (job,) = daemon.status()["jobs"]
    assert job["state"] == "partial"
    assert "onnx-int8" not in daemon.stages_begun() and "onnx" in daemon.stages_begun()
    log = (daemon.state / "ckptd.log").read_text()
    assert "Could not run the stage onnx-int8: the toolchain fake is not installed." in log
    assert "Fix: run `ckptd toolchain install fake`." in log
    shutil.copytree(fake.chains.home, daemon.state / "toolchains", symlinks=True)
    copied(pico_checkpoint, daemon, step=8)
    daemon.wait_ended(2)
    assert {job["step"]: job["state"] for job in daemon.status()["jobs"]}[8] == "succeeded"
    assert (daemon.state / "cache" / "toolchains" / "fake").resolve().parent == daemon.state / "toolchains"


AUTOMATIC = "[toolchains]\nauto_install = true\n"


def events(daemon: Wanting, of: str) -> list[dict[str, object]]:
    """The lines of the daemon's log with this event."""
    return [line for line in map(json.loads, (daemon.state / "ckptd.log").read_text().splitlines()) if line.get("event") == of]


@pytest.mark.slow
def test_a_missing_toolchain_is_installed_before_its_stage_where_that_is_allowed(
    make_wanting: Callable[..., Wanting], fake: Fake, pico_checkpoint: Path
) -> None:  # R4.5
    daemon = make_wanting(variants=ALL, extra=AUTOMATIC)
    copied(pico_checkpoint, daemon)
    daemon.start()
    waiting = daemon.wait_for(lambda value: any("being installed" in str(job["waiting_for"]) for job in value["jobs"]))
    (job,) = waiting["jobs"]
    assert "the toolchain fake is being installed (" in job["waiting_for"]
    daemon.wait_ended()
    (job,) = daemon.status()["jobs"]
    assert job["state"] == "succeeded" and "onnx-int8" in daemon.stages_begun()
    assert [len(events(daemon, f"toolchain.{one}")) for one in ("installing", "installed", "failed")] == [1, 1, 0]
    assert fake.chains.folder("fake").name in {path.name for path in (daemon.state / "toolchains").iterdir()}


@pytest.mark.slow
def test_a_toolchain_that_can_not_be_installed_fails_its_stage_alone_and_is_not_tried_for_every_job(
    make_wanting: Callable[..., Wanting], wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pico_checkpoint: Path
) -> None:
    define(tmp_path / "definitions", wheels, "9.9")
    monkeypatch.setenv("TOY_DEFINITIONS", str(tmp_path / "definitions"))
    daemon = make_wanting(variants=ALL, extra=AUTOMATIC)
    copied(pico_checkpoint, daemon)
    daemon.start()
    daemon.wait_ended()
    copied(pico_checkpoint, daemon, step=8)
    daemon.wait_ended(2)
    assert {job["state"] for job in daemon.status()["jobs"]} == {"partial"}
    (failed,) = events(daemon, "toolchain.failed")
    assert failed["code"] == "no-package" and "index has no fakelib==9.9" in str(failed["message"])
    assert "then run `ckptd toolchain install fake` and `ckptd queue retry JOB`" in str(failed["message"])
    assert "onnx-int8" not in daemon.stages_begun() and daemon.stages_begun().count("onnx") == 2


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_an_installation_ends_with_the_daemon_and_the_next_one_goes_on_with_it(
    make_wanting: Callable[..., Wanting], index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pico_checkpoint: Path, kill: bool
) -> None:
    define(tmp_path / "definitions", None)
    monkeypatch.setenv("TOY_DEFINITIONS", str(tmp_path / "definitions"))
    index.waiting.add("fakelib")
    daemon = make_wanting(variants=ALL, extra=AUTOMATIC)
    copied(pico_checkpoint, daemon)
    daemon.start()
    assert index.arrived.wait(60)
    mine = [one.pid for one in psutil.process_iter(["cmdline"]) if any(str(daemon.state) in word for word in one.info["cmdline"] or [])]
    assert mine
    daemon.kill() if kill else daemon.stop()
    until(lambda: not [pid for pid in mine if lives(pid)])
    index.waiting.clear()
    daemon.start()
    daemon.wait_ended()
    (job,) = daemon.status()["jobs"]
    assert job["state"] == "succeeded"
    assert index.asked_of("annotated_types") == 1 and index.asked_of("fakelib") == 2


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_toolchains_are_installed_one_at_a_time(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fake", "other"):
        known = define(tmp_path / "definitions", wheels, name=name)
    monkeypatch.setattr(installing, "DEFINITIONS", tmp_path / "definitions")
    monkeypatch.setenv("CKPTD_LIMITS__PRIORITY", "low")
    settings = Settings.model_validate({"state": {"directory": tmp_path / "state"}})
    chains, woken = Toolchains(tmp_path / "state", known), []
    one = installing.Installing(tmp_path / "state", lambda: woken.append(1))
    first, second = one.want("fake", "a", settings), one.want("other", "b", settings)
    assert first.code == second.code == "toolchain-coming" and one.name == "fake"
    assert second.sentence().startswith("Could not start the stage b: the toolchain other is installed next, after fake.")
    (child,) = psutil.Process().children()
    until(lambda: child.nice() == 10)
    assert "CKPTD_LIMITS__PRIORITY" not in child.environ() and "PATH" in child.environ(), "what is no business of a package that is built"
    until(lambda: one.look() or not one.name)
    assert woken and chains.get("fake") is not None and chains.get("other") is None
    one.want("other", "b", settings)
    assert one.name == "other"
    one.stop()
    assert one.name == "" and not psutil.Process().children(recursive=True)
    assert [path.name for path in (tmp_path / "state" / "toolchains").glob(".other.building*")] == []
