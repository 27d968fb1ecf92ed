"""The wheel in an environment of its own, without the checkout: what people install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("daemon", "handlers", "ckptd.py", "config.toml", "docs", "pyproject.toml", "README.md", "LICENSE")
QUICK = {"CKPTD_EXPORT__VARIANTS": "pytorch,onnx", "CKPTD_VALIDATE__SAMPLES": "2", "CKPTD_VALIDATE__NEW_TOKENS": "4",
         "CKPTD_VALIDATE__SPEED_TOKENS": "0", "CKPTD_ONNX__OPTIMIZE": "none", "CKPTD_LIMITS__PRIORITY": "normal"}  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of a copy of the checkout so that nothing is left in it."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(path, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*command, str(target), str(source)], check=True, capture_output=True)
    (made,) = target.glob("ckptd-*.whl")
    return made


class Environment:
    """A virtual environment with the wheel; the heavy libraries come from the one in which the tests run."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.prefix, self.work = folder / "venv", folder / "work"
        self.work.mkdir(parents=True)
        venv.create(self.prefix, symlinks=True)
        self.python = self.prefix / "bin" / "python"
        self.pip(str(wheel))
        # After its own site-packages: a line of a .pth file, whose own .pth files (such as that of an editable install) do not count.
        (self.site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")

    @property
    def site(self) -> Path:
        """Where the wheel lies."""
        return next((self.prefix / "lib").glob("python*/site-packages"))

    def pip(self, *what: str) -> None:
        """Install files or folders into it."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-index", "--no-deps"]
        subprocess.run([*command, "--no-build-isolation", *what], check=True, capture_output=True)

    def run(self, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command of it, as a person types it: no PYTHONPATH, in a folder of its own."""
        names = {key: value for key, value in os.environ.items() if not key.startswith(("CKPTD_", "EXPORT_", "PYTHON", "VIRTUAL_ENV"))}
        names |= {"HOME": str(self.work), "XDG_STATE_HOME": str(self.work / "state"), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", **environment}
        command = [str(self.prefix / "bin" / words[0]), *map(str, words[1:])]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.work, env=names, timeout=280)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"), wheel)


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_both_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tree = {
        str(path.relative_to(ROOT)) for package in ("daemon", "handlers") for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }  # fmt: skip
    assert tree - names == set()
    assert {name for name in names if name.startswith(("daemon/", "handlers/"))} - tree == set()
    assert zipfile.ZipFile(wheel).read("daemon/config/defaults.toml") == (ROOT / "config.toml").read_bytes()
    assert any(name.endswith(".data/data/share/man/man1/ckptd.1") for name in names) and "ckptd.py" in names


@pytest.mark.slow
def test_what_is_installed_works_without_the_checkout(installed: Environment, pico_base: Path, pico_checkpoint: Path) -> None:
    told = installed.run("python", "-c", "import daemon, handlers, ckptd; print(daemon.__file__, handlers.__file__, ckptd.__file__)")
    assert told.stdout.count(str(installed.site)) == 3, told
    assert "Usage: ckptd" in installed.run("ckptd", "--help").stdout
    assert installed.run("python", "-m", "ckptd", "--version").stdout == installed.run("ckptd", "--version").stdout
    assert (installed.prefix / "share" / "man" / "man1" / "ckptd.1").read_text() == (ROOT / "docs" / "ckptd.1").read_text()
    monitoring = {path.name: path.read_bytes() for path in (installed.prefix / "share" / "ckptd" / "monitoring").iterdir()}
    assert monitoring == {path.name: path.read_bytes() for path in (ROOT / "docs" / "monitoring").iterdir()}
    checked = installed.run("ckptd", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    formats = json.loads(installed.run("ckptd", "formats", "--json").stdout)
    assert formats["problems"] == [] and all(one["available"] for one in formats["variants"].values() if not one["toolchain"])
    done = installed.run("ckptd", "export", pico_checkpoint, "--base", pico_base, "--output", installed.work / "out", "--json", **QUICK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["artifacts"] == {"pytorch": "passed", "onnx": "passed"}
    (report,) = (installed.work / "out").rglob("report.html")
    assert (report.parent / "README.md").is_file()


@pytest.mark.slow
def test_another_distribution_with_a_package_of_that_name_is_named(tmp_path: Path, wheel: Path) -> None:
    source = tmp_path / "source"
    (source / "daemon").mkdir(parents=True)
    (source / "daemon" / "__init__.py").write_text("from not_there import DaemonContext\n")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "other-daemon"\nversion = "3.1.2"\n[tool.setuptools]\npackages = ["daemon"]\n'
    )
    here = Environment(tmp_path / "environment", wheel)
    assert here.run("ckptd", "--version").returncode == 0
    here.pip("--force-reinstall", str(source))
    told = here.run("ckptd", "--version")
    assert told.returncode == 2 and "Traceback" not in told.stderr
    assert "other-daemon 3.1.2 brings a package of the same name, whose files were installed over those of ckptd" in told.stderr
    assert "pipx install ckptd" in told.stderr
