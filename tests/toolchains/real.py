"""Toolchains that are installed for real, below what TOOLCHAINS_TEST_STATE names, or else in a temporary folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.toolchains import install
from daemon.toolchains.registry import Toolchains
from tests import models
from tests.exports.formats import FORMATS
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


def trained(factory: pytest.TempPathFactory) -> Path:
    """A short training of a model that has learnt a few texts."""

    def make(folder: Path) -> Path:
        from tests.onnx.conftest import train

        return models.train_run(train(folder / "base"), folder / "run", steps=4)

    return shared(factory, "run-for-toolchains", make)


def exported(factory: pytest.TempPathFactory, name: str) -> Path:
    """The export of the training by the command line, with all variants of the format of a toolchain. Read only."""

    def make(folder: Path) -> Path:
        return export(trained(factory) / "checkpoint-4", state_with(factory, name), folder / "out, put", FORMATS[name].variants)

    return shared(factory, f"exported-{name}", make)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `trained`."""
    return trained(tmp_path_factory)


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


def export(
    checkpoint: Path, state: Path, folder: Path, variants: Sequence[str], code: int = 0, unverified: Sequence[str] = ()
) -> Path:  # fmt: skip
    """The folder of an export by the command line, which ends with `code`. `unverified`: what is published though it can't be checked."""
    environment = {
        **os.environ, "CKPTD_STATE__DIRECTORY": str(state), "XDG_STATE_HOME": str(folder / "xdg"), "CKPTD_LIMITS__PRIORITY": "normal",
        "HF_HUB_OFFLINE": "1", "CKPTD_EXPORT__VARIANTS": ",".join(variants), "CKPTD_VALIDATE__PUBLISH_UNVERIFIED": json.dumps(unverified),
    }  # fmt: skip
    command = [sys.executable, "-m", "daemon", "export", str(checkpoint), "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == code, done.stdout + done.stderr
    return next(folder.rglob("report.json")).parent


def blocks(export: Path, variant: str, language: str) -> list[str]:
    """The code in a language that the README of an export has for a variant."""
    return re.findall(rf"```{language}\n(.*?)```", section(export, variant), re.DOTALL)


def section(export: Path, variant: str) -> str:
    """What the README of an export says of a variant."""
    return (export / "README.md").read_text().split(f"\n## {variant}/\n")[1].split("\n## ")[0]


def output_of(toolchain: Path, folder: Path, *words: str) -> str:
    """What the toolchain's Python prints, run in `folder` without anything of ours and without writing compiled code."""
    command = [toolchain / "bin" / "python", "-I", "-B", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def spoil(path: Path) -> None:
    """Overwrite a page in the middle of a file of weights in fp32 by noise."""
    whole, noise = path.read_bytes(), np.random.default_rng(0).normal(size=4096).astype(np.float32).tobytes()
    place = len(whole) // 2 & ~63
    path.write_bytes(whole[:place] + noise + whole[place + len(noise) :])


def forget_the_last_cache(module: Any) -> int:
    """Let the last of a program's caches be given back as it came; in place of what rewrites a program and counts what it changed."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    last = [node for node in module.graph.nodes if node.op == "placeholder"][-1]
    output.args = ((*output.args[0][:-1], last),)
    module.recompile()
    return 0
