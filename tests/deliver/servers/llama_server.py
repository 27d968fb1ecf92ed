"""llama.cpp's own programs: what $LLAMA_SERVER and $LLAMA_PERPLEXITY name, or else built of the source that the toolchain `gguf` is built
of, once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.sharing import shared

ROOT = Path(__file__).parents[3]
PROGRAMS = ("llama-server", "llama-perplexity")
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release", "BUILD_SHARED_LIBS": "OFF", "LLAMA_BUILD_COMMON": "ON", "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_UI": "OFF", "LLAMA_BUILD_TESTS": "OFF", "LLAMA_BUILD_EXAMPLES": "OFF", "LLAMA_CURL": "OFF", "LLAMA_OPENSSL": "OFF",
}  # fmt: skip


def program(factory: pytest.TempPathFactory, name: str = "llama-server") -> Path:
    """One of PROGRAMS; skips the test where there is nothing to build it with."""
    variable = name.upper().replace("-", "_")
    if named := os.environ.get(variable):
        return Path(shutil.which(named) or named).resolve()
    if not shutil.which("cmake") or not (shutil.which("c++") or os.environ.get("CXX")):
        pytest.skip(f"{variable} names no {name}, and it is built with cmake and a C++ compiler")
    return shared(factory, "llama.cpp", built) / name


def built(folder: Path) -> Path:
    """Build them, below what TOOLCHAINS_TEST_STATE names if that is set, else in `folder`; give the folder of the programs."""
    requirement = _requirement()
    if state := os.environ.get("TOOLCHAINS_TEST_STATE"):
        folder = Path(state) / requirement.replace("==", "-")
        folder.mkdir(parents=True, exist_ok=True)
    made = folder / "build/bin"
    if all((made / name).is_file() for name in PROGRAMS):
        return made
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder, requirement]
    _run(*pip, environment={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = folder.glob("*/vendor/llama.cpp")
    _run("cmake", "-S", source, "-B", folder / "build", *(f"-D{name}={value}" for name, value in OPTIONS.items()))
    _run("cmake", "--build", folder / "build", "--target", *PROGRAMS, "--parallel", str(os.cpu_count()))
    return made


def _requirement() -> str:
    match = re.search(r"^llama-cpp-python==\S+", (ROOT / "handlers/gguf/gguf.txt").read_text(), re.MULTILINE)
    assert match is not None
    return match.group()


def _run(*command: str | Path, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
