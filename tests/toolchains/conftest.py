"""A toolchain made of wheels that are put together here, so that all but optimum itself is tried without a network."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemon.contract.jobs.messages import StageContext
from daemon.toolchains import install
from daemon.toolchains.registry import IN_USE, Definition, Installed, Toolchains, definitions
from tests import models
from tests.onnx.conftest import export, qwen3, qwen3_int8, trained  # noqa: F401
from tests.sharing import shared
from tests.toolchains import real
from tests.toolchains.installing.index import Index, served

ROOT = Path(__file__).parents[2]
CONTRACT = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")
"""What ckptd's entry for stages needs."""
PROBE = """
import argparse, os
from dataclasses import dataclass
from handlers.toolchains import inside
@dataclass
class Probed:
    number: int
def probe(options):
    {body}
    return Probed(7)
inside.main(argparse.ArgumentParser(), probe)
"""


def repacked(name: str, target: Path) -> None:
    """A wheel of a distribution that is installed here."""
    found = importlib.metadata.distribution(name)
    files = [path for path in found.files or () if ".." not in path.parts and "__pycache__" not in path.parts]
    tags = next(line for line in (found.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: ")).removeprefix("Tag: ")
    with zipfile.ZipFile(target / f"{name}-{found.version}-{tags}.whl", "w") as wheel:
        for path in files:
            if path.name not in ("INSTALLER", "REQUESTED", "direct_url.json"):
                wheel.write(str(found.locate_file(path)), str(path))


def made(name: str, version: str, modules: dict[str, str], target: Path, needs: Sequence[str] = ()) -> Path:
    """A wheel of the given modules, always with the same bytes."""
    info = f"{name}-{version}.dist-info"
    required = "".join(f"Requires-Dist: {one}\n" for one in needs)
    files = {
        **modules,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode() for path, text in files.items()}
    record = "".join(f"{path},sha256={digests[path]},{len(files[path].encode())}\n" for path in files) + f"{info}/RECORD,,\n"
    target.mkdir(exist_ok=True)
    with zipfile.ZipFile(target / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(zipfile.ZipInfo(path), text)
    return Path(str(wheel.filename))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of fake toolchains. Read only."""
    return shared(tmp_path_factory, "wheels", make_wheels)


def make_wheels(folder: Path) -> Path:
    """Make those wheels in `folder`."""
    for name in CONTRACT:
        repacked(name, folder)
    bodies = {"1.0": "pass", "2.0": "raise RuntimeError('two plus two is five')", "3.0": "pass"}
    for version, body in bodies.items():
        made("fakelib", version, {"fakelib/__init__.py": f"VERSION = '{version}'\n", "fakelib/probe.py": PROBE.format(body=body)}, folder)
    return folder


def define(folder: Path, wheels: Path | None, version: str = "1.0", name: str = "fake", **facts: object) -> dict[str, Definition]:
    """The definition of a fake toolchain in files of `folder`, read as the project's own are. `wheels`: None for pip's index."""
    folder.mkdir(exist_ok=True)
    values = {"about": "a toolchain for tests", "disk": 50 << 20, "seconds": 5, "probe": "fakelib.probe", **facts}
    (folder / f"{name}.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    pinned = [f"{one}=={importlib.metadata.version(one)}" for one in CONTRACT]
    places = ["--no-index", f"--find-links {wheels}"] if wheels else ["--only-binary :all:"]
    lines = ["# a comment", *places, *pinned, f"fakelib=={version}"]
    (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return definitions(folder)


@dataclass(frozen=True)
class Fake:
    """An installed fake toolchain, what was said while it came, and where it lies."""

    chains: Toolchains
    installed: Installed
    said: list[str]
    state: Path
    wheels: Path


def put_in(state: Path, known: dict[str, Definition], wheels: Path = Path()) -> Fake:
    """Install the fake toolchain of `known` below `state`."""
    said: list[str] = []
    chains = Toolchains(state, known)
    return Fake(chains, install.install(chains, "fake", said.append), said, state, wheels)


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Fake:
    """Installed once for all. Read only."""
    return shared(tmp_path_factory, "fake", lambda folder: put_in(folder / "state", define(folder / "definitions", wheels), wheels))


def copied(fake: Fake, state: Path) -> Toolchains:
    """The same toolchain elsewhere, whose files may be removed and replaced, and not written into: they are links.

    An environment can be moved, since only its Python is used.
    """

    def link(source: str, target: str) -> None:
        shutil.copy2(source, target) if source.endswith(IN_USE) else os.link(source, target)

    shutil.copytree(fake.chains.home, state / "toolchains", symlinks=True, copy_function=link)
    return Toolchains(state, fake.chains.known)


def replaced(path: Path, text: str) -> None:
    """Put other text in the place of a file that may have another name elsewhere."""
    path.unlink()
    path.write_text(text)


def installer(state: Path, definitions: Path) -> list[str]:
    """The command that installs the toolchain `fake` in a process of its own, told on stdout."""
    program = textwrap.dedent(f"""
        from pathlib import Path
        from daemon.toolchains.install import install
        from daemon.toolchains.registry import Toolchains, definitions
        known = definitions(Path({str(definitions)!r}))
        install(Toolchains(Path({str(state)!r}), known), "fake", lambda line: print(line, flush=True))
    """)
    return [sys.executable, "-c", program]


def started(state: Path, definitions: Path, until: str, **environment: str) -> subprocess.Popen[str]:
    """That process, once it has said `until`."""
    process = subprocess.Popen(
        installer(state, definitions), cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(until):
            return process
    raise AssertionError(f"it ended with {process.wait()} and never said {until!r}")


@pytest.fixture(scope="session")
def optimum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real toolchain's folder."""
    return real.folder_of(real.state_with(tmp_path_factory, "optimum"), "optimum")


@pytest.fixture(scope="session")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with a rotary base frequency of a million and heads that are wider than hidden size / heads."""
    return models.make_base(
        tmp_path_factory.mktemp("million"), dtype="float32", head_dim=32, initializer_range=0.15,
        rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
    )  # fmt: skip


@pytest.fixture(scope="session")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Marian with random weights."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(7)
    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = MarianConfig(
        vocab_size=320, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=64, pad_token_id=319, eos_token_id=0,
        decoder_start_token_id=319, init_std=0.15, **sizes,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("marian")
    MarianMTModel(config).save_pretrained(folder)
    return folder


def offered(context: StageContext, folder: Path) -> StageContext:
    """The context with a toolchain's folder offered to it as `optimum`."""
    home = Path(context.cache) / "toolchains"
    home.mkdir(parents=True)
    (home / "optimum").symlink_to(folder)
    return context


def stand_in(folder: Path, body: str) -> Path:
    """A toolchain whose Python runs `body` whatever module it is told to run.

    `body` finds the options as strings in `options`, puts its answer into `answer` (which is that of an export before) or raises, and
    has this environment's libraries.
    """
    (folder / "bin").mkdir(parents=True)
    (folder / "toolchain.json").write_text("{}")
    program = folder / "program.py"
    program.write_text(
        "import json, pathlib, shutil, sys\n"
        "options = dict(zip([key[2:].replace('-', '_') for key in sys.argv[2::2]], sys.argv[3::2]))\n"
        f"with open({str(folder / 'calls')!r}, 'a') as calls:\n    calls.write(json.dumps([sys.argv[1], options]) + '\\n')\n"
        f"answer = {{'files': [], 'opset': 18, 'task': '', 'seconds': 0.0, 'versions': {{}}}}\n{textwrap.dedent(body)}\n"
        "pathlib.Path(options['answer']).write_text(json.dumps({'answer': answer}))\n"
    )
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    return folder


def calls(folder: Path) -> list[tuple[str, dict[str, str]]]:
    """The module and the options of each time that a stand-in was run."""
    path = folder / "calls"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def index(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The index that pip is configured with, and nothing else."""
    folder = tmp_path / "served"
    shutil.copytree(wheels, folder)
    with served(folder) as found:
        only(monkeypatch, PIP_INDEX_URL=found.url)
        yield found


def only(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """pip's configuration is this, whatever this box's is."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", **settings}.items():
        monkeypatch.setenv(name, value)
