"""Where the limits of the checks come from: sound artifacts and damaged ones of trained models, and what tells them apart.

    python benchmarks/thresholds.py [--json FILE] [--kinds qwen3 llama gpt2 bert] [--sizes 1M 6M] [--large] [--records FILE] …

Bases of four architectures learn Python's standard library for `--seconds` of CPU time each, and two LoRA runs learn other functions on
each. The stages' own code makes every form of three checkpoints of each; each is compared with its own live model ("good"), with six texts
that nothing was trained on (classifiers: 16). Then forms are made of damaged weights or of other checkpoints, and graphs are damaged, as in
tests/validate/sabotage.py. `--large` adds models of 30 and 100 million parameters. What was measured is added to `--records`, a line for
each artifact, so that a run that was cut off counts; `--only-read` measures nothing and reads that file.

By variant: `good` and `bad`, artifacts; of each figure the spread of good artifacts and of each damage, and where they part
(`largest_good`, `smallest_bad_above` it, and how many of the damaged ones lie `below`). `detection_…` and `false_alarms_…`: shares of the
damaged and of the good artifacts that fail by `agreement`, `kl` and `error` alone, and by the `whole` check, with the limits `earlier` than
this benchmark and with the `declared` ones. `detection_rate` and `false_alarm_rate` are those of the whole check with the declared limits
over all variants. `tight`, `gained` and `proposed`: limits by the rule in `_limits.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import pkgutil
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _limits, _stages, _trained
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.declaration import Thresholds
from daemon.contract.jobs.messages import ChildLimits, StageContext
from daemon.contract.jobs.options import ValidateOptions
from handlers.onnx.options import OnnxOptions

GRAPHS = ("onnx-fp16", "onnx-int8", "onnx-int8-static", "onnx-int8-weight", "onnx-int4", "onnx-int4-fine", "onnx-mixed")
FOLDERS = ("pytorch-fp16", "pytorch-bf16", "pytorch-bnb-int8", "pytorch-bnb-nf4", "pytorch-w8a8", "pytorch-w4a16")
NOT_FOR_GPT2 = ("pytorch-w8a8", "pytorch-w4a16")
GOOD = ("sound", "stale", "other")
FOREIGN = {"stale": "an earlier step", "other": "another run's checkpoint", "unmerged": "without its adapter"}
"""Source → what its artifacts are called where "sound" is the live model."""
OF_GRAPHS = (
    "zeroed scales of the quantized weights", "cached positions one too many", "cache overwritten by one", "cache dropped by one",
    "mask ignored",
)  # fmt: skip
OF_FILES = ("wrong tokenizer", "wrong end token", "wrong padding token")
LOOSE = Thresholds(agreement=0, kl=math.inf, error=math.inf)


class Model:
    """The artifacts of a trained model, made as they are asked for, and checked."""

    def __init__(self, trained: _trained.Trained) -> None:
        self.trained, self.folder = trained, trained.folder
        texts = self.folder / "texts.jsonl"
        texts.write_text("".join(json.dumps(row) + "\n" for row in _trained.rows((*trained.prompts, *trained.calibration))))
        self._validation = ValidateOptions(prompts=str(texts), samples=len(trained.prompts), new_tokens=8, speed_tokens=0)
        self._benches: dict[str, Any] = {}

    @property
    def variants(self) -> tuple[str, ...]:
        """Those that the architecture has."""
        return tuple(one for one in ("pytorch", "onnx", *GRAPHS, *FOLDERS) if self.trained.kind != "gpt2" or one not in NOT_FOR_GPT2)

    @property
    def damages(self) -> tuple[str, ...]:
        """Damages to the merged weights that the architecture has."""
        from tests.validate.sabotage import WEIGHTS

        return tuple(one for one in WEIGHTS if one != "rope theta" or self.trained.kind in ("qwen3", "llama"))

    def made(self, source: str, variant: str) -> Path:
        """An artifact of "sound", "stale", "other", "unmerged" or a damage to the weights. Read only."""
        target = self.folder / "made" / source / variant
        if not target.is_dir():
            if variant == "pytorch":
                self._merged(source, target)
            else:
                declared = catalog().variants[variant]
                inputs = {
                    need: self.made(source, "pytorch" if need == "merge" else need) for need in declared.needs if need != "calibration"
                }
                self._staged(variant, inputs, self.folder / "scratch" / f"{source}-{variant}").replace(target)
        return target

    def bench(self, source: str) -> Any:
        """The live model of a checkpoint, measured."""
        from tests.validate.bench import measured

        if source not in self._benches:
            pin, base, merged = self.trained.checkpoint(source), self.trained.base, self.made(source, "pytorch")
            self._benches[source] = measured(pin, base, merged, self.folder / f"bench-{source}", self.trained.prompts)
        return self._benches[source]

    def damaged(self, name: str, variant: str) -> Path:
        """A copy of the sound artifact, damaged as the sabotage of that name does."""
        from tests.validate.sabotage import SABOTAGES

        target = self.folder / "damaged"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.made("sound", variant), target)
        next(one for one in SABOTAGES if one.name == name).damage(target)
        return target

    def _merged(self, source: str, target: Path) -> None:
        from handlers.merge.api import merge_adapter
        from handlers.models.files import copy_tokenizer
        from tests.validate.sabotage import WEIGHTS

        if source in GOOD:
            target.mkdir(parents=True)
            merge_adapter(self.trained.checkpoint(source), self.trained.base, target)
            copy_tokenizer(self.trained.checkpoint(source), self.trained.base, target)
        else:
            shutil.copytree(self.trained.base if source == "unmerged" else self.made("sound", "pytorch"), target)
            if source in WEIGHTS:
                WEIGHTS[source](target)

    def _staged(self, variant: str, inputs: dict[str, Path], scratch: Path) -> Path:
        from handlers.child.progress import Reporter

        limits = ChildLimits(threads=1, nice=0, idle=False)
        onnx = OnnxOptions(optimize="none")
        cache = scratch / "cache"
        path = _stages.job_file(
            scratch, variant, inputs, self.trained.checkpoint("sound"), base=self.trained.base, limits=limits, onnx=onnx, cache=cache
        )
        context = StageContext.model_validate_json(path.read_bytes())
        context = context.model_copy(update={"work": context.work.model_copy(update={"validation": self._validation})})
        pkgutil.resolve_name(catalog().variants[variant].entry)(context, Reporter(io.StringIO()))
        return Path(context.staging)

    def record(self, variant: str, kind: str, folder: Path, live: str = "sound") -> _limits.Record:
        """What the check of a folder finds."""
        from handlers.validate.verdict import judge, unrunnable
        from handlers.validate.workers.client import WorkerFailed

        bench = self.bench(live)
        source = self.made(live, "onnx") if variant in GRAPHS and (folder / "model.onnx").is_file() else None
        try:
            limits = dataclasses.replace(catalog().variants[variant].limits, cache=math.inf, padding=math.inf)
            check = judge(variant, limits, bench.examined(variant, folder, source), LOOSE)
        except WorkerFailed as error:
            check = unrunnable(variant, error)
        figures, unit = check.figures, check.figures.get("logit_std") or 1.0
        inner = {key: figures.get(f"{key}_error_max_absolute") for key in ("cache", "padding", "merged")}
        return {
            "model": self.trained.name, "parameters": self.trained.parameters, "loss": self.trained.loss, "variant": variant, "kind": kind,
            "live": live, "otherwise": list(check.reasons),
            **{key: figures.get(key) for key in ("kl", "agreement", "error_max", "fine_tuning", "growth", "cache_growth", "positions")},
            **{key: None if value is None else value / unit for key, value in inner.items()},
        }  # fmt: skip

    def records(self, *, only_good: bool) -> Iterator[_limits.Record]:
        """All of them, the good ones first; what can't be made or damaged so is left out and told."""
        for source in GOOD:
            for variant in self.variants:
                yield from self._tried(variant, _limits.GOOD, lambda: self.made(source, variant), source)  # noqa: B023 (called at once)
        if only_good:
            return
        for source in (*FOREIGN, *self.damages):
            for variant in self.variants:
                yield from self._tried(variant, FOREIGN.get(source, source), lambda: self.made(source, variant))  # noqa: B023
        for variant in self.variants:
            graphs = OF_GRAPHS if variant.startswith("onnx") else ()
            for name in (*graphs, *OF_FILES):
                if self._has(name, variant):
                    yield from self._tried(variant, name, lambda: self.damaged(name, variant))  # noqa: B023

    def _has(self, damage: str, variant: str) -> bool:
        if damage.startswith("zeroed scales"):
            return variant in GRAPHS and variant != "onnx-fp16"
        if damage == "wrong end token" or "cache" in damage:
            return self.trained.kind != "bert"
        return True

    def _tried(self, variant: str, kind: str, make: Any, live: str = "sound") -> Iterator[_limits.Record]:
        try:
            yield self.record(variant, kind, make(), live)
        except Exception as error:
            traceback.print_exc(limit=-3)
            print(
                f"left out: {self.trained.name}, {variant}, {kind}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr, flush=True
            )


