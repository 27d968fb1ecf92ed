"""Where the limits of the checks come from: sound artifacts and damaged ones of trained models, and what tells them apart.

    python benchmarks/thresholds.py [--json FILE] [--kinds qwen3 t5 …] [--sizes 1M 12M …] [--records FILE] [--work DIR] …

Bases of several architectures learn Python's standard library for `--seconds` of CPU time each (or `--steps`), and two LoRA runs learn
other functions on each. The stages' own code makes every form of three checkpoints of each; each is compared with its own live model
("good"), with texts that nothing was trained on: six, for encoder-decoders 12, for classifiers 16. Then forms are made of damaged weights
or of other checkpoints, and graphs are damaged, as in tests/validate/sabotage.py. `--large` adds models of 30 and 100 million parameters.
`--variants`, `--lives` and `--damages` leave out what takes long for them.

What was measured is added to `--records`, a line for each artifact, and what is there already is not measured again; with `--work`, models
and artifacts are kept too. So a run that was cut off goes on where it was. `--only-read` measures nothing and reads the records. `--lock`
names a file whose lock (flock) is held while a model learns or an artifact is made and checked, and given back in between each minute.

By variant: `good` and `bad`, artifacts; of each figure the spread of good artifacts and of each damage, and where they part
(`largest_good`, `smallest_bad_above` it, and how many of the damaged ones lie `below`). `detection_…` and `false_alarms_…`: shares of the
damaged and of the good artifacts that fail by `agreement`, `kl` and `error` alone, and by the `whole` check, with the limits `earlier` than
this benchmark and with the `declared` ones. `detection_rate` and `false_alarm_rate` are those of the whole check with the declared limits
over all variants. `tight`, `gained` and `proposed`: limits by the rule in `_limits.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import json
import math
import os
import pkgutil
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _limits, _stages, _trained
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.messages import ChildLimits, StageContext
from daemon.contract.jobs.options import ValidateOptions
from handlers.onnx.options import OnnxOptions

GRAPHS = ("onnx-fp16", "onnx-int8", "onnx-int8-static", "onnx-int8-weight", "onnx-int4", "onnx-int4-fine", "onnx-mixed")
FOLDERS = ("pytorch-fp16", "pytorch-bf16", "pytorch-bnb-int8", "pytorch-bnb-nf4", "pytorch-w8a8", "pytorch-w4a16")
VARIANTS = ("pytorch", "onnx", *GRAPHS, *FOLDERS)
NOT_FOR = dict.fromkeys(("gpt2", "t5"), ("pytorch-w8a8", "pytorch-w4a16"))
GOOD = ("sound", "stale", "other")
FOREIGN = {"stale": "an earlier step", "other": "another run's checkpoint", "unmerged": "without its adapter"}
"""Source → what its artifacts are called where "sound" is the live model."""
OF_GRAPHS = (
    "zeroed scales of the quantized weights", "cached positions one too many", "cache overwritten by one", "cache dropped by one",
    "mask ignored",
)  # fmt: skip
OF_FILES = ("wrong tokenizer", "wrong end token", "wrong padding token")
LOOSE = Thresholds(agreement=0, kl=math.inf, error=math.inf)


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is measured of a model."""

    turn: contextlib.AbstractContextManager[object]
    """Entered for each step."""
    variants: tuple[str, ...] = VARIANTS
    lives: tuple[str, ...] = GOOD
    damages: tuple[str, ...] | None = None
    """None: all."""
    threads: int = 1


class Turn:
    """The lock of a file, held for a step, and for further ones until SECONDS have passed; then others get their turn."""

    SECONDS = 60.0

    def __init__(self, path: Path) -> None:
        self._stream = path.open("a")
        self._began: float | None = None

    def __enter__(self) -> None:
        if self._began is None:
            fcntl.flock(self._stream, fcntl.LOCK_EX)
            self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._began is not None and time.monotonic() - self._began > self.SECONDS:
            fcntl.flock(self._stream, fcntl.LOCK_UN)
            self._began = None


class Records:
    """The lines of a file: what was measured, and what could not be."""

    def __init__(self, path: Path) -> None:
        self._path, known = path, read(path)
        path.write_text("".join(json.dumps(one) + "\n" for one in known))  # without a line that was cut off
        self._known = {_limits.key(one) for one in known}

    def __contains__(self, found: _limits.Record) -> bool:
        return _limits.key(found) in self._known

    def add(self, found: _limits.Record) -> None:
        """Write a line."""
        self._known.add(_limits.key(found))
        with self._path.open("a") as stream:
            print(json.dumps(found), file=stream)


