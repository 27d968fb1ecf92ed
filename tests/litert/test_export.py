"""A checkpoint of a real training, exported to LiteRT's forms by the command line; the README's commands run them, damage is caught."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.validate.workers.client import WorkerFailed
from tests import models
from tests.litert import forms
from tests.litert.forms import VARIANTS
from tests.static_programs.forms import programs
from tests.toolchains import real
from tests.torch_programs.test_published import checkpoint_of
from tests.validate import sabotage
from tests.validate.bench import Bench

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
def exported(run: Path, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.export(run / "checkpoint-4", state, tmp_path_factory.mktemp("out"), VARIANTS)


def test_all_forms_pass_and_say_with_what_they_were_made(exported: Path) -> None:  # R2.4 R4.1
    report: dict[str, Any] = json.loads((exported / "report.json").read_bytes())
    made = {one["variant"]: one for one in report["artifacts"] if one["variant"] in VARIANTS}
    assert {name: one["verdict"] for name, one in made.items()} == dict.fromkeys(VARIANTS, "passed")
    assert {"litert-torch", "ai-edge-litert", "ai-edge-quantizer"} <= set(report["versions"])
    assert all(one["figures"]["speed_over_pytorch"] > 0 for one in made.values())
    sizes = [made[name]["size_bytes"] for name in VARIANTS]
    assert sizes[0] > sizes[1] > sizes[2]
    readme = (exported / "README.md").read_text()
    assert re.search(r"pip install ai-edge-litert==\d", readme) and "not run on a phone" in readme


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_readmes_command_runs_from_a_moved_folder_with_the_runtime_alone(
    variant: str, run: Path, exported: Path, toolchain: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(exported / variant, tmp_path / "moved" / variant).parent
    section = (exported / "README.md").read_text().split(f"\n## {variant}/\n")[1].split("\n## ")[0]
    commands = re.findall(r"```sh\npython (.*?)\n```", section, re.DOTALL)
    assert commands, section
    for command in commands:
        assert alone(toolchain, moved, shlex.split(command)).strip()
    prompt = models.TEXTS[0][:12]
    written = alone(toolchain, moved, [f"{variant}/example.py", prompt, "--tokens", "16"])
    if variant == "litert":
        assert real.live_text(run / "checkpoint-4", prompt, 16).strip()[:8] in written
    assert not list(moved.rglob("__pycache__"))


def alone(toolchain: Path, folder: Path, arguments: list[str]) -> str:
    """What an example says that runs in the toolchain's Python without anything of ours, and without torch."""
    command = [str(toolchain / "bin" / "python"), "-I", "-B", "-c", ALONE, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["seq2seq", "encoder"])
def test_other_kinds_of_models_pass_and_their_examples_run(kind: str, state: Path, toolchain: Path, tmp_path: Path) -> None:  # R2.4 R4.2
    chosen = VARIANTS[:2]  # an untrained encoder-decoder says something else with weights in 4 bits
    folder = real.export(checkpoint_of(kind, tmp_path), state, tmp_path / "out", chosen)
    readme = (folder / "README.md").read_text()
    for variant in chosen:
        section = readme.split(f"\n## {variant}/\n")[1].split("\n## ")[0]
        (command,) = re.findall(r"```sh\npython (.*?)\n```", section, re.DOTALL)
        assert alone(toolchain, folder, shlex.split(command)).strip()


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("source", sabotage.SOURCES)
def test_what_was_made_of_a_wrong_model_is_caught_and_what_is_sound_passes(source: str, lab: sabotage.Lab, tmp_path: Path) -> None:  # R4.5
    model = lab.made(source, "pytorch")
    bench = lab.bench(tmp_path / "scratch")
    made_of, _ = programs(model, tmp_path / "programs")
    checks = []
    for variant in VARIANTS:
        folder, _ = forms.make(variant, model, made_of, tmp_path / variant)
        made_of = folder if variant == "litert" else made_of
        checks.append(bench.check(variant, folder))
    verdicts = [str(one.verdict) for one in checks]
    assert verdicts == ["passed"] * 3 if source == "sound" else verdicts[:2] == ["failed"] * 2, [one.reasons for one in checks]


@pytest.mark.usefixtures("libraries")
def test_a_damaged_block_and_a_cache_that_forgets_are_caught(lab: sabotage.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, bench = lab.made("sound", "pytorch"), lab.bench(tmp_path / "scratch")
    made, _ = programs(model, tmp_path / "programs")
    folder, _ = forms.make("litert", model, made, tmp_path / "plain")
    assert not caught(bench, folder)
    shutil.copytree(folder, tmp_path / "damaged")  # a copy, since LiteRT maps the file that it has opened
    damaged = tmp_path / "damaged" / "model.tflite"
    whole = damaged.read_bytes()
    place = len(whole) // 2 & ~63
    damaged.write_bytes(whole[:place] + np.random.default_rng(0).normal(size=4096).astype(np.float32).tobytes() + whole[place + 16384 :])
    assert caught(bench, tmp_path / "damaged")
    from handlers.litert import rewriting

    monkeypatch.setattr(rewriting, "share_heads", forgets)
    assert caught(bench, forms.make("litert", model, made, tmp_path / "forgets")[0])


def forgets(module: Any) -> int:
    """Let the last of the caches be given back as it came."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    last = [node for node in module.graph.nodes if node.op == "placeholder"][-1]
    output.args = ((*output.args[0][:-1], last),)
    module.recompile()
    return 0


def caught(bench: Bench, folder: Path) -> bool:
    """Whether the check fails, or refuses to compare what the model says."""
    try:
        return bench.check("litert", folder).verdict == "failed"
    except WorkerFailed:
        return True
