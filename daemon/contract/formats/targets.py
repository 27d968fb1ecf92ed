"""Where models are deployed, and which variants the installed formats make for each place. Pure.

A variant's declaration names its targets (`targets`, `also_for`). Read by the plan (`export.deploy`), `ckptd check`, `ckptd formats`, the
report and docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from daemon.contract.formats.catalog import Catalog
from daemon.contract.formats.declaration import Target, Variant


@dataclass(frozen=True)
class Place:
    """A target, for people."""

    about: str
    formats: tuple[str, ...]
    """Formats that could serve it, whether they are installed or not, best first."""
    first: tuple[str, ...] = ()
    """Formats that the report recommends before all others that can be used there, if they passed."""


PLACES: dict[Target, Place] = {
    "cpu-server": Place("servers without a GPU", ("onnx",)),
    "nvidia": Place("servers with an NVIDIA GPU, for example with vLLM", ("pytorch", "tensorrt")),
    "laptop": Place("laptops and desktop computers", ("onnx", "gguf"), ("onnx", "onnx-genai", "gguf", "openvino")),
    "ios": Place("iPhones and iPads", ("coreml", "executorch")),
    "android": Place("Android devices", ("onnx", "litert", "executorch")),
    "browser": Place("web pages, with onnxruntime-web or transformers.js", ("web", "onnx"), ("web",)),
    "ollama": Place("ollama and llama.cpp", ("gguf",)),
    "edge": Place("small devices with little memory", ("onnx",)),
}
TARGETS: tuple[Target, ...] = get_args(Target)


def made_for(target: Target, known: Catalog) -> tuple[Variant, ...]:
    """The variants that `export.deploy` makes for a target, in plan order: those that are declared for it, else the first that can be
    used there too, of the best format; none where no installed format fits."""
    variants = known.variants.values()
    meant = tuple(one for one in variants if target in one.targets)
    if meant:
        return meant
    best = PLACES[target].formats
    ranks = {one.name: best.index(one.name) if one.name in best else len(best) for one in known.formats}
    able = [(ranks[one.name], spec) for one in known.formats for spec in one.variants if target in spec.also_for]
    return (min(able, key=lambda pair: pair[0])[1],) if able else ()


def fitting(target: Target, known: Catalog) -> tuple[Variant, ...]:
    """All variants that can be used at a target, in plan order."""
    return tuple(one for one in known.variants.values() if target in one.targets | one.also_for)


def lacking(targets: Iterable[Target], known: Catalog) -> dict[Target, str]:
    """Target for which no installed format makes anything → why and what to do, as a sentence without its end."""
    return {
        target: f"nothing is made for {target} ({PLACES[target].about}): it needs {_formats(target)}, which is not installed; install a"
        f" package that brings it, or leave {target} out"
        for target in targets
        if not fitting(target, known)
    }


def _formats(target: Target) -> str:
    names = PLACES[target].formats
    return f"the format {names[0]}" if len(names) == 1 else f"one of the formats {', '.join(names)}"
