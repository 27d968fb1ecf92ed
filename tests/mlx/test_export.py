"""A checkpoint of a real training, exported to MLX's forms by the command line; the README's commands run them; wrong ones are caught."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from handlers.validate.workers.client import WorkerFailed
from tests import models
from tests.mlx import forms
from tests.toolchains import real
from tests.validate import sabotage
from tests.validate.bench import Bench

pytestmark = pytest.mark.slow
VARIANTS = ("mlx", "mlx-int8", "mlx-int4")


@pytest.fixture(scope="module")
def exported(run: Path, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.export(run / "checkpoint-4", state, tmp_path_factory.mktemp("out"), VARIANTS)


def test_all_forms_pass_and_say_with_what_they_were_made(exported: Path) -> None:  # R2.4 R4.1
    report: dict[str, Any] = json.loads((exported / "report.json").read_bytes())
    made = {one["variant"]: one for one in report["artifacts"]}
    assert {name: made[name]["verdict"] for name in VARIANTS} == dict.fromkeys(VARIANTS, "passed")
    assert {"mlx", "mlx-lm"} <= set(report["versions"])
    assert all(made[name]["figures"]["speed_over_pytorch"] > 0 for name in VARIANTS)
    assert made["mlx"]["size_bytes"] > made["mlx-int8"]["size_bytes"] > made["mlx-int4"]["size_bytes"]
    assert "Apple GPU" in (exported / "README.md").read_text() + (exported / "report.html").read_text()


def test_a_folder_has_all_that_mlx_lm_reads(exported: Path, run: Path) -> None:
    folder = exported / "mlx-int4"
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= names
    config = json.loads((folder / "config.json").read_bytes())
    assert config["quantization"]["bits"] == 4 and config["quantization"] == config["quantization_config"]
    assert (folder / "chat_template.jinja").read_text() == models.CHAT_TEMPLATE
    card = (exported / "README.md").read_text().split("---")[1]
    assert re.search(r"library_name: \"?(transformers|mlx)", card) and "mlx" in card


@pytest.mark.parametrize("variant", ["mlx", "mlx-int4"])
def test_the_readmes_code_runs_from_the_folder_alone_and_writes_what_the_model_writes(
    variant: str, run: Path, exported: Path, toolchain: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(exported, tmp_path / "moved")
    section = (moved / "README.md").read_text().split(f"\n## {variant}/\n")[1].split("\n## ")[0]
    assert re.search(r"pip install mlx-lm==\d", section), section
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    written = said(toolchain, moved, ["-c", code])
    commands = re.findall(r"```sh\nmlx_lm.generate (.*?)\n```", section)
    assert len(commands) == 2
    for command in commands:
        shell = f"exec {toolchain}/bin/python -I -m mlx_lm generate {command}"
        done = subprocess.run(["bash", "-c", shell], cwd=moved, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "Prompt:" in done.stdout, done.stderr
    if variant == "mlx":
        (prompt,) = re.findall(r"prompt=(.*), max_tokens", code)
        wanted = real.live_text(run / "checkpoint-4", eval(prompt), 32)
        assert len(wanted) > 4 and written.rstrip("\n") == wanted.rstrip("\n")


def said(toolchain: Path, folder: Path, command: list[str]) -> str:
    """What a program says that runs in the toolchain's Python, without anything of ours."""
    done = subprocess.run([str(toolchain / "bin" / "python"), "-I", *command], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("source", sabotage.SOURCES)
def test_what_was_made_of_a_wrong_model_is_caught_and_what_is_sound_passes(source: str, lab: sabotage.Lab, tmp_path: Path) -> None:  # R4.5
    model, bench = lab.made(source, "pytorch"), lab.bench(tmp_path / "scratch")
    checks = [bench.check(variant, forms.make(variant, model, tmp_path / variant)[0]) for variant in VARIANTS]
    verdicts = [str(one.verdict) for one in checks]
    if source == "sound":
        assert verdicts == ["passed"] * 3, [one.reasons for one in checks]
    elif source == "rope theta":
        assert verdicts[:2] == ["failed"] * 2, [one.reasons for one in checks]
    else:
        assert verdicts == ["failed"] * 3, [one.reasons for one in checks]
        assert all("not those of the merge" in " ".join(one.reasons) for one in checks)


DAMAGES = ("a packed number", "a scale", "a bias of a group", "a norm", "a tensor less", "the file's end", "the rotary base", "the bits")


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_was_damaged_is_caught(damage: str, lab: sabotage.Lab, tmp_path: Path) -> None:  # R4.5
    model, bench = lab.made("sound", "pytorch"), lab.bench(tmp_path / "scratch")
    folder = forms.make("mlx-int4", model, tmp_path / "work")[0]
    assert not caught(bench, folder)
    path = folder / "model.safetensors"
    if damage == "the file's end":
        path.write_bytes(path.read_bytes()[:-4096])
    elif damage in ("the rotary base", "the bits"):
        config = json.loads((folder / "config.json").read_bytes())
        if damage == "the bits":
            config["quantization"] = {**config["quantization"], "model.layers.0.mlp.up_proj": {"group_size": 32, "bits": 8}}
        else:
            config |= {"rope_theta": 10.0, "rope_parameters": {**config["rope_parameters"], "rope_theta": 10.0}}
        (folder / "config.json").write_text(json.dumps(config))
    else:
        tensors = raw(path)
        if damage == "a tensor less":
            del tensors["model.layers.1.input_layernorm.weight"]
        else:
            part = {"a packed number": "mlp.up_proj.weight", "a scale": "mlp.up_proj.scales", "a bias of a group": "mlp.up_proj.biases"}
            name = f"model.layers.1.{part.get(damage, 'input_layernorm.weight')}"
            tensors[name].reshape(-1)[5] ^= 1 << 9
        stored(path, tensors)
    assert caught(bench, folder)


def raw(path: Path) -> dict[str, Any]:
    """All tensors of a file, as torch reads them, those of bf16 as int16."""
    import torch
    from safetensors.torch import load_file

    return {name: (one.view(torch.int16) if one.dtype == torch.bfloat16 else one).numpy().copy() for name, one in load_file(path).items()}


def stored(path: Path, tensors: dict[str, Any]) -> None:
    """Put them back."""
    import torch
    from safetensors.torch import save_file

    found = {name: torch.from_numpy(one) for name, one in tensors.items()}
    save_file({name: one.view(torch.bfloat16) if one.dtype == torch.int16 else one for name, one in found.items()}, path)


def caught(bench: Bench, folder: Path) -> bool:
    """Whether the check fails, or refuses to compare what the model says."""
    try:
        return bench.check("mlx-int4", folder).verdict == "failed"
    except WorkerFailed:
        return True
