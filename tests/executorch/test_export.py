"""A checkpoint of a real training, exported to ExecuTorch's forms by the command line; the README's commands run them, damage is caught."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import models, stages
from tests.exports.formats import FORMATS
from tests.static_programs.forms import programs
from tests.toolchains import real
from tests.validate import sabotage

VARIANTS = FORMATS["executorch"].variants

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.exported(tmp_path_factory, "executorch")


def test_executorchs_own_runner_takes_all_forms(exported: Path) -> None:
    report: dict[str, Any] = json.loads((exported / "report.json").read_bytes())
    figures = {stage["name"]: stage["figures"] for stage in report["stages"]}
    assert [(figures[variant]["runner"], figures[variant]["runner_begins"]) for variant in VARIANTS] == [(True, 0)] * 3


def test_eight_bits_take_less_than_half(exported: Path) -> None:
    report: dict[str, Any] = json.loads((exported / "report.json").read_bytes())
    made = {artifact["variant"]: artifact["size_bytes"] for artifact in report["artifacts"]}
    sizes = [made[variant] for variant in VARIANTS]
    assert sizes[0] > 2 * sizes[1] > 2 * sizes[2]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_readmes_commands_run_from_the_folder_alone(variant: str, exported: Path, toolchain: Path, tmp_path: Path) -> None:
    moved, commands = shutil.copytree(exported, tmp_path / "moved"), real.blocks(exported, variant, "sh")
    assert len(commands) == 2 and "--chat" in commands[1], commands
    for command in commands:
        assert real.output_of(toolchain, moved, *shlex.split(command)[1:]).strip()
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
    written = json.loads(real.output_of(toolchain, exported, "-c", script).strip().splitlines()[-1]).removesuffix("<|end|>")
    assert len(written) > 8 and real.live_text(run / "checkpoint-4", prompt).startswith(written)


@pytest.mark.usefixtures("libraries")
def test_a_damaged_block_and_a_cache_that_forgets_are_caught(lab: sabotage.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from handlers.executorch import lowering

    bench, (made, _) = lab.bench(tmp_path / "scratch"), programs(lab.made("sound", "pytorch"), tmp_path / "programs")
    folder, _ = stages.make("executorch", made, tmp_path / "plain")
    real.spoil(folder / "model.pte")
    assert bench.checked("executorch", folder).verdict == "failed"
    monkeypatch.setattr(lowering, "write_in_place", lambda program: real.forget_the_last_cache(program.module))
    assert bench.checked("executorch", stages.make("executorch", made, tmp_path / "forgets")[0]).verdict == "failed"