def measure(kind: str, size: str, seconds: float, records: Path, *, only_good: bool) -> None:
    """Train one model, and add a line for each of its artifacts."""
    with _common.scratch("thresholds") as folder, records.open("a") as stream:
        with contextlib.redirect_stdout(io.StringIO()):
            model = Model(_trained.train(folder, kind, size, seconds))
        print(f"{model.trained.name}: {model.trained.parameters / 1e6:.1f} M parameters, loss {model.trained.loss:.2f}", flush=True)
        for record in model.records(only_good=only_good):
            print(json.dumps(record), file=stream, flush=True)


def declared() -> dict[str, _limits.Judge]:
    """Variant → what its artifacts are judged by. Limits of cache and padding are the same in all of these formats."""
    return {
        name: _limits.Judge(variant.thresholds, (variant.limits.cache, variant.limits.noise_share))
        for name, variant in catalog().variants.items() if name in _limits.EARLIER
    }  # fmt: skip


def main() -> None:
    """Measure, read the records, write the figures."""
    parser = _common.parser("Where the limits of the checks come from.")
    parser.add_argument("--kinds", nargs="+", choices=_trained.KINDS, default=list(_trained.KINDS))
    parser.add_argument("--sizes", nargs="+", choices=list(_trained.SIZES), default=list(_trained.SMALL))
    parser.add_argument("--large", action="store_true", help="add models of 30 and 100 million parameters")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="CPU seconds of each base; four times as long for classifiers and large ones"
    )
    parser.add_argument("--records", type=Path, help="add what is measured to this file, and read all of it; default: a new one")
    parser.add_argument("--only-good", action="store_true", help="make no damaged artifacts: what larger models add for less time")
    parser.add_argument("--only-read", action="store_true", help="measure nothing, read --records")
    options = parser.parse_args()
    taken_on = _common.machine()
    with _common.scratch("records") as folder:
        records = options.records or folder / "records.jsonl"
        if not options.only_read:
            import torch

            torch.set_num_threads(1)
            for size in (*options.sizes, *(_trained.LARGE if options.large else ())):
                for kind in options.kinds:
                    measure(
                        kind,
                        size,
                        options.seconds * (4 if size in _trained.LARGE or kind == "bert" else 1),
                        records,
                        only_good=options.only_good,
                    )
        found = [json.loads(line) for line in records.read_text().splitlines()]
    figures = _limits.figures(found, declared())
    libraries = ("torch", "transformers", "peft", "onnxruntime", "bitsandbytes", "compressed-tensors")
    _common.write("thresholds", figures, options.json, libraries=libraries, taken_on=taken_on)


if __name__ == "__main__":
    main()
