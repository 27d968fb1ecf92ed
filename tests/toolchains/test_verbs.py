"""`ckptd toolchain` as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from daemon.toolchains import install
from daemon.toolchains.overview import costs
from daemon.toolchains.registry import definitions
from tests.cli.test_bad_input import ckptd
from tests.toolchains.conftest import Fake
from tests.toolchains.test_installing import copied


def test_list_tells_what_is_missing_and_what_brings_it(tmp_path: Path) -> None:
    answer = ckptd(tmp_path, "toolchain", "list", "--json")
    assert answer.returncode == 0, answer.stderr
    row = json.loads(answer.stdout)["toolchains"]["optimum"]
    assert row["installed"] is False and row["folders"] == []
    assert row["command"] == "ckptd toolchain install optimum"
    assert "optimum: not installed; `ckptd toolchain install optimum` installs it" in ckptd(tmp_path, "toolchain", "list").stdout


def test_what_is_not_installed_or_not_known_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    for verb, name, words in (
        ("check", "optimum", "check the toolchain optimum: it is not installed. Fix: run `ckptd toolchain install optimum`."),
        ("remove", "optimum", "it is not installed. Fix: there is nothing to remove; `ckptd toolchain list` shows what is installed."),
        ("install", "nothing", f"there is no toolchain 'nothing'. Fix: use one of: {', '.join(definitions())}."),
    ):
        answer = ckptd(tmp_path, "toolchain", verb, name)
        assert answer.returncode == 2, answer.stderr
        assert words in answer.stderr and answer.stderr.count("\n") == 1


def test_every_toolchain_says_what_it_costs_before_anything_is_fetched(tmp_path: Path) -> None:  # R5.4
    unmeasured = [name for name, one in definitions().items() if one.download is None]
    assert unmeasured == [], "measure what installing it downloads, and write it into its .toml"
    listed = json.loads(ckptd(tmp_path, "toolchain", "list", "--json").stdout)["toolchains"]
    shown = ckptd(tmp_path, "formats").stdout
    for name, one in definitions().items():
        assert (listed[name]["download"], listed[name]["disk"], listed[name]["seconds"]) == (one.download, one.disk, one.seconds)
        (line,) = [line for line in shown.splitlines() if line.startswith((f"toolchain {name} (", f"toolchain {name}:"))]
        assert f"`ckptd toolchain install {name}` {costs(one.fetched, one.disk, one.seconds)}" in " ".join(line.split())
    (gguf,) = [line for line in shown.splitlines() if line.startswith("toolchain gguf (")]
    assert "(for gguf-q4_k_m, " in gguf and "about 10 min" in gguf
    missing = ckptd(tmp_path, "--set", "export.variants=gguf-q8_0", "check")
    assert missing.returncode != 0 and "which is not installed (it downloads about" in " ".join(missing.stdout.split())


def test_several_are_installed_in_one_go_and_a_wrong_name_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    answer = ckptd(tmp_path, "toolchain", "install", "optimum", "nothing")
    assert answer.returncode == 2 and "there is no toolchain 'nothing'" in answer.stderr
    assert not list(tmp_path.rglob(".optimum*")), "nothing was begun"


def test_the_doctor_says_which_installed_toolchain_no_longer_works(fake: Fake, tmp_path: Path) -> None:
    chains = copied(fake, tmp_path / "copy")
    (one,) = install.examine_all(chains)
    assert one.works and one.error is None and one.folder
    shutil.rmtree(next(Path(one.folder).glob("lib/python*/site-packages/fakelib*.dist-info")))
    (one,) = install.examine_all(chains)
    assert not one.works and "its packages are not the ones that were installed" in str(one.error) and "--again" in str(one.error)
    nothing = ckptd(tmp_path, "toolchain", "doctor")
    assert nothing.returncode == 0 and "No toolchain is installed" in nothing.stdout
