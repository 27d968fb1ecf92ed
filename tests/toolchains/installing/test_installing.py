"""Toolchains come whole or not at all, and go when nothing uses them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from daemon.contract.disk.files import sha256_file
from daemon.contract.faults.errors import Permanent, Retryable, UsageError
from daemon.toolchains import install as toolchain_install
from daemon.toolchains import records
from daemon.toolchains.install import install, remove
from daemon.toolchains.installers.attempt import Build
from daemon.toolchains.installers.failures import no_packages
from daemon.toolchains.overview import describe
from daemon.toolchains.registry import BOOTSTRAP, MANIFEST, Toolchains, command_in
from tests.toolchains.conftest import CONTRACT, ROOT, Fake, copied, define, replaced, started

Result = TypeVar("Result")


def names(chains: Toolchains) -> set[str]:
    """What lies in the folder of all toolchains, locks and logs left out."""
    return {path.name for path in chains.home.iterdir() if path.is_dir()}


def without_downloads(chains: Toolchains) -> set[str]:
    """The same without what was fetched, which outlives an installation that failed."""
    return {name for name in names(chains) if ".wheels-" not in name}


def test_a_toolchain_holds_what_its_lock_says_and_tells_what_it_is(fake: Fake) -> None:  # R7.1
    manifest = fake.installed.manifest
    assert fake.installed.folder.name == f"fake-{fake.chains.definition('fake').digest}"
    assert names(fake.chains) == {fake.installed.folder.name}
    assert manifest.packages["fakelib"] == "1.0" and "torch" not in manifest.packages
    assert manifest.probe == {"number": 7}
    assert manifest.size > 5 << 20
    assert "MiB are free" in fake.said[0] or "GiB are free" in fake.said[0]
    assert "fake needs up to 50.0 MiB" in fake.said[0]
    assert fake.said[1:3] == ["making its environment", "fetching its packages"] and fake.said[-1] == "probing it"
    assert f"using {manifest.installer}" in fake.said and manifest.installer.startswith("pip ") and manifest.installer_why == ""
    (wheel,) = [path for path in fake.wheels.iterdir() if path.name.startswith("fakelib-1.0")]
    assert manifest.wheels[wheel.name] == sha256_file(wheel) and len(manifest.wheels) == len(CONTRACT) + 1
    assert describe(fake.chains)["fake"].installed
    assert toolchain_install.check(fake.chains, "fake") == fake.installed


def test_installing_what_is_there_does_nothing(fake: Fake) -> None:
    said: list[str] = []
    before = fake.installed.folder.stat().st_ino
    assert install(fake.chains, "fake", said.append) == fake.installed
    assert said == [] and fake.installed.folder.stat().st_ino == before


@pytest.mark.slow
def test_a_toolchain_that_fails_its_probe_is_not_installed(tmp_path: Path, wheels: Path) -> None:
    chains = Toolchains(tmp_path, define(tmp_path / "definitions", wheels, "2.0"))
    with pytest.raises(Permanent, match=r"its probe failed \(RuntimeError: two plus two is five\)") as caught:
        install(chains, "fake", lambda line: None)
    assert caught.value.fault.code == "probe-failed"
    assert without_downloads(chains) == set() and chains.get("fake") is None


def killed(process: subprocess.Popen[str]) -> None:
    """End it as the kernel or a power cut would."""
    with process:
        process.send_signal(signal.SIGKILL)


def test_what_a_killed_install_left_is_nothing_and_can_be_removed(tmp_path: Path, wheels: Path) -> None:
    chains = Toolchains(tmp_path, define(tmp_path / "definitions", wheels))
    process = started(tmp_path, tmp_path / "definitions", "making its environment")
    while not list(chains.home.glob(".fake.building.*/bin/python")):
        assert process.poll() is None
    with pytest.raises(Retryable) as caught:
        install(chains, "fake", lambda line: None)
    assert caught.value.fault.code == "toolchain-busy"
    killed(process)
    assert names(chains) == {f".fake.building.{process.pid}"}
    assert chains.get("fake") is None and describe(chains)["fake"].state == "not installed"
    assert when_free(lambda: remove(chains, "fake")) == 0
    assert names(chains) == set()


def when_free(work: Callable[[], Result], seconds: float = 60) -> Result:
    """Do it as soon as the lock is free: what the killed process had started ends with it, in a moment."""
    end = time.monotonic() + seconds
    while True:
        try:
            return work()
        except Retryable as error:
            assert error.fault.code == "toolchain-busy" and time.monotonic() < end
            time.sleep(0.05)


def test_what_is_in_use_is_not_removed_and_then_is(fake: Fake, tmp_path: Path) -> None:
    chains = copied(fake, tmp_path)
    one = chains.get("fake")
    assert one is not None
    waiting = "import sys; print('ready', flush=True); sys.stdin.read()"
    (one.folder / "lib" / "python3.11" / "site-packages" / "waits.py").write_text(waiting)
    process = subprocess.Popen(command_in(one.folder, "waits"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    with pytest.raises(Retryable, match="runs in it now"):
        remove(chains, "fake")
    assert chains.get("fake") == one
    process.communicate("")
    assert remove(chains, "fake") == one.manifest.size
    assert names(chains) == set() and not list(chains.home.glob("*.log"))
    with pytest.raises(UsageError, match="it is not installed"):
        remove(chains, "fake")


def test_a_removal_that_was_killed_is_finished_by_the_next_one(fake: Fake, tmp_path: Path) -> None:
    chains = copied(fake, tmp_path)
    chains.folder("fake").rename(chains.home / ".fake.removing")
    assert chains.get("fake") is None
    remove(chains, "fake")
    assert names(chains) == set()


def test_a_toolchain_of_other_requirements_is_not_taken_for_it(fake: Fake, tmp_path: Path, wheels: Path) -> None:
    before = copied(fake, tmp_path)
    chains = Toolchains(tmp_path, define(tmp_path / "definitions", wheels, "3.0"))
    assert chains.folder("fake") != before.folder("fake")
    assert chains.get("fake") is None and "earlier version" in describe(chains)["fake"].state
    define(tmp_path / "definitions", wheels, "1.0")
    text = (tmp_path / "definitions" / "fake.txt").read_text()
    (tmp_path / "definitions" / "fake.txt").write_text("# other words\n\n" + text)
    assert before.definition("fake").digest == Toolchains(tmp_path, before.known).folder("fake").name.removeprefix("fake-")


def test_check_tells_what_was_changed_by_hand(fake: Fake, tmp_path: Path) -> None:
    chains = copied(fake, tmp_path)
    site = chains.folder("fake") / "lib" / "python3.11" / "site-packages"
    before = (site / "fakelib" / "probe.py").read_text()
    replaced(site / "fakelib" / "probe.py", "raise SystemExit(3)\n")
    with pytest.raises(
        Permanent, match=r"files are not the ones that were installed: fakelib/probe.py was changed\. .*install fake --again"
    ):
        toolchain_install.check(chains, "fake")
    replaced(site / "fakelib" / "probe.py", before)
    (site / "fakelib" / "__init__.py").unlink()
    with pytest.raises(Permanent, match=r"fakelib/__init__.py is missing\. "):
        toolchain_install.check(chains, "fake")
    shutil.rmtree(site / "fakelib-1.0.dist-info")
    with pytest.raises(Permanent, match=r"not the ones that were installed \(fakelib\).*toolchain install fake --again"):
        toolchain_install.check(chains, "fake")
    (chains.folder("fake") / "bin" / "python").unlink()
    with pytest.raises(Permanent, match=r"damaged \(the Python that it was created with no longer exists\)"):
        toolchain_install.check(chains, "fake")


def test_a_file_that_two_packages_bring_is_right_as_in_either(fake: Fake, tmp_path: Path) -> None:
    chains = copied(fake, tmp_path)
    site = chains.folder("fake") / "lib" / "python3.11" / "site-packages"
    record = site / "fakelib-1.0.dist-info" / "RECORD"
    (site / "both.py").write_text("")
    empty = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    replaced(record, record.read_text() + f"both.py,sha256={empty[::-1]},1\n")
    assert records.differing(chains.folder("fake")) == {"lib/python3.11/site-packages/both.py": "was changed"}
    record.write_text(record.read_text() + f"both.py,sha256={empty},0\n../../../bin/gone,sha256={empty},0\n__pycache__/x.pyc,,\n")
    assert records.differing(chains.folder("fake")) == {}


@pytest.mark.parametrize("left", ['{"name": "fake"}', None])
def test_a_folder_whose_manifest_is_not_whole_is_damaged_and_can_be_removed(fake: Fake, tmp_path: Path, left: str | None) -> None:
    chains = copied(fake, tmp_path)
    manifest = chains.folder("fake") / MANIFEST
    manifest.unlink() if left is None else replaced(manifest, left)
    state = "damaged (its manifest is missing or can't be read)"
    assert chains.state("fake") == state and describe(chains)["fake"].command == "ckptd toolchain install fake"
    with pytest.raises(Permanent, match=r"it is damaged \(its manifest is missing"):
        toolchain_install.check(chains, "fake")
    (one,) = toolchain_install.examine_all(chains)
    assert not one.works and state in str(one.error) and "toolchain install fake" in str(one.error)
    assert remove(chains, "fake") > 5 << 20
    assert names(chains) == set()


@pytest.mark.slow
def test_what_is_damaged_is_mended_by_another_installation(fake: Fake, tmp_path: Path) -> None:  # R7.1
    chains = copied(fake, tmp_path)
    folder = chains.folder("fake")
    (library,) = folder.glob("lib/python*/site-packages/fakelib/__init__.py")
    for damaged, again in ((library, True), (folder / "bin" / "python", False), (folder / MANIFEST, False)):
        damaged.unlink()
        with pytest.raises(Permanent, match="ckptd toolchain install fake"):
            toolchain_install.check(chains, "fake")
        install(chains, "fake", print, again=again)
        toolchain_install.check(chains, "fake")
        assert names(chains) == {folder.name}


def test_a_disk_that_is_too_small_is_known_before_anything_is_fetched(tmp_path: Path, wheels: Path) -> None:
    chains = Toolchains(tmp_path, define(tmp_path / "definitions", wheels, disk=1 << 60))
    with pytest.raises(Retryable, match=r"it needs up to 1048576 TiB.*set state\.directory to a larger disk"):
        install(chains, "fake", lambda line: None)
    assert names(chains) == set()


@pytest.mark.parametrize(
    "said, code, words",
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk-full", "the disk is full"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /x/\n"
            "ERROR: No matching distribution found for torch==2.13.0",
            "no-network",
            "could not reach its package index",
        ),
        (
            "CMake Error: CMAKE_CXX_COMPILER not set, after EnableLanguage\nERROR: Failed building wheel for llama_cpp_python",
            "install-failed",
            "this box has no C and C++ compiler",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "no-package", "index has no torch==2.13.0 for Python"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES.\nmore", "install-failed", "is not the one that the index promised"),
        ("noise\nERROR: a word.\nmore", "install-failed", ": a word. Fix: read the log"),
    ],
)
def test_what_pip_says_becomes_one_clear_sentence(tmp_path: Path, wheels: Path, said: str, code: str, words: str) -> None:
    definition = define(tmp_path / "definitions", wheels)["fake"]
    error = no_packages(Build(definition, tmp_path / "x", tmp_path / "x.log", 0, print), said)
    assert error.fault.code == code and words in error.fault.sentence()
    assert "\n" not in error.fault.sentence()


def test_inside_only_our_own_packages_come_from_outside(fake: Fake, tmp_path: Path) -> None:
    for name in ("daemon", "handlers"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "intruder.py").write_text("print('imported')\n")
    python = command_in(fake.installed.folder, "x")[:3]
    bootstrap = tmp_path / BOOTSTRAP.relative_to(ROOT)
    options: dict[str, Any] = {
        "env": {**os.environ, "PYTHONPATH": str(tmp_path)}, "cwd": tmp_path, "capture_output": True, "text": True,
    }  # fmt: skip
    ended = subprocess.run([*python, str(bootstrap), "intruder"], check=False, **options)
    assert ended.returncode == 1 and "No module named intruder" in ended.stderr and ended.stdout == ""
    ended = subprocess.run([*python, str(bootstrap), "handlers", ""], check=False, **options)
    assert ended.returncode == 65 and "could not use the job file" in ended.stderr


def test_an_unknown_name_is_a_usage_error_that_lists_the_known_ones(fake: Fake) -> None:
    with pytest.raises(UsageError, match="use one of: fake"):
        install(fake.chains, "nothing", lambda line: None)
