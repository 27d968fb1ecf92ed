"""mlx-lm's adapters, merged as mlx-lm's own `fuse` does it: compared with arithmetic of the test's own, in numpy.

The files have the form that mlx-lm writes (mlx_lm/tuner/lora.py and dora.py); `fuse` of mlx-lm 0.32.2 gave the same weights to 7e-7.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from daemon.checkpoints.files import export_files
from daemon.checkpoints.inspection import inspect
from handlers.merge.api import merge_adapter
from tests.consolidate.helpers import consolidate, pinned
from tests.detection.helpers import below
from tests.models import make_base

LAYER = "model.layers.1"
LINEAR = (f"{LAYER}.self_attn.q_proj", f"{LAYER}.self_attn.o_proj", f"{LAYER}.mlp.down_proj")
"""The second is square: nothing but the orientation that mlx-lm uses tells how it is stored."""
EMBEDDING = "model.embed_tokens"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 base in float32, so that nothing is rounded."""
    return make_base(tmp_path_factory.mktemp("mlx") / "base", dtype="float32", tie_word_embeddings=False)


def adapter(folder: Path, base: Path, modules: tuple[str, ...], *, scale: float = 20.0, rank: int = 4, kind: str = "lora") -> Path:
    """What mlx-lm leaves after a training of 250 iterations that saved at 100 and 200."""
    folder.mkdir(parents=True)
    random, weights, tensors = np.random.default_rng(3), load_file(base / "model.safetensors"), {}
    for module in modules:
        rows, columns = weights[f"{module}.weight"].shape
        first, last = (rows, columns) if module == EMBEDDING else (columns, rows)
        tensors[f"{module}.lora_a"] = random.normal(0, 0.1, (first, rank)).astype(np.float32)
        tensors[f"{module}.lora_b"] = random.normal(0, 0.1, (rank, last)).astype(np.float32)
        if kind == "dora":
            tensors[f"{module}.m"] = random.uniform(0.5, 2, rows).astype(np.float32)
    for name in ("adapters.safetensors", "0000100_adapters.safetensors", "0000200_adapters.safetensors"):
        save_file(tensors, folder / name)
        os.utime(folder / name, (900, 900 if name[0] == "0" else 999))
    parameters = {"rank": rank, "dropout": 0.0, "scale": scale}
    config: dict[str, Any] = {"model": str(base), "fine_tune_type": kind, "num_layers": 1, "iters": 250, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def fused(base: Path, folder: Path, scale: float) -> dict[str, np.ndarray]:
    """The base's weights with the adapter's change, in float64."""
    weights = {name: value.astype(np.float64) for name, value in load_file(base / "model.safetensors").items()}
    tensors = {name: value.astype(np.float64) for name, value in load_file(folder / "adapters.safetensors").items()}
    for module in {name.rpartition(".")[0] for name in tensors}:
        delta = scale * (tensors[f"{module}.lora_a"] @ tensors[f"{module}.lora_b"])
        weight = weights[f"{module}.weight"] + (delta if module == EMBEDDING else delta.T)
        if f"{module}.m" in tensors:
            weight *= (tensors[f"{module}.m"] / np.linalg.norm(weight, axis=1))[:, None]
        weights[f"{module}.weight"] = weight
    return weights


def merged(folder: Path, base: Path, work: Path) -> dict[str, np.ndarray]:
    out, _ = consolidate(pinned(folder, work / "pin"), base, work / "work")
    (work / "out").mkdir()
    assert merge_adapter(out, base, work / "out").strategy == "streaming"
    return load_file(work / "out" / "model.safetensors")


@pytest.mark.parametrize(("kind", "modules", "scale", "rank"), [
    ("lora", LINEAR, 20.0, 4), ("lora", LINEAR, 0.1, 3), ("dora", LINEAR, 10.0, 8), ("lora", (*LINEAR, EMBEDDING), 2.0, 4),
])  # fmt: skip
def test_the_merged_weights_are_those_of_mlx_lm_s_formula(
    base: Path, tmp_path: Path, kind: str, modules: tuple[str, ...], scale: float, rank: int
) -> None:
    folder = adapter(tmp_path / "run" / "adapters", base, modules, scale=scale, rank=rank, kind=kind)
    found, wanted, before = merged(folder, base, tmp_path), fused(base, folder, scale), load_file(base / "model.safetensors")
    assert found.keys() == wanted.keys()
    changed = {name for name in found if not np.array_equal(found[name], before[name])}
    assert changed == {f"{module}.weight" for module in modules}
    for name, value in wanted.items():
        assert np.abs(found[name] - value).max() < 3e-6 * max(1.0, np.abs(value).max()), name


def test_a_directory_is_one_checkpoint_the_newest_and_its_older_saves_are_not_read(base: Path, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "run" / "adapters", base, LINEAR)
    whole = inspect(folder)
    assert (whole.layout, whole.missing, whole.method, whole.base_name, whole.step) == ("mlx-lm-adapter", (), "LORA", str(base), 250)
    assert (export_files(folder), below(tmp_path)) == (["adapter_config.json", "adapters.safetensors"], ["run/adapters"])
    os.utime(folder / "adapters.safetensors", (890, 890))  # as while training goes on: the numbered file is written after it
    assert inspect(folder).step == 200
    file = folder / "adapters.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    assert not inspect(folder).complete


@pytest.mark.parametrize(("changes", "words"), [
    ({"fine_tune_type": "full", "lora_parameters": None}, "fine_tune_type is 'full'"),
    ({"lora_parameters": {"rank": 0, "scale": 1.0}}, "lora_parameters.rank is 0"),
    ({"lora_parameters": {"rank": 4, "scale": "much"}}, "lora_parameters.scale is 'much'"),
])  # fmt: skip
def test_what_is_no_lora_of_mlx_lm_s_is_refused_with_its_own_command(base: Path, tmp_path: Path, changes: Any, words: str) -> None:
    folder = adapter(tmp_path / "adapters", base, LINEAR)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **changes}))
    refusal = inspect(folder).refusal
    assert refusal is not None and words in refusal.cause and "`mlx_lm.fuse --model BASE --adapter-path" in refusal.remedy


@pytest.mark.parametrize(("name", "shape", "words"), [
    (f"{LAYER}.mlp.switch_mlp.up_proj.lora_a", (2, 4, 64), "a LoRA of experts"), (f"{LAYER}.input_layernorm.weight", (64,), "whole layers"),
    (f"{EMBEDDING}.m", (320,), "an embedding with DoRA"),
])  # fmt: skip
def test_tensors_that_can_t_be_merged_are_named(base: Path, tmp_path: Path, name: str, shape: tuple[int, ...], words: str) -> None:
    folder = adapter(tmp_path / "adapters", base, LINEAR)
    save_file({name: np.ones(shape, np.float32)}, folder / "adapters.safetensors")
    refusal = inspect(folder).refusal
    assert refusal is not None and words in refusal.cause and name.rpartition(".")[0] in refusal.cause
