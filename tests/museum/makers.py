"""Makers of mutants: those of the sets of damages, by name, and a few that rebuild what a wrong merge does to weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from handlers.merge.api import merge_adapter
from tests.gguf import damage as gguf
from tests.merge.helpers import edit_config, stored
from tests.museum.exhibit import Damage, Make, Source, damaged
from tests.validate import artifacts, damage_files, damage_length, damage_quantized, sabotage

Tensors = dict[str, Any]
SETS: Mapping[str, tuple[Any, ...]] = {
    "sabotage": sabotage.SABOTAGES, "files": damage_files.CASES, "length": damage_length.DAMAGES, "quantized": damage_quantized.DAMAGES,
    "gguf": (*gguf.CASES, *gguf.SAID),
}  # fmt: skip


def like(group: str, name: str) -> Make:
    """Return the maker of a damage of one of the sets."""
    case = next(case for case in SETS[group] if case.name == name)
    if hasattr(case, "apply"):

        def make(models: Source, variant: str, target: Path) -> None:
            case.apply(models.made("sound", variant), target)

        return make
    return damaged(case.damage, getattr(case, "source", "sound"))


def weights(change: Callable[[Tensors], object]) -> Damage:
    """Return what changes the tensors of a folder."""
    return lambda folder: sabotage.edit_tensors(folder, change)


def from_base(change: Callable[[Tensors, Tensors], object]) -> Make:
    """Return the maker of a merge whose tensors are changed; `change` gets them and those of the base."""

    def make(models: Source, variant: str, target: Path) -> None:
        damaged(weights(lambda tensors: change(tensors, stored(models.base))))(models, variant, target)

    return make


def merged_as(**settings: Any) -> Make:
    """Return the maker of a merge of the same adapter with other settings in its adapter_config.json."""

    def make(models: Source, variant: str, target: Path) -> None:
        shutil.copytree(models.made("sound", variant), target)
        adapter = shutil.copytree(models.pin, target.with_name("adapter"))
        edit_config(adapter, **settings)
        (made := target.with_name("made")).mkdir()
        merge_adapter(adapter, models.base, made)
        for path in made.glob("*.safetensors"):
            shutil.copyfile(path, target / path.name)

    return make


def traced(change: Callable[[Tensors], object]) -> Make:
    """Return the maker of a graph of the merged model whose tensors are changed first, as an exporter does that computes otherwise."""

    def make(models: Source, variant: str, target: Path) -> None:
        damaged(weights(change))(models, "pytorch", target.with_name("pytorch"))
        artifacts.export_onnx(target.with_name("pytorch"), target)

    return make


def adapter(change: Callable[[Tensors], Tensors]) -> Damage:
    """Return what changes the tensors of a published adapter."""

    def damage(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        path = folder / "adapter_model.safetensors"
        save_file(change(load_file(path)), path, {"format": "pt"})

    return damage


def config(**values: Any) -> Damage:
    """Return what sets keys of config.json."""
    return damage_files.keys("config.json", **values)


def settings(folder: Path) -> Any:
    """Return the values of config.json."""
    return json.loads((folder / "config.json").read_text())