def read(path: Path) -> list[_limits.Record]:
    """The records of a file, without a last line that was cut off."""
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Model:
    """The artifacts of a trained model, made as they are asked for, and checked."""

    def __init__(self, trained: _trained.Trained, choice: Choice) -> None:
        self.trained, self.folder, self.choice = trained, trained.folder, choice
        texts = self.folder / "texts.jsonl"
        texts.write_text("".join(json.dumps(row) + "\n" for row in _trained.rows((*trained.prompts, *trained.calibration))))
        self._validation = ValidateOptions(prompts=str(texts), samples=len(trained.prompts), new_tokens=8, speed_tokens=0)
        self._benches: dict[str, Any] = {}

    @property
    def variants(self) -> tuple[str, ...]:
        """Those that were asked for and that the architecture has."""
        return tuple(one for one in self.choice.variants if one not in NOT_FOR.get(self.trained.kind, ()))

    @property
    def damages(self) -> tuple[str, ...]:
        """Damages to the merged weights that the architecture has."""
        from tests.validate.sabotage import WEIGHTS

        return tuple(one for one in WEIGHTS if one != "rope theta" or self.trained.kind in ("qwen3", "llama"))

    def made(self, source: str, variant: str) -> Path:
        """An artifact of "sound", "stale", "other", "unmerged" or a damage to the weights. Read only."""
        target = self.folder / "made" / source / variant
        if not target.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            if variant == "pytorch":
                scratch = self._empty(self.folder / "scratch" / f"{source}-merge")
                self._merged(source, scratch / "merged")
                (scratch / "merged").replace(target)
            else:
                declared = catalog().variants[variant]
                inputs = {
                    need: self.made(source, "pytorch" if need == "merge" else need) for need in declared.needs if need != "calibration"
                }
                self._staged(variant, inputs, self._empty(self.folder / "scratch" / f"{source}-{variant}")).replace(target)
        return target

    @staticmethod
    def _empty(folder: Path) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def bench(self, source: str) -> Any:
        """The live model of a checkpoint, measured."""
        from tests.validate.bench import measured

        if source not in self._benches:
            pin, base, merged = self.trained.checkpoint(source), self.trained.base, self.made(source, "pytorch")
            scratch = self._empty(self.folder / f"bench-{source}") / "outputs"
            self._benches[source] = measured(pin, base, merged, scratch, self.trained.prompts)
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

        limits = ChildLimits(threads=self.choice.threads, nice=0, idle=False)
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
        source = self.made(live, "onnx") if variant in GRAPHS and any(folder.glob("*.onnx")) else None
        try:
            limits = dataclasses.replace(catalog().variants[variant].limits, cache=math.inf, padding=math.inf)
            check = judge(variant, limits, bench.examined(variant, folder, source), LOOSE)
        except WorkerFailed as error:
            check = unrunnable(variant, error)
        figures, unit = check.figures, check.figures.get("logit_std") or 1.0
        inner = {key: figures.get(f"{key}_error_max_absolute") for key in ("cache", "padding", "merged")}
        return {
            **self._named(variant, kind, live), "parameters": self.trained.parameters, "loss": self.trained.loss,
            "otherwise": list(check.reasons),
            "kl_upper": (figures.get("kl_interval") or (None, None))[1],
            **{key: figures.get(key) for key in ("kl", "agreement", "error_max", "fine_tuning", "growth", "cache_growth", "positions")},
            **{key: None if value is None else value / unit for key, value in inner.items()},
        }  # fmt: skip

    def measure(self, records: Records) -> None:
        """Add a record of each artifact that has none yet, the good ones first."""
        for source in self.choice.lives:
            for variant in self.variants:
                self._tried(records, variant, _limits.GOOD, lambda: self.made(source, variant), source)  # noqa: B023 (called at once)
        for source in (*FOREIGN, *self.damages):
            kind = FOREIGN.get(source, source)
            for variant in self.variants if self._wanted(kind) else ():
                self._tried(records, variant, kind, lambda: self.made(source, variant))  # noqa: B023
            if source not in self.choice.lives:
                shutil.rmtree(self.folder / "made" / source, ignore_errors=True)
        for variant in self.variants:
            graphs = OF_GRAPHS if variant.startswith("onnx") else ()
            for name in (*graphs, *OF_FILES):
                if self._has(name, variant) and self._wanted(name):
                    self._tried(records, variant, name, lambda: self.damaged(name, variant))  # noqa: B023

    def _named(self, variant: str, kind: str, live: str) -> _limits.Record:
        return {"model": self.trained.name, "seed": self.trained.seed, "variant": variant, "kind": kind, "live": live}

    def _wanted(self, damage: str) -> bool:
        return self.choice.damages is None or damage in self.choice.damages

    def _has(self, damage: str, variant: str) -> bool:
        if damage.startswith("zeroed scales"):
            return variant in GRAPHS and variant != "onnx-fp16"
        if self.trained.kind == "t5" and "positions" in damage:
            return False
        if damage == "wrong end token" or "cache" in damage:
            return self.trained.kind not in _trained.ENCODERS
        return True

    def _tried(self, records: Records, variant: str, kind: str, make: Callable[[], Path], live: str = "sound") -> None:
        """Measure one; what can't be made or damaged so gets a record that says why."""
        named = self._named(variant, kind, live)
        if named in records:
            return
        with self.choice.turn:
            began = time.monotonic()
            try:
                found = self.record(variant, kind, make(), live)
            except Exception as error:
                traceback.print_exc(limit=-3)
                found = {**named, "left_out": f"{type(error).__name__}: {str(error)[:200]}"}
            records.add(found)
        seconds, told = time.monotonic() - began, [found.get(one) for one in ("left_out", "kl", "agreement", "error_max", "otherwise")]
        print(f"{seconds:6.1f} s {self.trained.name}, {variant}, {kind}, {live}: {str(told)[:200]}", flush=True)


