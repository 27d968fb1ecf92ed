"""The console command says what hides its packages, instead of a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def start(*path: Path, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The command with these folders first on Python's path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, *flags, "-c", "import sys, ckptd; sys.argv = ['ckptd', '--version']; sys.exit(ckptd.main())"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=path[0])


@pytest.mark.parametrize(
    ("name", "file"), [("daemon", "daemon/__init__.py"), ("daemon", "daemon.py"), ("handlers", "handlers/__init__.py")]
)
def test_a_package_that_hides_one_of_ours_is_named_with_its_place_and_its_distribution(tmp_path: Path, name: str, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('it was imported')\n")
    told = start(tmp_path, ROOT)
    assert told.returncode == 2 and told.stdout == ""
    hides = tmp_path / file.removesuffix("/__init__.py")
    said = f"ckptd: Could not start: Python finds another package {name!r} in {hides}, before ckptd's own in {ROOT}/"
    assert told.stderr.startswith(said)
    assert f"take {tmp_path} out of PYTHONPATH, or give ckptd an environment of its own" in told.stderr
    record = tmp_path / "python_daemon-3.1.2.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: python-daemon\nVersion: 3.1.2\n")
    (record / "RECORD").write_text(f"{file},,\n")
    assert f"in {hides} (of python-daemon 3.1.2), before" in start(tmp_path, ROOT).stderr


def test_a_folder_without_the_file_that_makes_it_a_package_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "daemon").mkdir()
    (tmp_path / "handlers" / "deep").mkdir(parents=True)
    told = start(tmp_path, ROOT)
    assert (told.returncode, told.stderr) == (0, "") and told.stdout.startswith("ckptd ")


def test_an_error_of_our_own_is_not_laid_at_the_door_of_others(tmp_path: Path) -> None:
    """A copy in which a module is missing: the traceback is what helps. Without the finder that an editable install brings."""
    shutil.copyfile(ROOT / "ckptd.py", tmp_path / "ckptd.py")
    for name in ("daemon", "handlers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    told = start(tmp_path, flags=("-S",))
    assert told.returncode == 1 and "No module named 'daemon.cli'" in told.stderr and "Traceback" in told.stderr


def test_check_warns_of_a_distribution_that_shares_our_names(tmp_path: Path) -> None:
    record = tmp_path / "python_daemon-3.1.2.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: python-daemon\nVersion: 3.1.2\n")
    (record / "RECORD").write_text("daemon/__init__.py,,\n")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "daemon", "check", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert [one for one in json.loads(done.stdout)["warnings"] if one.startswith("python-daemon has a package with the same name")]
