"""What was fetched before an installation was interrupted is not fetched again, and is what it was.

The wheels come from an index on this box that counts requests; its answers allow nobody to keep them, as those of the simplest servers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from daemon.contract.faults.errors import CkptdError, Retryable, UsageError
from daemon.toolchains import install as toolchain_install
from daemon.toolchains.install import install, remove
from daemon.toolchains.installers import downloads, pip
from daemon.toolchains.overview import describe
from daemon.toolchains.registry import Toolchains
from tests.toolchains.conftest import CONTRACT, ROOT, define, installer, made, started
from tests.toolchains.installing.index import Index
from tests.toolchains.installing.test_installing import killed, names, when_free

ALL = (*CONTRACT, "fakelib")


def chains_of(tmp_path: Path, **facts: object) -> Toolchains:
    """The toolchain `fake` from pip's index."""
    return Toolchains(tmp_path / "state", define(tmp_path / "definitions", None, **facts))  # type: ignore[arg-type]


def with_pip(chains: Toolchains) -> list[str]:
    """Install it; what was said."""
    said: list[str] = []
    install(chains, "fake", said.append)
    return said


@pytest.mark.slow
def test_a_connection_that_breaks_costs_one_file_and_not_the_installation(index: Index, tmp_path: Path) -> None:  # R7.1
    index.breaking["fakelib"] = 2
    chains = chains_of(tmp_path)
    with_pip(chains)
    assert chains.state("fake") == "installed"
    assert {name: index.asked_of(name) for name in ALL} == {**dict.fromkeys(CONTRACT, 1), "fakelib": 3}


@pytest.mark.slow
def test_a_network_that_is_lost_keeps_what_came_and_the_next_install_fetches_the_rest(index: Index, tmp_path: Path) -> None:  # R7.1
    index.breaking["fakelib"] = pip.TRIES
    chains = chains_of(tmp_path)
    with pytest.raises(Retryable, match=r"what was fetched so far is kept") as caught:
        with_pip(chains)
    assert caught.value.fault.code in ("no-network", "install-failed"), "older releases of pip say that the file is another one"
    row = describe(chains)["fake"]
    assert row.state == "not installed" and row.downloaded > 1 << 20
    said = with_pip(chains)
    assert "are there from an earlier attempt" in said[0] and f"{len(CONTRACT)} packages are there from an earlier attempt" in said
    assert {name: index.asked_of(name) for name in ALL} == {**dict.fromkeys(CONTRACT, 1), "fakelib": pip.TRIES + 1}
    assert names(chains) == {chains.folder("fake").name}, "what was fetched is removed when the toolchain is there"
    assert describe(chains)["fake"].downloaded == 0


def interrupted(index: Index, tmp_path: Path, number: signal.Signals) -> Toolchains:
    """A toolchain whose installation got this signal in the middle of its last file, when all others were there."""
    chains = chains_of(tmp_path)
    index.waiting.add("fakelib")
    process = started(tmp_path / "state", tmp_path / "definitions", "fetching its packages")
    assert index.arrived.wait(60)
    while len(kept(chains)) < len(CONTRACT):
        assert process.poll() is None
        time.sleep(0.05)
    if number is signal.SIGKILL:
        killed(process)
    else:
        process.send_signal(number)
        process.communicate()
    index.waiting.clear()
    return chains


def kept(chains: Toolchains) -> list[str]:
    """The wheels that an attempt has left."""
    return [path.name for folder in downloads.of(chains.home, "fake") for path in (folder / "wheels").glob("*.whl")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-c"])
def test_an_install_that_is_ended_while_it_fetches_goes_on_with_what_it_has(index: Index, tmp_path: Path, number: signal.Signals) -> None:
    chains = interrupted(index, tmp_path, number)  # R7.1
    when_free(lambda: with_pip(chains))
    assert {name: index.asked_of(name) for name in ALL} == {**dict.fromkeys(CONTRACT, 1), "fakelib": 2}
    assert names(chains) == {chains.folder("fake").name}


@pytest.mark.slow
def test_what_is_killed_at_each_file_fetches_each_file_once(index: Index, tmp_path: Path) -> None:
    chains, counted = chains_of(tmp_path), {}
    for number in range(len(ALL)):
        command = installer(tmp_path / "state", tmp_path / "definitions")
        ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "CKPTD_FAULT": "toolchain.fetched"}, capture_output=True, check=False)
        assert ended.returncode == -signal.SIGKILL
        time.sleep(0.3)  # what it had started ends with it
        assert len(kept(chains)) == number + 1
        counted |= {name: index.asked[name] for name in kept(chains) if name not in counted}
    when_free(lambda: with_pip(chains))
    assert counted == index.asked, "a file that was on its way is begun again, a whole one never"
    assert chains.state("fake") == "installed"


