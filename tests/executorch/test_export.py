"""A checkpoint of a real training, exported to ExecuTorch's forms by the command line; the README's commands run them, damage is caught."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.validate.workers.client import WorkerFailed
from tests import models
from tests.executorch import forms
from tests.executorch.forms import VARIANTS
from tests.static_programs.forms import programs
from tests.toolchains import real
from tests.validate import sabotage
from tests.validate.bench import Bench

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(run: Path, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.export(run / "checkpoint-4", state, tmp_path_factory.mktemp("out"), VARIANTS)


def test_all_forms_pass_and_say_with_what_they_were_made(exported: Path) -> None:  # R2.4 R4.1
    report: dict[str, Any] = json.loads((exported / "report.json").read_bytes())
    made = {one["variant"]: one for one in report["artifacts"]}
    assert {name: one["verdict"] for name, one in made.items()} == dict.fromkeys(VARIANTS, "passed")
    assert {"executorch", "torchao"} <= set(report["versions"])
    assert all(one["figures"]["speed_over_pytorch"] > 0 for one in made.values())
    sizes = [made[name]["size_bytes"] for name in VARIANTS]
    assert sizes[0] > 2 * sizes[1] > 2 * sizes[2]
    figures = {stage["name"]: stage["figures"] for stage in report["stages"]}
    for variant in VARIANTS:
        assert figures[variant]["runner"] is True and figures[variant]["runner_begins"] == 0
    assert "pip install executorch==" in (exported / "README.md").read_text()
    assert "not run on a phone" in (exported / "README.md").read_text()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_readmes_commands_run_from_the_folder_alone(variant: str, exported: Path, toolchain: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(exported, tmp_path / "moved")
    section = (moved / "README.md").read_text().split(f"\n## {variant}/\n")[1].split("\n## ")[0]
    commands = re.findall(r"```sh\npython (.*?)\n```", section, re.DOTALL)
    assert len(commands) == 2 and "--chat" in commands[1], section
    for command in commands:
        done = subprocess.run(
            f"{toolchain}/bin/python -I {command}", cwd=moved, capture_output=True, text=True, timeout=120, shell=True
        )  # fmt: skip
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert not list(moved.rglob("__pycache__"))


def test_what_apps_run_it_with_writes_what_the_model_writes(run: Path, exported: Path, toolchain: Path) -> None:
    prompt = models.TEXTS[0][:12]
    script = f"""
import warnings; warnings.simplefilter("ignore")
import executorch.kernels.quantized, json
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
runner, written = TextLLMRunner("executorch/model.pte", "executorch/tokenizer.json"), []
runner.generate({prompt!r}, GenerationConfig(echo=False, max_new_tokens=24, temperature=0.0), token_callback=written.append)
print("\\n" + json.dumps("".join(written)))
"""
    done = subprocess.run([toolchain / "bin" / "python", "-I", "-c", script], cwd=exported, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout.strip().splitlines()[-1]).removesuffix("<|end|>")
    assert len(written) > 8 and real.live_text(run / "checkpoint-4", prompt).startswith(written)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("source", sabotage.SOURCES)
def test_what_was_made_of_a_wrong_model_is_caught_and_what_is_sound_passes(source: str, lab: sabotage.Lab, tmp_path: Path) -> None:  # R4.5
    model = lab.made(source, "pytorch")
    bench = lab.bench(tmp_path / "scratch")
    made, _ = programs(model, tmp_path / "programs")
    verdicts, reasons = [], []
    # 4-bit weights may hide small damage, so that nothing is said of them but that sound ones pass.
    for variant in VARIANTS if source == "sound" else VARIANTS[:2]:
        folder, _ = forms.make(variant, model, made, tmp_path / variant)
        check = bench.check(variant, folder)
        verdicts.append(str(check.verdict))
        reasons.append(check.reasons)
    assert verdicts == (["passed"] * 3 if source == "sound" else ["failed"] * 2), reasons


@pytest.mark.usefixtures("libraries")
def test_a_damaged_block_and_a_cache_that_forgets_are_caught(lab: sabotage.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, bench = lab.made("sound", "pytorch"), lab.bench(tmp_path / "scratch")
    made, _ = programs(model, tmp_path / "programs")
    folder, _ = forms.make("executorch", model, made, tmp_path / "plain")
    assert not caught(bench, folder)
    damaged = folder / "model.pte"
    whole = damaged.read_bytes()
    place = len(whole) // 2 & ~63
    damaged.write_bytes(whole[:place] + np.random.default_rng(0).normal(size=4096).astype(np.float32).tobytes() + whole[place + 16384 :])
    assert caught(bench, folder)
    from handlers.executorch import lowering

    monkeypatch.setattr(lowering, "write_in_place", forgets)
    assert caught(bench, forms.make("executorch", model, made, tmp_path / "forgets")[0])


def forgets(program: Any) -> int:
    """Let the last of the caches be given back as it came."""
    graph = program.module.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    output.args = ((*output.args[0][:-1], last),)
    program.module.recompile()
    return 0


def caught(bench: Bench, folder: Path) -> bool:
    """Whether the check fails, or refuses to compare what the model says."""
    try:
        return bench.check("executorch", folder).verdict == "failed"
    except WorkerFailed:
        return True
