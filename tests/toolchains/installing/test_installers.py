"""uv or pip: which one is used, and why; both bring the same packages, from the user's configuration of pip."""

from __future__ import annotations

import os
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract.faults.errors import Permanent
from daemon.system.processes.commands import run_side_by_side
from daemon.toolchains import install as toolchain_install
from daemon.toolchains.install import install
from daemon.toolchains.installers import downloads
from daemon.toolchains.installers import uv as with_uv
from daemon.toolchains.installers.attempt import notice
from daemon.toolchains.installers.failures import line_of
from daemon.toolchains.installers.pip_settings import PipSettings, UnlikePip, parsed
from daemon.toolchains.registry import Manifest, Toolchains
from tests.toolchains.conftest import CONTRACT, made, on_the_path, started
from tests.toolchains.installing.index import Index, served
from tests.toolchains.installing.test_installing import killed, when_free
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


def test_uv_is_told_what_pip_is_configured_with(tmp_path: Path) -> None:
    values = {
        **parsed(CONFIGURED).values,
        "find-links": f"{tmp_path} {tmp_path.as_uri()}",
        "trusted-host": "one.example",
        "proxy": "http://p:3",
    }
    told = PipSettings({**values, "no-color": "true", "use-feature": "truststore", "client-cert": "/etc/me.pem"}, {}).for_uv()
    assert told.options == [
        "--default-index", "https://user:word@one.example/simple", "--index", "https://three.example/simple", "--index",
        "https://two.example/simple", "--allow-insecure-host", "one.example",
    ]  # fmt: skip
    assert told.links == [str(tmp_path), tmp_path.as_uri()] and told.constraints == ["/etc/bounds.txt"]
    assert told.variables == {
        "SSL_CERT_FILE": "/etc/ca.pem", "UV_HTTP_TIMEOUT": "180", "HTTP_PROXY": "http://p:3", "HTTPS_PROXY": "http://p:3",
        "ALL_PROXY": "http://p:3", "UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true", "SSL_CLIENT_CERT": "/etc/me.pem",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("prefer-binary", "true", "'prefer-binary'"),
        ("pre", "true", "'pre'"),
        ("find-links", "https://links.example/", "find-links of your pip configuration is no folder"),
        ("keyring-provider", "import", "keyring"),
        ("use-feature", "no-binary-enable-wheel-cache", "uv knows no no-binary-enable-wheel-cache"),
    ],
)
def test_what_uv_can_not_be_told_is_a_reason_for_pip(key: str, value: str, why: str) -> None:
    with pytest.raises(UnlikePip, match=why):
        PipSettings({key: value}, {}).for_uv()


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


def test_a_uv_that_is_missing_old_or_broken_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_uv.importlib.util, "find_spec", lambda name: None)
    on_the_path(monkeypatch, None)
    with pytest.raises(UnlikePip, match="there is no uv on the PATH"):
        with_uv.find()
    for said, why in (("echo uv 0.5.31", r"is 0\.5\.31, older than 0\.8"), ("echo nothing >&2; exit 3", r"can't be run \(nothing\)")):
        (tmp_path / "uv").write_text(f"#!/bin/sh\n{said}\n")
        (tmp_path / "uv").chmod(0o755)
        on_the_path(monkeypatch, tmp_path)
        with pytest.raises(UnlikePip, match=why):
            with_uv.find()
    said = "error: Request failed\n  cause: Failed to fetch: http://x/\n  cause: more\n"
    assert line_of(said) == "Request failed: Failed to fetch: http://x/"
    (tmp_path / "uv").write_text("#!/bin/sh\necho 'uv 1.0.2 (x86_64-unknown-linux-gnu)'\n")
    assert with_uv.find() == with_uv.Uv((str(tmp_path / "uv"),), "1.0.2")


def test_a_list_of_packages_is_written_as_uv_reads_it() -> None:
    lines = ["--only-binary a,b", "--no-binary=c", "--find-links /x,y", "d==1"]
    assert with_uv.as_uv_reads(lines) == ["--only-binary a", "--only-binary b", "--no-binary c", "--find-links /x,y", "d==1"]


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


Put = Callable[..., Manifest]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uv: Path, index: Index) -> Put:
    """Installs `fake` below a new folder with this installer; uv is on the PATH."""
    on_the_path(monkeypatch, uv)
    made_so_far: list[Path] = []

    def work(installer: str, chains: Toolchains | None = None) -> Manifest:
        state = tmp_path / f"state-{len(made_so_far)}"
        made_so_far.append(state)
        known = chains_of(tmp_path).known if chains is None else chains.known
        return install(Toolchains(state, known), "fake", print, installer=installer).manifest  # type: ignore[arg-type]

    return work


def same(one: Manifest, other: Manifest) -> bool:
    """Whether two installations hold the same packages from the same files."""
    return one.packages == other.packages and one.wheels == other.wheels


