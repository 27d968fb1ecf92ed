"""A checkpoint of a real training, exported to LiteRT's forms by the command line; the README's commands run them, damage is caught."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tests import models, stages
from tests.exports.formats import FORMATS
from tests.static_programs.forms import programs
from tests.toolchains import real
from tests.torch_programs.test_published import checkpoint_of
from tests.validate import sabotage

VARIANTS = FORMATS["litert"].variants
pytestmark = pytest.mark.slow
ALONE = """
import runpy, sys
for name in ("torch", "transformers", "litert_torch", "ai_edge_quantizer", "handlers", "daemon", "jax"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program where nothing can be imported but what a folder needs."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.exported(tmp_path_factory, "litert")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_readmes_command_runs_from_a_moved_folder_with_the_runtime_alone(
    variant: str, run: Path, exported: Path, toolchain: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(exported / variant, tmp_path / "moved" / variant).parent
    commands = real.blocks(exported, variant, "sh")
    assert commands
    for command in commands:
        assert alone(toolchain, moved, *shlex.split(command)[1:]).strip()
    prompt = models.TEXTS[0][:12]
    written = alone(toolchain, moved, f"{variant}/example.py", prompt, "--tokens", "16")
    if variant == "litert":
        assert real.live_text(run / "checkpoint-4", prompt, 16).strip()[:8] in written
    assert not list(moved.rglob("__pycache__"))


def alone(toolchain: Path, folder: Path, *words: str) -> str:
    """What an example says that runs in the toolchain's Python without anything of ours, and without torch."""
    return real.output_of(toolchain, folder, "-c", ALONE, *words)


@pytest.mark.parametrize("kind", ["seq2seq", "encoder"])
def test_other_kinds_of_models_pass_and_their_examples_run(kind: str, state: Path, toolchain: Path, tmp_path: Path) -> None:  # R2.4 R4.2
    chosen = VARIANTS[:2]  # an untrained encoder-decoder says something else with weights in 4 bits
    folder = real.export(checkpoint_of(kind, tmp_path), state, tmp_path / "out", chosen)
    for variant in chosen:
        (command,) = real.blocks(folder, variant, "sh")
        assert alone(toolchain, folder, *shlex.split(command)[1:]).strip()


@pytest.mark.usefixtures("libraries")
def test_a_damaged_block_and_a_cache_that_forgets_are_caught(lab: sabotage.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from handlers.litert import rewriting

    bench, (made, _) = lab.bench(tmp_path / "scratch"), programs(lab.made("sound", "pytorch"), tmp_path / "programs")
    folder, _ = stages.make("litert", made, tmp_path / "plain")
    real.spoil(folder / "model.tflite")
    assert bench.checked("litert", folder).verdict == "failed"
    monkeypatch.setattr(rewriting, "share_heads", real.forget_the_last_cache)
    assert bench.checked("litert", stages.make("litert", made, tmp_path / "forgets")[0]).verdict == "failed"
