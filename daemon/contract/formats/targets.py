"""Where models are deployed, and which variants the installed formats make for each place. Pure.

A variant's declaration names its targets (`targets`, `also_for`). Read by the plan (`export.deploy`), `ckptd check`, `ckptd formats`, the
report and docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from daemon.contract.formats.catalog import Catalog
from daemon.contract.formats.declaration import Target, Variant

PLACES: dict[Target, str] = {
    "cpu-server": "servers without a GPU",
    "nvidia": "servers with an NVIDIA GPU, for example with vLLM",
    "laptop": "laptops and desktop computers",
    "ios": "iPhones and iPads",
    "android": "Android devices",
    "browser": "web pages, with onnxruntime-web or transformers.js",
    "ollama": "ollama and llama.cpp",
    "edge": "small devices with little memory",
}
"""Target → what it is, for people."""
TARGETS: tuple[Target, ...] = get_args(Target)


def made_for(target: Target, known: Catalog) -> tuple[Variant, ...]:
    """The variants that `export.deploy` makes for a target, in plan order: those that are declared for it, else the first that can be
    used there too; none where no installed format fits."""
    variants = tuple(known.variants.values())
    return (
        tuple(variant for variant in variants if target in variant.targets)
        or tuple(variant for variant in variants if target in variant.also_for)[:1]
    )


def fitting(target: Target, known: Catalog) -> tuple[Variant, ...]:
    """All variants that can be used at a target, in plan order."""
    return tuple(variant for variant in known.variants.values() if target in variant.targets | variant.also_for)


def lacking(targets: Iterable[Target], known: Catalog) -> dict[Target, str]:
    """Target for which no installed format makes anything → why and what to do, as a sentence without its end."""
    return {
        target: f"nothing is made for {target} ({PLACES[target]}): no installed format declares it; install a package with one that"
        f" does, or leave {target} out"
        for target in targets
        if not fitting(target, known)
    }