@pytest.mark.slow
def test_uv_is_used_where_it_is_there_and_brings_the_same_files_as_pip(
    put: Put, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # R7.1
    (tmp_path / "another.txt").write_text("fakelib<1\n")
    monkeypatch.setenv("UV_CONSTRAINT", str(tmp_path / "another.txt"))  # of another project of the user's
    by_uv, by_pip = put("auto"), put("pip")
    assert by_uv.installer.startswith("uv ") and by_uv.installer_why == "" and by_pip.installer.startswith("pip ")
    assert same(by_uv, by_pip) and len(by_uv.wheels) == len(CONTRACT) + 1 and by_uv.unlike == {}


@pytest.mark.slow
def test_builds_with_a_local_version_come_from_where_pip_takes_them(
    put: Put, index: Index, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's build for CPUs lies in a folder of `find-links`, or in another index, beside that of the main index."""
    probe = zipfile.ZipFile(next(wheels.glob("fakelib-1.0-*"))).read("fakelib/probe.py").decode()
    for version, folder in (("1.0+cpu", "links"), ("1.0+abc", "links"), ("1.0+abd", "extra"), ("1.0+abd", "further")):
        modules = {"fakelib/__init__.py": f"VERSION = '{version} of {folder}'\n", "fakelib/probe.py": probe}
        made("fakelib", version, modules, tmp_path / folder)
    (tmp_path / "bounds.txt").write_text("fakelib<=1.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "bounds.txt"))
    with served(tmp_path / "extra") as extra, served(tmp_path / "further") as further:
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{extra.url} {further.url}")
        from_indexes = [put(one) for one in ("uv", "pip")]
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
        from_links = [put(one) for one in ("uv", "pip")]
    assert same(*from_indexes) and from_indexes[0].packages["fakelib"] == "1.0+abd"
    assert same(*from_links) and from_links[0].packages["fakelib"] == "1.0+cpu"


def _version(name: str, wheels: Path) -> str:
    return next(wheels.glob(f"{name}-*")).name.split("-")[1]


@pytest.mark.slow
def test_where_uv_would_take_another_file_of_the_same_version_pip_is_used(
    put: Put, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(
        "typing_extensions",
        _version("typing_extensions", index.folder),
        {"typing_extensions.py": "raise SystemExit(1)\n"},
        tmp_path / "links",
    )
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    found = put("auto")
    assert (
        found.installer.startswith("pip ")
        and "uv and pip may choose otherwise between several files of typing-extensions" in found.installer_why
    )
    assert same(found, put("pip"))
    with pytest.raises(Permanent, match=r"toolchains\.installer is 'uv', and uv and pip may choose otherwise") as caught:
        put("uv")
    assert caught.value.fault.code == "installer-unusable"


@pytest.mark.slow
def test_a_setting_that_uv_does_not_know_and_a_missing_uv_lead_to_pip_and_are_said(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_PREFER_BINARY", "1")
    found = put("auto")
    assert (
        found.installer.startswith("pip ")
        and found.installer_why == "uv can't be told the setting 'prefer-binary' of your pip configuration"
    )
    monkeypatch.delenv("PIP_PREFER_BINARY")
    on_the_path(monkeypatch, None)
    monkeypatch.setattr(with_uv.importlib.util, "find_spec", lambda name: None)
    assert put("auto").installer_why == "there is no uv on the PATH"


@pytest.mark.slow
def test_an_index_that_uv_gets_no_answer_from_is_left_to_pip_to_explain(put: Put, index: Index) -> None:
    (wheel,) = index.named("annotated-types")
    wheel.unlink()
    with pytest.raises(Permanent, match=r"index has no annotated_types==\S+ for Python") as caught:
        put("auto")
    assert caught.value.fault.code == "no-package"


@pytest.mark.slow
def test_uv_goes_on_with_what_it_has_fetched(
    put: Put, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uv: Path
) -> None:  # R7.1
    """From an index that allows files to be kept, as all large ones do."""
    index.forgetful = False
    index.waiting.add("fakelib")
    chains = chains_of(tmp_path)
    process = started(tmp_path / "state", tmp_path / "definitions", "fetching its packages", "uv")
    assert index.arrived.wait(60)
    while len(list(chains.home.glob(".fake.wheels-*/cache/archive-v*/*"))) < len(CONTRACT):
        assert process.poll() is None
    time.sleep(2)  # uv notes what it has unpacked a moment later
    killed(process)
    index.waiting.clear()
    manifest = when_free(lambda: install(chains, "fake", print, installer="uv")).manifest
    assert manifest.installer.startswith("uv ") and {index.asked_of(name) for name in CONTRACT} == {1} and index.asked_of("fakelib") == 2
    assert not downloads.of(chains.home, "fake")
    toolchain_install.check(chains, "fake")


@pytest.mark.slow
def test_a_file_that_is_not_the_one_that_was_resolved_is_refused(put: Put, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.toolchains.installing import index as module

    monkeypatch.setattr(module, "digest", lambda path: "0" * 64)
    for installer in ("uv", "pip"):
        with pytest.raises(Exception, match=r"(?i)hash|promised") as caught:
            put(installer)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_uv_and_pip_bring_the_same_packages_from_this_boxs_indexes(
    tmp_path: Path, uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R7.1
    on_the_path(monkeypatch, uv)
    by_pip, by_uv = (install.install(Toolchains(tmp_path / one), "openvino", print, installer=one).manifest for one in ("pip", "uv"))  # type: ignore[arg-type]
    assert by_uv.installer.startswith("uv ") and by_pip.installer.startswith("pip ")
    assert by_uv.packages == by_pip.packages and by_uv.wheels == by_pip.wheels
    assert by_uv.unlike == by_pip.unlike == {}
