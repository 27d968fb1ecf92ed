"""Environments of other people's programs: trainers, and clients that read what is published."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRAINERS = ROOT / "tests" / "trainers" / "environments"
"""Lists of the trainers' packages."""


def of_trainers(factory: pytest.TempPathFactory) -> Environments:
    """The trainers' environments, kept in the folder that TRAINERS_TEST_ENVIRONMENTS names."""
    return Environments(_kept(factory, "trainers"), TRAINERS)


def of_clients(factory: pytest.TempPathFactory) -> Environments:
    """The clients' environments, kept in the folder that CLIENTS_TEST_ENVIRONMENTS names."""
    return Environments(_kept(factory, "clients"), ROOT / "tests" / "clients" / "environments")


def of_trackers(factory: pytest.TempPathFactory) -> Environments:
    """The experiment trackers' environment, kept in the folder that TRACKERS_TEST_ENVIRONMENTS names."""
    return Environments(_kept(factory, "trackers"), ROOT / "tests" / "trackers" / "environments")


def _kept(factory: pytest.TempPathFactory, name: str) -> Path:
    return Path(os.environ.get(f"{name.upper()}_TEST_ENVIRONMENTS") or factory.mktemp(name))


class Environments:
    """Virtual environments, each made when it is first asked for.

    Each has the packages of its list, `NAME.txt` in the folder `pins`, without their dependencies; what that list does not name, torch
    above all, comes from the environment that the tests run in, and then from `main`, where there is such a list.
    """

    def __init__(self, folder: Path, pins: Path) -> None:
        self._folder, self._pins = folder, pins

    def python(self, name: str) -> Path:
        """The Python of an environment."""
        folder = self._folder / name
        python, packages = folder / "bin" / "python", _packages(folder)
        if not (packages / "ours.pth").is_file():
            venv.create(folder, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", self._pins / f"{name}.txt"], check=True)
        is_last = name == "main" or not (self._pins / "main.txt").is_file()
        others = [] if is_last else [str(_packages(self.python("main").parents[1]))]
        # Anew each time: one that is kept may have been made by an environment that lies elsewhere.
        (packages / "ours.pth").write_text("\n".join([*site.getsitepackages(), *others]) + "\n")
        return python

    def packages_of_npm(self) -> Path:
        """The folder with `node_modules` of the list's package.json; scripts of packages are not run."""
        folder = self._folder / "node"
        if not (folder / "node_modules" / ".package-lock.json").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copy(self._pins / name, folder)
            subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)
        return folder

    def run(self, name: str, *words: object) -> subprocess.CompletedProcess[str]:
        """`python -m WORDS` in an environment, on one thread and without a GPU or a network."""
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
            "HF_DATASETS_CACHE": str(self._folder / "datasets"), "DISABLE_VERSION_CHECK": "1", "AXOLOTL_DO_NOT_TRACK": "1",
            "UNSLOTH_DISABLE_STATISTICS": "1", "WANDB_DISABLED": "true", "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        command = [self.python(name), "-W", "ignore", "-m", *map(str, words)]
        # Some libraries write caches into the directory that they run in.
        (self._folder / "cwd").mkdir(exist_ok=True, parents=True)
        return subprocess.run(command, cwd=self._folder / "cwd", env=environment, capture_output=True, text=True, check=False, timeout=900)


def _packages(environment: Path) -> Path:
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