@pytest.mark.slow
@pytest.mark.parametrize("point", ["toolchain.venv", "toolchain.packages", "toolchain.whole", "toolchain.placed"])
def test_what_is_killed_at_any_step_is_whole_or_absent_and_what_it_has_fetched_is_not_fetched_again(
    index: Index, tmp_path: Path, point: str
) -> None:
    chains = chains_of(tmp_path)
    command = installer(tmp_path / "state", tmp_path / "definitions")
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "CKPTD_FAULT": point}, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL and len(kept(chains)) == (0 if point == "toolchain.venv" else len(ALL))
    assert (chains.get("fake") is not None) is (point == "toolchain.placed")
    when_free(lambda: with_pip(chains))
    assert {index.asked_of(name) for name in ALL} == {1}
    assert names(chains) == {chains.folder("fake").name}, "also what was fetched is gone"


@pytest.mark.slow
def test_a_wheel_that_is_not_what_it_was_is_fetched_again(index: Index, tmp_path: Path) -> None:
    chains = interrupted(index, tmp_path, signal.SIGKILL)
    (folder,) = downloads.of(chains.home, "fake")
    (wheel,) = (folder / "wheels").glob("annotated_types*")
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.write_bytes(content)
    (folder / "wheels" / "stray-1.0-py3-none-any.whl").write_bytes(b"of nobody")
    with open(folder / "fetched.jsonl", "a") as record:
        record.write('\n{"requirement": "half a li')
    when_free(lambda: with_pip(chains))
    assert index.asked_of("annotated_types") == 2 and index.asked_of("pydantic_core") == 1
    toolchain_install.check(chains, "fake")


@pytest.mark.slow
def test_another_configuration_of_pip_does_not_go_on_with_what_the_first_one_fetched(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains = interrupted(index, tmp_path, signal.SIGKILL)
    monkeypatch.setenv("PIP_TIMEOUT", "7")
    (tmp_path / "bounds.txt").write_text("fakelib<2\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "bounds.txt"))
    when_free(lambda: with_pip(chains))
    assert index.asked_of("pydantic") == 2
    assert names(chains) == {chains.folder("fake").name}


@pytest.mark.slow
def test_what_a_build_of_a_package_needs_beyond_the_lock_comes_too(index: Index, tmp_path: Path) -> None:
    """As a build of torch for GPUs needs packages that the one for CPUs does not."""
    (fakelib,) = [path for path in index.named("fakelib") if "-1.0-" in path.name]
    probe = "def nothing(): pass\n"
    made("kernels", "3.1", {"kernels.py": probe}, index.folder, needs=["deeper>=1"])
    made("deeper", "1.5", {"deeper.py": probe}, index.folder)
    told = {"fakelib/__init__.py": "VERSION = '1.0'\nimport kernels, deeper\n", "fakelib/probe.py": _probe(fakelib)}
    made("fakelib", "1.0", told, index.folder, needs=["kernels==3.1"])
    chains = chains_of(tmp_path)
    with_pip(chains)
    one = toolchain_install.check(chains, "fake")
    assert one.manifest.packages["kernels"] == "3.1" and one.manifest.packages["deeper"] == "1.5"
    assert "deeper-1.5-py3-none-any.whl" in one.manifest.wheels
    (index.folder / "deeper-1.5-py3-none-any.whl").unlink()
    with pytest.raises(CkptdError, match="index has no deeper>=1 for Python"):
        install(Toolchains(tmp_path / "other", chains.known), "fake", print)


def _probe(wheel: Path) -> str:
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        return archive.read("fakelib/probe.py").decode()


@pytest.mark.slow
def test_a_removal_takes_what_was_fetched_too(index: Index, tmp_path: Path) -> None:
    chains = interrupted(index, tmp_path, signal.SIGKILL)
    fetched = describe(chains)["fake"].downloaded
    assert fetched > 1 << 20 and when_free(lambda: remove(chains, "fake")) == fetched
    assert names(chains) == set()
    with pytest.raises(UsageError, match="it is not installed"):
        remove(chains, "fake")


FULL = """
set -u
mkdir -p "$STATE/toolchains"
mount -t tmpfs -o size=200m tmpfs "$STATE" || exit 99
( until find "$STATE" -name 'pydantic_core*.whl' -path '*/wheels/*' | grep -q .; do sleep 0.005; done
  mount -o "remount,size=$(df -k --output=used "$STATE" | tail -n 1 | tr -d ' ')k" "$STATE" ) &
"$@"; echo "first: $?"
kill $! 2> /dev/null; wait
ls -a "$STATE/toolchains"
mount -o remount,size=200m "$STATE"
"$@" && echo "second: done"
"""


@pytest.mark.slow
def test_a_full_disk_is_temporary_and_what_was_fetched_is_kept(index: Index, tmp_path: Path) -> None:  # R6.5
    chains_of(tmp_path, disk=1 << 20)
    state = tmp_path / "full"
    command = ["unshare", "-m", "bash", "-c", FULL, "bash", *installer(state, tmp_path / "definitions")]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "STATE": str(state)}, capture_output=True, text=True, check=False)
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("this box allows no mount of its own")
    assert "first: 1" in done.stdout and "the disk is full" in done.stderr, done.stdout + done.stderr
    assert ".fake.wheels-" in done.stdout and "second: done" in done.stdout, done.stdout + done.stderr
    assert index.asked_of("pydantic_core") == 1
