"""What a toolchain needs beside packages of Python: packages of npm with their digests, and programs of the box that it can't bring."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.toolchains import install, npm
from daemon.toolchains.overview import describe
from daemon.toolchains.registry import IN_USE, MANIFEST, Definition, Manifest, Toolchains

LOCK = {"lockfileVersion": 3, "packages": {"": {"dependencies": {"a": "1.0.0"}}, "node_modules/a": {"version": "1.0.0"}}}


def definition(folder: Path, *, lock: bool = True, **facts: object) -> Definition:
    (folder / "fake.txt").write_text("psutil==7.2.2\n")
    if lock:
        (folder / "fake.package.json").write_text(json.dumps({"dependencies": {"a": "1.0.0"}}))
        (folder / "fake.package-lock.json").write_text(json.dumps(LOCK))
    values = {"name": "fake", "about": "for tests", "disk": 1, "seconds": 1, "probe": "x", "requirements": folder / "fake.txt", **facts}
    return Definition.model_validate(values)


def put(chains: Toolchains) -> None:
    """A folder that counts as installed."""
    folder = chains.folder("fake")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / IN_USE).touch()
    manifest = Manifest(name="fake", digest="d", python="3", installed="", seconds=1, size=1, packages={}, probe={})
    (folder / MANIFEST).write_text(manifest.model_dump_json())


def test_the_digest_is_of_what_is_locked_not_of_how_it_is_written(tmp_path: Path) -> None:
    bare = definition(tmp_path, lock=False).digest
    before = definition(tmp_path).digest
    assert before != bare
    (tmp_path / "fake.package-lock.json").write_text(json.dumps(LOCK, indent=4))
    assert definition(tmp_path, lock=False).digest == before
    packages = {**LOCK["packages"], "node_modules/a": {"version": "1.0.1"}}  # type: ignore[dict-item]
    (tmp_path / "fake.package-lock.json").write_text(json.dumps({**LOCK, "packages": packages}))
    assert definition(tmp_path, lock=False).digest not in (before, bare)


def test_a_missing_program_is_said_before_anything_is_exported(tmp_path: Path) -> None:  # R1.5
    known = definition(tmp_path, programs={"chromium": ("no-such-browser", "nor-this")}, installers={"npm": ("no-such-npm",)})
    chains = Toolchains(tmp_path / "state", {"fake": known})
    fault = chains.lacking("fake", "check web")
    assert fault is not None and fault.code == FaultCode.TOOLCHAIN_MISSING
    assert fault.cause == "the toolchain fake is not installed"
    wanted = "install chromium and npm (on Debian and Ubuntu: `apt-get install chromium npm`), then run `ckptd toolchain install fake`"
    assert fault.remedy == wanted
    put(chains)
    assert chains.get("fake") is None
    fault = chains.lacking("fake", "check web")
    assert fault is not None and fault.cause == "the toolchain fake is installed, but this box has no chromium"
    assert fault.remedy == "install chromium (on Debian and Ubuntu: `apt-get install chromium`)", "npm is for installing it alone"
    told = describe(chains)["fake"]
    assert not told.installed and told.command is None
    there = Toolchains(tmp_path / "state", {"fake": known.model_copy(update={"programs": {"coreutils": ("no-such", "ls")}})})
    assert there.lacking("fake", "check web") is None


def test_a_toolchain_that_could_not_work_is_not_begun(tmp_path: Path) -> None:
    known = definition(tmp_path, installers={"nodejs": ("no-such-node",)})
    chains = Toolchains(tmp_path / "state", {"fake": known})
    with pytest.raises(Permanent, match="this box has no nodejs") as refused:
        install.install(chains, "fake", lambda line: None)
    assert "apt-get install nodejs" in refused.value.fault.remedy
    assert not [path for path in chains.home.iterdir() if path.is_dir() and "building" in path.name]


@pytest.mark.parametrize(
    ("said", "kind", "code", "words"),
    [
        ("npm error code ENOTFOUND\nnpm error network request failed", Retryable, FaultCode.NO_NETWORK, "could not reach its registry"),
        ("npm error code ENOSPC", Retryable, FaultCode.DISK_FULL, "disk is full"),
        ("npm error code EINTEGRITY\nnpm error sha512-…", Permanent, FaultCode.INSTALL_FAILED, "not the one that is locked"),
        ("npm error code E404\nnpm error 404  'a@1.0.0' is not in this registry", Permanent, FaultCode.NO_PACKAGE, "has no a@1.0.0"),
        ("npm error code ETARGET\nnpm error notarget No matching version found for a@9.", Permanent, FaultCode.NO_PACKAGE, "has no a@9"),
        ("npm error something else", Permanent, FaultCode.INSTALL_FAILED, "something else"),
        ("Killed", Permanent, FaultCode.INSTALL_FAILED, "npm failed"),
    ],
)
def test_what_npm_says_becomes_a_sentence(said: str, kind: type[CkptdError], code: FaultCode, words: str, tmp_path: Path) -> None:
    error = npm._failed("install the toolchain fake", tmp_path / "log", said)
    assert isinstance(error, kind) and error.fault.code == code and words in error.fault.cause
    assert not error.fault.cause.endswith((".", "'"))


def run(command: list[str], meaning: Callable[[str], CkptdError]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise meaning(done.stdout + done.stderr)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm here")
def test_packages_come_as_they_are_locked_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    package, folder, scratch = (tmp_path / name for name in ("package", "installed", "scratch"))
    for path in (package, folder, scratch):
        path.mkdir()
    scripts = {"install": f"touch {tmp_path / 'ran'}"}
    (package / "package.json").write_text(json.dumps({"name": "a", "version": "1.2.3", "scripts": scripts}))
    (package / "index.js").write_text("1\n")
    subprocess.run(["npm", "pack", "--silent", "--pack-destination", tmp_path], cwd=package, check=True, capture_output=True)
    (tmp_path / "fake.txt").write_text("")
    asked = {"name": "x", "private": True, "dependencies": {"a": f"file:{tmp_path / 'a-1.2.3.tgz'}"}}
    (scratch / "package.json").write_text(json.dumps(asked))
    lock = ["npm", "install", "--package-lock-only", "--offline", "--no-audit", "--silent"]
    subprocess.run(lock, cwd=scratch, check=True, capture_output=True)
    for name in npm.FILES:
        shutil.copyfile(scratch / name, tmp_path / f"fake.{name}")
    npm.install(tmp_path / "fake.txt", folder, scratch, tmp_path / "log", "install it", run)
    assert (folder / "node_modules" / "a" / "index.js").read_text() == "1\n" and not (tmp_path / "ran").exists(), "no script is run"
    assert npm.packages(folder) == {"npm:a": "1.2.3"}
    shutil.rmtree(folder / "node_modules" / "a")
    assert npm.packages(folder) == {"npm:a": "gone"}, "the check of a toolchain sees it"
    (package / "index.js").write_text("2\n")
    subprocess.run(["npm", "pack", "--silent", "--pack-destination", tmp_path], cwd=package, check=True, capture_output=True)
    shutil.rmtree(scratch / "npm")
    with pytest.raises(Permanent, match="not the one that is locked"):
        npm.install(tmp_path / "fake.txt", folder, scratch, tmp_path / "log", "install it", run)
