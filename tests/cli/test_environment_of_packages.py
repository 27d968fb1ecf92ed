"""A Python whose packages do not suit ckptd is told as what it is, ahead of the errors that follow from it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.operating.diagnosis.packages import unsuitable
from daemon.running.rules.resume_keys import library_version
from tests.cli.test_bad_input import ckptd
from tests.service import Service


@pytest.fixture(autouse=True)
def looked_up_anew() -> Iterator[None]:
    """No version that this process knows from before, and none of these for what runs in it later."""
    library_version.cache_clear()
    yield
    library_version.cache_clear()


def other_version(folder: Path, name: str, version: str) -> Path:
    """A folder for PYTHONPATH in which a package has another version than installed: its metadata alone."""
    found = folder / "first" / f"{name.replace('-', '_')}-{version}.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder / "first"


def test_what_is_installed_here_suits() -> None:
    assert unsuitable() == ()


@pytest.mark.parametrize(("name", "version", "suits"), [
    ("onnx-ir", "1.0.0", False), ("onnx-ir", "99.0", True), ("watchdog", "8.0.1", False), ("torch", "2.9.0+cu130", True),
    ("transformers", "5.9.0.dev0", True), ("pytest", "1.0", True), ("onnx-ir", "", True),
    ("onnx-ir", "1.0-of our own", True),
])  # fmt: skip
def test_a_version_that_does_not_suit_is_named_with_the_way_out(
    name: str, version: str, suits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(other_version(tmp_path, name, version)))
    assert importlib.metadata.version(name) == version
    told = "".join(unsuitable())
    assert (not told) is suits
    assert suits or (f"the installed {name} {version}," in told and f"-m pip install '{name}" in told)


def test_check_says_so(tmp_path: Path) -> None:
    state = {"CKPTD_STATE__DIRECTORY": str(tmp_path / "state"), "CKPTD_OUTPUT__DIRECTORY": str(tmp_path / "exports")}
    path = os.pathsep.join([str(other_version(tmp_path, "onnx-ir", "1.0.0")), *filter(None, [os.environ.get("PYTHONPATH")])])
    answer = ckptd(tmp_path, "check", "--json", PYTHONPATH=path, **state)
    assert "the installed onnx-ir 1.0.0," in " ".join(json.loads(answer.stdout)["warnings"])


def test_the_daemon_says_so_when_it_starts(make_service: Callable[..., Service], tmp_path: Path) -> None:
    service = make_service()
    service.environment |= {"PYTHONPATH": str(other_version(tmp_path, "onnx-ir", "1.0.0"))}
    service.start()
    service.stop()
    lines = [json.loads(line) for line in service.log().splitlines()]
    assert ["onnx-ir 1.0.0" in line["message"] for line in lines if line["event"] == "daemon.lacks"] == [True]


def test_a_ckptd_that_was_not_installed_says_that_and_not_that_pytorch_is_no_variant(tmp_path: Path) -> None:
    script = "from daemon.contract.formats.catalog import use; use(()); from daemon.cli.main import main; raise SystemExit(main())"
    done = subprocess.run([sys.executable, "-c", script, "check", "--json"], capture_output=True, text=True, cwd=tmp_path, check=False,
                          env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)})  # fmt: skip
    assert done.returncode == 2, done.stderr
    (problem,) = json.loads(done.stdout)["problems"]
    assert "was not installed by pip" in problem and "pip install -e" in problem and "there is no variant" not in problem


def test_an_export_that_did_not_succeed_says_so(tmp_path: Path, pico_checkpoint: Path) -> None:
    orphan = Path(shutil.copytree(pico_checkpoint, tmp_path / "run" / "checkpoint-4"))
    config = json.loads((orphan / "adapter_config.json").read_text())
    (orphan / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "acme/nowhere"}))
    path = other_version(tmp_path, "onnx-ir", "1.0.0")
    answer = ckptd(tmp_path, "export", orphan, "--output", tmp_path / "out", PYTHONPATH=str(path))
    assert answer.returncode == 1, answer.stderr
    assert "the installed onnx-ir 1.0.0," in " ".join(answer.stderr.split())
