"""Halls of one language model with a chat template, its adapter's runs and checkpoints, and what is made of them; see `halls`."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import cast

from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.options import MergeOptions
from handlers.folder import examples
from handlers.merge.api import merge_adapter
from handlers.validate.checks.examination import Examination, examine
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.client import EngineWorker
from tests.gguf import forms
from tests.merge.helpers import edit_config
from tests.museum.hall import Hall
from tests.onnx.conftest import describe
from tests.onnx.small import derived
from tests.validate import artifacts, damage_quantized, sabotage
from tests.validate.bench import Bench, Direct, measured, quiet
from tests.validate.damage_files import CAUSAL, GENAI, Bank


class Chat(Hall):
    """A language model with a chat template, its adapter's two runs and checkpoints, in any form."""

    @functools.cached_property
    def bank(self) -> Bank:
        """The models and artifacts."""
        return Bank(self.folder)

    @property
    def base(self) -> Path:
        return self.bank.lab().base

    @property
    def pin(self) -> Path:
        return self.bank.lab().checkpoint()

    def made(self, source: str, variant: str) -> Path:
        return self.bank.sound(variant)[1] if variant in GENAI else self.bank.lab().made(source, variant)

    def source(self, variant: str) -> Path | None:
        return None if variant in GENAI else self.bank.lab().source(variant)

    def measured(self, scratch: Path) -> Bench:
        return self.bank.bench(CAUSAL[0], scratch)


class Merging(Chat):
    """The same, where it is known what the merge has to answer."""

    def measured(self, scratch: Path) -> Bench:
        """Return the live model, measured, and merged by PEFT at last."""
        return self.bank.bench(CAUSAL[0], scratch, merging=True)


class Twins(Chat):
    """The same, beside the models that the stored weights of a form give."""

    twins = True


class Shown(Chat):
    """The same, whose graph brings its example."""

    def made(self, source: str, variant: str) -> Path:
        """Return the graph with its example."""
        target = self.folder / "shown" / variant
        if not target.is_dir():
            shutil.copytree(super().made(source, variant), target)
            examples.place("text-generation", target)
        return target


class Static(Twins):
    """The same, where int8 has fixed scales of activations."""

    def made(self, source: str, variant: str) -> Path:
        """Return a form of `damage_quantized`."""
        lab = self.bank.lab()
        return damage_quantized.artifact(lab, "int8-static") if variant == "onnx-int8" else super().made(source, variant)


class Light(Chat):
    """The same run with a twelfth of its factor, merged in fp32: its fine-tuning is there, and small."""

    @property
    def pin(self) -> Path:
        """A copy of the checkpoint."""
        target = self.folder / "light" / "checkpoint-12"
        if not target.is_dir():
            shutil.copytree(super().pin, target)
            edit_config(target, lora_alpha=8 / 12)
        return target

    def made(self, source: str, variant: str) -> Path:
        """Return an artifact of it."""
        if source == "unmerged":
            return super().made(source, variant)
        target = self.folder / "light" / variant
        if target.is_dir():
            return target
        if variant == "pytorch":
            shutil.copytree(super().made("sound", "pytorch"), target)
            (merged := target.with_name("merged")).mkdir()
            merge_adapter(self.pin, self.base, merged, MergeOptions(dtype="float32"))
            for name in ("model.safetensors", "config.json"):
                shutil.copyfile(merged / name, target / name)
        elif variant == "onnx":
            describe(artifacts.export_onnx(self.made(source, "pytorch"), target))
        else:
            shutil.copytree(
                derived(variant.removeprefix("onnx-"), self.made(source, "onnx"), target.with_name(f"of-{variant}")).folder, target
            )
        return target

    def source(self, variant: str) -> Path | None:
        """Return the graph that a form was made of."""
        return self.made("sound", "onnx") if variant in ("onnx-int8", "onnx-int4", "onnx-fp16") else None

    def measured(self, scratch: Path) -> Bench:
        """Return the live model, measured."""
        return measured(self.pin, self.base, self.made("sound", "pytorch"), scratch, sabotage.PROMPTS)


class GgufChat(Chat):
    """The language model with a chat template, in GGUF; llama.cpp can be imported."""

    def made(self, source: str, variant: str) -> Path:
        """Return the folder of a variant."""
        if not variant.startswith("gguf"):
            return super().made(source, variant)
        work = self.folder / variant
        if not (work / "staging").is_dir():
            forms.make(variant, super().made("sound", "pytorch"), work)
        return work / "staging"


class Adapter(Chat):
    """The published adapter of the same run, over its base."""

    def made(self, source: str, variant: str) -> Path:
        from tests.adapter import publishing

        if variant != "pytorch-adapter":
            return super().made(source, variant)
        work = self.folder / "adapter"
        if not (work / "staging").is_dir():
            publishing.run(self.pin, self.base, super().made("sound", "pytorch"), work)
        return work / "staging"

    def thresholds(self, variant: str) -> Thresholds:
        from tests.adapter.publishing import VARIANT

        assert VARIANT.thresholds is not None
        return VARIANT.thresholds

    def examined(self, bench: Bench, variant: str, folder: Path, source: Path | None, result: Examination) -> None:
        """Put the folder over the base, as its users do."""
        spec = EngineSpec(engine="adapter", folder=str(folder), base=str(self.base), task=bench.subject.task)
        direct = cast(EngineWorker, Direct(variant, spec))
        examine(direct, bench.reference, bench.outputs(folder), None, tokenizer=True, exact=True, progress=quiet, result=result)
