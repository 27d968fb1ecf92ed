"""Packages come from where the user's configuration of pip says, and what pip says is told in few words."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from daemon.contract.faults.errors import CkptdError
from daemon.system.processes.commands import run_side_by_side
from daemon.toolchains.install import install
from daemon.toolchains.installers.attempt import notice
from daemon.toolchains.installers.pip_settings import PipSettings, parsed
from daemon.toolchains.registry import Toolchains
from tests.toolchains.conftest import made
from tests.toolchains.installing.index import Index, served
from tests.toolchains.installing.test_resuming import chains_of

CONFIGURED = """
:env:.find-links='/opt/a /opt/b'
:env:.default-timeout='180'
global.index-url='https://user:word@one.example/simple'
global.extra-index-url='\\nhttps://two.example/simple\\nhttps://three.example/simple'
global.cert='/etc/ca.pem'
global.timeout='20'
install.constraint='/etc/bounds.txt'
install.find-links='/nowhere'
list.format='json'
freeze.all='true'
"""


def test_what_counts_for_pip_install_is_read_as_pip_says_it() -> None:
    found = parsed(CONFIGURED)
    assert found.values == {
        "find-links": "/opt/a /opt/b", "default-timeout": "180", "index-url": "https://user:word@one.example/simple", "timeout": "20",
        "extra-index-url": "\nhttps://two.example/simple\nhttps://three.example/simple", "cert": "/etc/ca.pem",
        "constraint": "/etc/bounds.txt",
    }  # fmt: skip
    assert found.for_pip() == {"PIP_CONSTRAINT": "/etc/bounds.txt"}, "which other commands of pip would not read"


def test_downloads_belong_to_what_decides_which_packages_come(tmp_path: Path) -> None:
    bounds = tmp_path / "bounds.txt"
    bounds.write_text("torch<3\n")
    plain = {"index-url": "https://one.example/simple", "constraint": str(bounds)}

    def digest(**more: str) -> str:
        return PipSettings({**plain, **{key.replace("_", "-"): value for key, value in more.items()}}, {}).digest

    first = digest()
    assert digest(timeout="3", cert="/x", proxy="http://p", no_color="1") == first
    assert digest(index_url="https://two.example/simple") != first != digest(only_binary=":all:")
    bounds.write_text("torch<2\n")
    assert digest() != first


def test_what_installers_say_is_told_in_few_words() -> None:
    said: list[str] = []
    lines = "Collecting torch==2\n  Downloading https://x/y/torch-2.whl (900 MB)\nSaved ./x.whl\nBuilding wheel for a (b): started"
    for line in lines.splitlines():
        notice(line.encode(), said.append)
    assert said == ["fetching torch==2", "fetching torch-2.whl", "building a"]


def test_commands_side_by_side_are_heard_line_by_line_and_end_with_what_is_raised(tmp_path: Path) -> None:
    # A command waits for the file that it is given, or makes it.
    program = (
        "import os, sys, time; print('a\\nb', end=''); sys.stdout.flush(); waits, path = sys.argv[1][0] == '-', sys.argv[1][1:];\n"
        "while waits and not os.path.exists(path): time.sleep(0.01)\n"
        f"waits or open(path, 'w').close(); print('c'); sys.exit(int(sys.argv[2])) # {tmp_path}"
    )
    heard: list[tuple[int, bytes]] = []

    def commands(*rows: tuple[str, str]) -> list[list[str]]:
        return [[sys.executable, "-c", program, *row] for row in rows]

    waits = ("-" + str(tmp_path / "ended"), "3")

    ended = run_side_by_side(
        commands(waits, ("+" + str(tmp_path / "made"), "0"), ("+" + str(tmp_path / "last"), "4")),
        lambda *line: heard.append(line),
        most=2,
        environment=os.environ,
    )
    assert [next(ended), next(ended)] == [(1, 0), (2, 4)]
    (tmp_path / "ended").touch()
    assert list(ended) == [(0, 3)]
    assert sorted(heard) == sorted((number, line) for number in range(3) for line in (b"a\n", b"bc\n"))
    more = run_side_by_side(
        commands(("-never", "0"), ("+" + str(tmp_path / "made"), "0"), ("-never", "0")), lambda *one: None, most=2, environment=os.environ
    )
    assert next(more)[0] == 1
    more.close()
    lives = [one for one in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(one)]
    assert [one for one in lives if one.parent.name != str(os.getpid())] == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_builds_with_a_local_version_come_from_where_pip_takes_them(
    index: Index, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's build for CPUs lies in a folder of `find-links`, or in another index, beside that of the main index."""
    probe = zipfile.ZipFile(next(wheels.glob("fakelib-1.0-*"))).read("fakelib/probe.py").decode()
    for version, folder in (("1.0+cpu", "links"), ("1.0+abc", "links"), ("1.0+abd", "extra"), ("1.0+abd", "further")):
        modules = {"fakelib/__init__.py": f"VERSION = '{version} of {folder}'\n", "fakelib/probe.py": probe}
        made("fakelib", version, modules, tmp_path / folder)
    (tmp_path / "bounds.txt").write_text("fakelib<=1.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "bounds.txt"))
    known = chains_of(tmp_path).known
    with served(tmp_path / "extra") as extra, served(tmp_path / "further") as further:
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{extra.url} {further.url}")
        from_indexes = install(Toolchains(tmp_path / "first", known), "fake", print).manifest
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
        from_links = install(Toolchains(tmp_path / "second", known), "fake", print).manifest
    assert (from_indexes.packages["fakelib"], from_links.packages["fakelib"]) == ("1.0+abd", "1.0+cpu")


@pytest.mark.slow
def test_a_file_that_is_not_the_one_that_the_index_promised_is_refused(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.toolchains.installing import index as module

    monkeypatch.setattr(module, "digest", lambda path: "0" * 64)
    with pytest.raises(CkptdError, match=r"(?i)hash|promised") as caught:
        install(Toolchains(tmp_path / "state", chains_of(tmp_path).known), "fake", print)
    assert "\n" not in str(caught.value)
