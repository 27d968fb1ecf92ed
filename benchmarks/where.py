"""Where the processor time of a small LoRA's second checkpoint goes: by stage, by process, by library.

    python benchmarks/where.py [--json FILE] [--rounds 3] [--level avx2] [--threads 1] [--keep FOLDER]

`ckptd export` makes and checks `pytorch`, `onnx` and `onnx-int8` of a checkpoint of the model with 0.85 M parameters that `pipeline.py` has
too; the first checkpoint of the run was exported before. `cpu_seconds` are those of all processes together, by the kernel, the median of
`--rounds`. A further round is sampled (`_sampler.py`): `libraries` are shares of it, by the package whose Python code runs or calls what
runs, and apart from it what importing takes; `processes` by what the process is for. `stages` are processor seconds as the report has them.
`--keep` leaves the samples in a folder, a line for each, as tools for flame graphs read them.

`--level`: the instruction sets that the libraries are held to, so that a figure says the same on every machine. oneDNN, MKL, ATen, OpenBLAS
and numpy have variables for it, onnxruntime has not: a copy of it asks `tests.portability.masking` what the processor can.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, pipeline
from tests.portability import masking

HELD = {
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OPENBLAS_CORETYPE": "Haswell",
    },
    "own": {},
}  # fmt: skip
NUMPY_WIDER = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
MASK = "import tests.portability.masking as _masking\n_mask = _masking.Mask({level!r})\n"
"""At the head of onnxruntime: from then on illegal instructions are answered there."""
AT_START = """
import os
if {numpy!r}:
    os.environ["NPY_DISABLE_CPU_FEATURES"] = {numpy!r}
if {folder!r}:
    from benchmarks._sampler import Sampler
    Sampler({folder!r})
"""
Figures = dict[str, float]


def held_to(level: str, folder: Path) -> dict[str, str]:
    """The variables of processes that take no wider instructions than those of `level`; `folder` is for what they read."""
    folder.mkdir()
    if level != "own":
        masking.patched_copy(folder)
        library = folder / "onnxruntime" / "__init__.py"
        library.write_text(library.read_text("utf-8").replace("__version__ =", MASK.format(level=level) + "__version__ =", 1), "utf-8")
    return {**HELD[level], "PYTHONPATH": os.pathsep.join((str(folder), str(_common.ROOT)))}


def at_start(folder: Path, level: str, samples: Path | None) -> None:
    """Write what each process does at its start."""
    numpy = NUMPY_WIDER if level != "own" else ""
    (folder / "sitecustomize.py").write_text(AT_START.format(numpy=numpy, folder=str(samples or "")), "utf-8")


def package_of(stack: list[str]) -> tuple[str, bool]:
    """The library whose code runs or calls what runs, and whether something is being imported."""
    importing = any(frame.startswith("<frozen importlib._bootstrap>") for frame in stack)
    for frame in reversed(stack):
        path = frame.rpartition(":")[0]
        _, installed, rest = path.rpartition("/site-packages/")
        if installed or "/onnxruntime/" in path:
            return (rest.partition("/")[0].removesuffix(".py") if installed else "onnxruntime"), importing
        if path.startswith(f"{_common.ROOT}/"):
            return "ckptd", importing
    return "python", importing


def purpose(command: str, name: str, stack: list[str]) -> str:
    """What a process is for."""
    if any(frame.endswith("validate/workers/worker.py:main") for frame in stack) or "validate.workers.worker" in command:
        return f"{name}, model"
    if name.startswith("ckptd:"):
        return name
    words = command.split()
    if "--loaded" in words:
        return f"loads {words[words.index('--loaded') + 1]}"
    modules = [word for before, word in itertools.pairwise(words) if before == "-m"]
    return modules[0] if modules else "python"


def read(samples: Path) -> Iterator[tuple[str, str, bool, float, str]]:
    """Purpose of a process, library, whether it is imported, seconds, and the stack, of each sample."""
    for file in sorted(samples.iterdir()):
        head, *lines = file.read_text("utf-8", errors="replace").splitlines()
        for line in lines:
            with contextlib.suppress(ValueError):  # of a process that was killed while it wrote
                name, seconds, stack = line.split("\t")
                package, importing = package_of(frames := stack.split(";"))
                yield purpose(head.partition("\t")[2], name, frames), package, importing, float(seconds), stack


def shares(samples: Path) -> dict[str, Figures]:
    """Shares of the sampled time by library and by process, the largest first."""
    sums: dict[str, dict[str, float]] = {"libraries": defaultdict(float), "imports": defaultdict(float), "processes": defaultdict(float)}
    for process, package, importing, seconds, _ in read(samples):
        sums["imports" if importing else "libraries"][package] += seconds
        sums["processes"][process] += seconds
    whole = sum(sums["processes"].values())
    return {kind: descending({name: seconds / whole for name, seconds in rows.items()}, 3) for kind, rows in sums.items()}


def stages(folder: Path) -> Figures:
    """Processor seconds of each stage of the export in a folder."""
    report = json.loads(next((folder / "out").rglob("report.json")).read_text("utf-8"))
    return {stage["name"]: stage["cpu_seconds"] for stage in report["stages"] if stage["cpu_seconds"] is not None}


def medians(rows: list[Figures]) -> Figures:
    """The median of each figure, the largest first."""
    return descending({name: statistics.median(row[name] for row in rows) for name in rows[0]}, 2)


def descending(figures: Figures, digits: int) -> Figures:
    """Rounded figures, the largest first, without those that are nothing then."""
    rows = ((name, round(figure, digits)) for name, figure in sorted(figures.items(), key=lambda row: -row[1]))
    return {name: figure for name, figure in rows if figure}


def main() -> None:
    """Measure, print tables, write the JSON file."""
    parser = _common.parser("Where the processor time of a small LoRA's second checkpoint goes.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--level", choices=HELD, default="avx2", help="instruction sets that the libraries are held to")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the samples there")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with _common.scratch("where") as folder:
        site, samples = folder / "site", options.keep or folder / "samples"
        samples.mkdir(parents=True)
        environment = held_to(options.level, site)
        at_start(site, options.level, None)

        def export(number: int) -> list[int]:
            return pipeline.by_ckptd(*pipeline.small_checkpoint(folder, number), folder / "small", options.threads, environment)

        export(1)
        costs, rows = list[Figures](), list[Figures]()
        for _ in range(options.rounds):
            costs.append(pipeline.cost(lambda: export(2)))
            rows.append(stages(folder / "small"))
        at_start(site, options.level, samples)
        sampled = pipeline.cost(lambda: export(2))
        figures: dict[str, Any] = {"level": options.level, "threads": options.threads, **medians(costs)}
        figures |= {"sampled_cpu_seconds": round(sampled["cpu_seconds"], 2), "stages": medians(rows), **shares(samples)}
    _common.write("where", figures, options.json, libraries=("torch", "transformers", "peft", "onnxruntime", "numpy"))


if __name__ == "__main__":
    main()
