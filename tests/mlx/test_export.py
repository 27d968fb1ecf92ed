"""A checkpoint of a real training, exported to MLX's forms by the command line; the README's commands run them; wrong ones are caught."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.stages import make
from tests.toolchains import real
from tests.validate import sabotage

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.exported(tmp_path_factory, "mlx")


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
    moved, (code,) = shutil.copytree(exported, tmp_path / "moved"), real.blocks(exported, variant, "python")
    written = real.output_of(toolchain, moved, "-c", code)
    commands = re.findall(r"```sh\nmlx_lm.generate (.*?)\n```", real.section(exported, variant))
    assert len(commands) == 2
    for command in commands:
        assert "Prompt:" in real.output_of(toolchain, moved, "-m", "mlx_lm", "generate", *shlex.split(command))
    if variant == "mlx":
        (prompt,) = re.findall(r"prompt=(.*), max_tokens", code)
        wanted = real.live_text(run / "checkpoint-4", eval(prompt), 32)
        assert len(wanted) > 4 and written.rstrip("\n") == wanted.rstrip("\n")


DAMAGES = ("a packed number", "a scale", "a bias of a group", "a norm", "a tensor less", "the file's end", "the rotary base", "the bits")


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_was_damaged_is_caught(damage: str, lab: sabotage.Lab, tmp_path: Path) -> None:  # R4.5
    model, bench = lab.made("sound", "pytorch"), lab.bench(tmp_path / "scratch")
    folder = make("mlx-int4", model, tmp_path / "work")[0]
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
    assert bench.checked("mlx-int4", folder).verdict == "failed"


def raw(path: Path) -> dict[str, Any]:
    """All tensors of a file, as torch reads them, those of bf16 as int16."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(path).items()
    return {name: (rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows).numpy().copy() for name, rows in tensors}


def stored(path: Path, tensors: dict[str, Any]) -> None:
    """Put them back."""
    import torch
    from safetensors.torch import save_file

    arrays = {name: torch.from_numpy(rows) for name, rows in tensors.items()}
    save_file({name: rows.view(torch.bfloat16) if rows.dtype == torch.int16 else rows for name, rows in arrays.items()}, path)
