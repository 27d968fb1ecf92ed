"""The models and sound artifacts that mutants are made of, by the project's own exporters; each is made when it is first asked for.

A hall is a set of models of one kind with its measured live model. All of them are those that `tests/validate`, `tests/adapter` and
`tests/gguf` use for sets of damages.
"""

from __future__ import annotations

import functools
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.thresholds import Thresholds
from handlers.validate import findings
from handlers.validate.checks.examination import Examination, Merged, examine
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.client import EngineWorker
from tests.gguf import damage as gguf
from tests.gguf import kinds as gguf_kinds
from tests.museum.chats import Adapter, Chat, GgufChat, Light, Merging, Shown, Static, Twins
from tests.museum.hall import Hall
from tests.validate import odd_models, zoo
from tests.validate.bench import Bench, Direct, measured, quiet
from tests.validate.damage_files import Bank
from tests.validate.long_models import KINDS, LongLab
from tests.validate.odd_models import ODD


class Gguf(Hall):
    """A whole fine-tune of an architecture, in GGUF; llama.cpp can be imported."""

    kind, twins = "", True

    @property
    def base(self) -> Path:
        """The model."""
        return self.pin

    @property
    def pin(self) -> Path:
        """The model."""
        return gguf.model(self.kind, self.folder / self.kind)

    def made(self, source: str, variant: str) -> Path:
        """Return the folder of a variant."""
        return self.pin if variant == "pytorch" else gguf.artifact(self.kind, variant, self.folder)

    def measured(self, scratch: Path) -> Bench:
        """Return the model, measured."""
        return measured(self.pin, None, self.pin, scratch)

    def examined(self, bench: Bench, variant: str, folder: Path, source: Path | None, result: Examination) -> None:
        """Examine what is computed; texts are those of `GgufChat`."""
        against = bench.outputs(bench.merged)
        if not against.is_dir():
            bench.examine("pytorch", bench.merged)
        if fault := bench.told_of_weights(variant, folder):
            result.findings.append(findings.weights(fault, variant))
        spec = EngineSpec(engine=catalog().variants[variant].limits.engine, folder=str(folder), task=bench.subject.task)
        direct, merged = cast(EngineWorker, Direct(variant, spec)), Merged(against)
        examine(direct, bench.reference, bench.outputs(folder), merged, tokenizer=False, exact=False, progress=quiet, result=result)

    def thresholds(self, variant: str) -> Thresholds:
        """Return none that a model of random weights can miss: rounding it changes its answers."""
        return catalog().thresholds[variant].model_copy(update={"agreement": 0.0, "kl": math.inf, "error": math.inf})


class Other(Hall):
    """A classifier, a translator or an encoder of sentences; `kind` as `Bank` has it."""

    kind = ""

    @functools.cached_property
    def bank(self) -> Bank:
        """The models and artifacts."""
        return Bank(self.folder)

    @property
    def _root(self) -> Path:
        return self.bank.sound(self.kind)[1].parent

    @property
    def base(self) -> Path:
        return self._root / "base"

    @property
    def pin(self) -> Path:
        return self._root / "adapter"

    def made(self, source: str, variant: str) -> Path:
        return self._root / ("merged" if variant == "pytorch" else "artifact")

    def measured(self, scratch: Path) -> Bench:
        return self.bank.bench(self.kind, scratch)


class Classifier(Other):
    """A classifier of texts with three labels."""

    kind = "classifier"


class Translator(Other):
    """An encoder-decoder."""

    kind = "translator"


class Sentences(Other):
    """An encoder of sentences."""

    kind = "sentences"


class Long(Hall):
    """A whole fine-tune of a kind of positions, which reaches some hundred tokens."""

    kind = ""

    @functools.cached_property
    def lab(self) -> LongLab:
        """The models and artifacts."""
        return LongLab(self.folder)

    @property
    def base(self) -> Path:
        return self.pin

    @property
    def pin(self) -> Path:
        return self.made("sound", "pytorch")

    def made(self, source: str, variant: str) -> Path:
        return self.lab.made(self.kind, variant)

    def source(self, variant: str) -> Path | None:
        return self.lab.source(self.kind, variant)

    def measured(self, scratch: Path) -> Bench:
        return self.lab.bench(self.kind, scratch)


class OddKind(Hall):
    """A model of `odd_models` with its adapter, merged by the project."""

    kind = ""

    @functools.cached_property
    def _root(self) -> Path:
        root = self.folder / self.kind
        if not (root / "made").is_dir():
            shutil.rmtree(root, ignore_errors=True)
            odd_models.make(next(odd for odd in ODD if odd.name == self.kind), root)
            merged = zoo.merge(root / "base", next((root / "run").iterdir()), root / "made" / "pytorch")
            shutil.copyfile(root / "base" / "chat_template.jinja", merged / "chat_template.jinja")
        return root

    @property
    def base(self) -> Path:
        return self._root / "base"

    @property
    def pin(self) -> Path:
        return next((self._root / "run").iterdir())

    def made(self, source: str, variant: str) -> Path:
        return self._root / "made" / variant

    def measured(self, scratch: Path) -> Bench:
        return measured(self.pin, self.base, self.made("sound", "pytorch"), scratch)


def _of(hall: type[Hall], kind: str) -> type[Hall]:
    return type(hall.__name__, (hall,), {"kind": kind, "__doc__": hall.__doc__})


@dataclass(frozen=True)
class Place:
    """A folder that halls share."""

    folder: Path


HALLS: dict[str, tuple[str, Callable[[Path], Any], type[Hall]]] = {
    **{name: ("damage-files", Bank, kind) for name, kind in (
        ("chat", Chat), ("chat, merged", Merging), ("twins", Twins),
        ("adapter", Adapter), ("classifier", Classifier), ("translator", Translator),
        ("sentences", Sentences), ("shown", Shown), ("twins static", Static), ("light", Light), ("gguf chat", GgufChat),
    )},
    **{f"gguf {kind}": ("museum-gguf", Place, _of(Gguf, kind)) for kind in gguf_kinds.KINDS},
    **{f"long {kind}": ("long", LongLab, _of(Long, kind)) for kind in KINDS},
    **{odd.name: ("museum", Place, _of(OddKind, odd.name)) for odd in ODD},
}  # fmt: skip
"""Name → the folder that it shares with the sets of damages by `sharing.shared`, what that is made by, and its class."""