def measure(kind: str, size: str, records: Records, choice: Choice, *, work: Path | None, **length: Any) -> None:
    """Train one model, or take it as it was kept, and add a line for each of its artifacts."""
    with contextlib.nullcontext(work) if work else _common.scratch("thresholds") as root:
        folder = root / f"{kind}-{size}-{length['seed']}"
        trained = _trained.kept(folder)
        if trained is None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            with choice.turn, contextlib.redirect_stdout(io.StringIO()):
                trained = _trained.train(folder, kind, size, **length)
            trained.save()
        print(f"{trained.name}: {trained.parameters / 1e6:.1f} M parameters, loss {trained.loss:.2f}", flush=True)
        Model(trained, choice).measure(records)


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
    parser.add_argument("--steps", type=int, help="steps of each base instead of seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=Path, help="add what is measured to this file, and read all of it; default: a new one")
    parser.add_argument("--work", type=Path, help="keep models and artifacts here, and take those that are there")
    parser.add_argument("--lock", type=Path, help="work under the lock of this file, in turns of a minute")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--lives", nargs="+", choices=GOOD, default=list(GOOD), help="checkpoints of which good artifacts are made")
    parser.add_argument("--damages", nargs="*", metavar="NAME", help="damages by their names; without a name none; default: all")
    parser.add_argument("--only-read", action="store_true", help="measure nothing, read --records")
    options = parser.parse_args()
    with _common.scratch("records") as folder:
        path = options.records or folder / "records.jsonl"
        if not options.only_read:
            import torch

            torch.set_num_threads(options.threads)
            records = Records(path)
            damages = None if options.damages is None else tuple(options.damages)
            turn = Turn(options.lock) if options.lock else contextlib.nullcontext()
            choice = Choice(turn, tuple(options.variants), tuple(options.lives), damages, options.threads)
            for size in (*options.sizes, *(_trained.LARGE if options.large else ())):
                for kind in options.kinds:
                    seconds = options.seconds * (4 if size in _trained.LARGE or kind in _trained.ENCODERS else 1)
                    length = {"steps": options.steps} if options.steps else {"seconds": seconds}
                    measure(kind, size, records, choice, work=options.work, seed=options.seed, **length)
        found = read(path)
    figures = _limits.figures(found, declared())
    libraries = ("torch", "transformers", "peft", "onnxruntime", "bitsandbytes", "compressed-tensors")
    _common.write("thresholds", figures, options.json, libraries=libraries)


if __name__ == "__main__":
    main()
