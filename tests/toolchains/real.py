"""Toolchains that are installed for real, below what TOOLCHAINS_TEST_STATE names, or else in a temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from daemon.toolchains import install
from daemon.toolchains.registry import Toolchains
from tests import models
from tests.sharing import shared
from tests.validate import sabotage


def state_with(factory: pytest.TempPathFactory, name: str) -> Path:
    """A state directory with the toolchain, which one of the processes that run the tests installs, with pip's own index."""

    def put(folder: Path) -> Path:
        state = Path(os.environ.get("TOOLCHAINS_TEST_STATE") or folder)
        install.install(Toolchains(state), name, print)
        return state

    return shared(factory, f"toolchain-{name}", put)


def folder_of(state: Path, name: str) -> Path:
    """The toolchain's own folder."""
    found = Toolchains(state).get(name)
    assert found is not None
    return found.folder


def fixtures(name: str) -> tuple[Any, Any, Any]:
    """The fixtures `state`, `toolchain` and `libraries` for the tests of one toolchain."""

    @pytest.fixture(scope="session")
    def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A state directory with the toolchain."""
        return state_with(tmp_path_factory, name)

    @pytest.fixture(scope="session")
    def toolchain(state: Path) -> Path:
        """Its folder."""
        return folder_of(state, name)

    @pytest.fixture
    def libraries(toolchain: Path) -> Iterator[None]:
        """What it holds can be imported here too."""
        yield from imported(toolchain)

    return state, toolchain, libraries


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training of a model that has learnt a few texts."""
    from tests.onnx.conftest import train

    folder = tmp_path_factory.mktemp("run")
    return models.train_run(train(folder / "base"), folder / "run", steps=4)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> sabotage.Lab:
    """Models to be told apart: a base, and checkpoints that learnt what it does not know."""
    return sabotage.make(tmp_path_factory.mktemp("lab"))


def live_text(checkpoint: Path, prompt: str, tokens: int = 24) -> str:
    """What the live model writes behind a prompt, by the most likely token."""
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    live = AutoPeftModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    written = live.generate(**inputs, max_new_tokens=tokens, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(written, skip_special_tokens=True))


def imported(folder: Path) -> Iterator[None]:
    """While this runs, what the toolchain holds can be imported here too, where the main environment has no such package."""
    (site,) = folder.glob("lib/python*/site-packages")
    sys.path.append(str(site))
    yield
    sys.path.remove(str(site))


def export(checkpoint: Path, state: Path, folder: Path, variants: Sequence[str]) -> Path:
    """The folder of an export by the command line, all of whose variants passed."""
    environment = {
        **os.environ, "CKPTD_STATE__DIRECTORY": str(state), "XDG_STATE_HOME": str(folder / "xdg"), "CKPTD_LIMITS__PRIORITY": "normal",
        "HF_HUB_OFFLINE": "1", "CKPTD_EXPORT__VARIANTS": ",".join(variants),
    }  # fmt: skip
    command = [sys.executable, "-m", "daemon", "export", str(checkpoint), "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.rglob("report.json")).parent
