"""A real toolchain that is broken in three ways: it is said by name, and installing it again mends it. With uv it holds what pip brings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract.errors import Permanent
from daemon.toolchains import install
from daemon.toolchains.registry import MANIFEST, Toolchains
from tests.toolchains import real
from tests.toolchains.conftest import on_the_path

NAME = "openvino"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def chains(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Toolchains:
    """A copy of the installed toolchain, to be broken."""
    folder = real.folder_of(real.state_with(tmp_path_factory, NAME), NAME)
    found = Toolchains(tmp_path / "state")
    shutil.copytree(folder, found.folder(NAME), symlinks=True, copy_function=linked)
    return found


def linked(source: str, target: str) -> str:
    """The same file under another name; a copy where that is not possible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def without_a_file(folder: Path) -> None:
    (module,) = folder.glob("lib/python*/site-packages/openvino/_ov_api.py")
    module.unlink()


def without_its_python(folder: Path) -> None:
    for path in folder.glob("bin/python*"):
        path.unlink()


def with_half_a_manifest(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).write_text(text[: len(text) // 2])


@pytest.mark.parametrize(
    ("damage", "said", "again"),
    [
        (without_a_file, "its files are not the ones that were installed: openvino/_ov_api.py is missing", True),
        (without_its_python, "it is damaged (the Python that it was created with no longer exists)", False),
        (with_half_a_manifest, "it is damaged (its manifest is missing or can't be read)", False),
    ],
)
def test_what_is_broken_is_said_and_installing_it_mends_it(
    chains: Toolchains, damage: Callable[[Path], None], said: str, again: bool
) -> None:  # R7.1
    install.check(chains, NAME)
    damage(chains.folder(NAME))
    with pytest.raises(Permanent) as caught:
        install.check(chains, NAME)
    assert said in str(caught.value) and f"ckptd toolchain install {NAME}" in str(caught.value)
    (one,) = install.examine_all(chains)
    assert not one.works and said in str(one.error)
    install.install(chains, NAME, print, again=again)
    install.check(chains, NAME)
    assert [path.name for path in chains.home.iterdir() if path.is_dir()] == [chains.folder(NAME).name]


def test_uv_and_pip_bring_the_same_packages_from_this_boxs_indexes(
    tmp_path: Path, uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R7.1
    on_the_path(monkeypatch, uv)
    by_pip, by_uv = (install.install(Toolchains(tmp_path / one), NAME, print, installer=one).manifest for one in ("pip", "uv"))  # type: ignore[arg-type]
    assert by_uv.installer.startswith("uv ") and by_pip.installer.startswith("pip ")
    assert by_uv.packages == by_pip.packages and by_uv.wheels == by_pip.wheels
    assert by_uv.unlike == by_pip.unlike == {}
