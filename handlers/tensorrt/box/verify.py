"""Runs the engines of this folder on its own examples, and compares what they say with what the model said when the folder was made.

    python verify.py [--backend tensorrt|tensorrt_rtx|onnxruntime] [--precision fp32|tf32|fp16|bf16] [--json FILE]

Engines that are missing are built first, where the folder has the graphs (`build.py`). Each example of `verify/` is a text or a batch,
fed in the steps of a deployment: a prompt, then tokens on top of the cache that came back. What is expected was computed otherwise: each
text alone, without a cache, in one pass. The verdict goes to standard output as JSON. Exit code 0: passed, 1: failed, 2: could not be run.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent
# An import would leave compiled code in the folder, which is as its manifest says.
session: Any = SimpleNamespace(**runpy.run_path(str(FOLDER / "session.py")))
CASES, FILE = "verify", "cases.json"
BACKENDS = ("tensorrt", "tensorrt_rtx", "onnxruntime")
_NEXT = {"last_hidden_state": "encoder_hidden_states", "next_hidden_states": "hidden_states"}
"""Output → the input of a later graph that it becomes."""


@dataclass(frozen=True)
class Compared:
    """One output of one run of an example."""

    case: str
    run: int
    output: str
    error: float | None
    """Largest difference, in standard deviations of what is expected; None where it is not finite, or of another shape."""
    rms: float | None
    """Root mean square of the differences, in the same unit."""
    agreement: float | None
    """Share of the rows whose largest value is at the expected place; None where a row is one number."""


@dataclass
class Verdict:
    """What `verify.py` answers."""

    verdict: str
    """"passed", "failed" or "not run"."""
    reason: str
    backend: str
    precision: str = ""
    limit: float | None = None
    error: float | None = None
    """The largest of all, None where one is not finite."""
    library: str = ""
    device: str = ""
    outputs: list[Compared] = field(default_factory=list)


class Runner:
    """The graphs or engines of a folder, each opened when it is first asked."""

    def __init__(self, folder: Path, backend: str, threads: int = 0) -> None:
        self._folder, self._backend, self._threads = folder, backend, threads
        self._files = {graph["role"]: graph["file"] for graph in json.loads((folder / "graphs.json").read_text(encoding="utf-8"))["graphs"]}
        self._open: dict[str, Any] = {}

    def _session(self, role: str) -> Any:
        if role not in self._open:
            path = self._folder / self._files[role]
            if self._backend == "onnxruntime":
                self._open[role] = session.OrtSession(path, self._threads)
            else:
                engine = self._folder / session.ENGINES / f"{path.stem}{session.ENDING}"
                self._open[role] = session.Session(engine, session.library(self._backend))
        return self._open[role]

    def run(self, roles: Iterable[str], feeds: Mapping[str, np.ndarray], pool: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs of some graphs, one after another. `pool`: what earlier runs of the example handed on; it grows."""
        results: dict[str, np.ndarray] = {}
        for role in roles:
            opened = self._session(role)
            rows = len(next(iter(feeds.values())))
            given = {port.name: self._given(port, feeds, pool, rows) for port in opened.get_inputs()}
            names = [port.name for port in opened.get_outputs()]
            outputs = dict(zip(names, opened.run(names, given), strict=True))
            pool.update({_NEXT.get(name, name.replace("present.", "past_key_values.", 1)): array for name, array in outputs.items()})
            results.update(outputs)
        return results

    def _given(self, port: Any, feeds: Mapping[str, np.ndarray], pool: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
        value = feeds.get(port.name, pool.get(port.name))
        dtype = np.dtype({"float": "float32"}.get(kind := port.type.removeprefix("tensor(").removesuffix(")"), kind))
        if value is None and port.name.startswith("past_key_values."):
            value = np.zeros((rows, port.shape[1], 0, port.shape[3]))
        if value is None:
            raise session.Refused(f"The example has nothing for the input {port.name}.")
        return np.ascontiguousarray(value, dtype)


def cases(folder: Path) -> dict[str, Any]:
    """What cases.json says."""
    known: dict[str, Any] = json.loads((folder / CASES / FILE).read_text(encoding="utf-8"))
    return known


def compare(folder: Path, runner: Runner) -> list[Compared]:
    """Every expected output of every example beside what the runner gives."""
    known = cases(folder)
    arrays = {case["file"]: dict(np.load(folder / CASES / case["file"])) for case in known["cases"]}
    units = _units(arrays.values())
    compared = []
    for case in known["cases"]:
        pool: dict[str, np.ndarray] = {}
        for number, run in enumerate(case["runs"]):
            expected = {key.partition(":")[2]: value for key, value in arrays[case["file"]].items() if key.startswith(f"{number}:")}
            feeds = {key.removeprefix("feed:"): value for key, value in expected.items() if key.startswith("feed:")}
            outputs = runner.run(run["graphs"], feeds, pool)
            for name in (key.removeprefix("want:") for key in expected if key.startswith("want:")):
                places = expected.get(f"at:{name}")
                whole = outputs.get(name, np.zeros(0))
                part = whole if places is None else _at(whole, places)
                compared.append(_compared(case["name"], number, name, part, expected[f"want:{name}"], units[name]))
    return compared


def _at(array: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The rows of tokens at (row, token); nothing where the array has no such places."""
    if array.ndim < 2 or (places.max(axis=0) >= array.shape[:2]).any():
        return np.zeros(0)
    return np.asarray(array[tuple(places.T)])


def _units(files: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Output → standard deviation of all that is expected of it."""
    values: dict[str, list[np.ndarray]] = {}
    for arrays in files:
        for key, value in arrays.items():
            if ":want:" in key:
                values.setdefault(key.partition(":want:")[2], []).append(value.ravel())
    return {name: float(np.concatenate(parts).std()) or 1.0 for name, parts in values.items()}


def _compared(case: str, run: int, name: str, actual: np.ndarray, wanted: np.ndarray, unit: float) -> Compared:
    if actual.shape != wanted.shape or not (np.isfinite(actual).all() and np.isfinite(wanted).all()):
        return Compared(case, run, name, None, None, None)
    apart = (actual.astype(np.float64) - wanted) / unit
    in_rows = wanted.ndim > 1 and wanted.shape[-1] > 1
    agreement = float((actual.argmax(-1) == wanted.argmax(-1)).mean()) if in_rows else None
    return Compared(case, run, name, float(np.abs(apart).max(initial=0.0)), float(np.sqrt((apart**2).mean())), agreement)


def verify(folder: Path, backend: str, precision: str = "", limit: float | None = None, threads: int = 0) -> Verdict:
    """Compare all examples. Raises `session.Refused` where something is missing."""
    library = device = ""
    if backend != "onnxruntime":
        trt, device = session.library(backend), session.gpu().name
        library = f"{trt.__name__} {trt.__version__}"
        precision = _prepared(folder, trt, precision)
    limits = cases(folder)["limits"]
    limit = limit if limit is not None else limits["onnxruntime" if backend == "onnxruntime" else precision]
    compared = compare(folder, Runner(folder, backend, threads))
    errors = [output.error for output in compared]
    worst = max(compared, key=lambda output: float("inf") if output.error is None else output.error)
    passed = all(error is not None and error <= limit for error in errors)
    where = f"{worst.output} of the example {worst.case!r}, step {worst.run + 1}"
    if worst.error is None:
        reason = f"{where}, has another shape than expected or values that are not finite"
    else:
        reason = f"the largest difference is {worst.error:.3g} standard deviations, in {where}; the limit is {limit:g}"
    error = None if None in errors else worst.error
    return Verdict("passed" if passed else "failed", reason, backend, precision, limit, error, library, device, compared)


def _prepared(folder: Path, trt: Any, precision: str) -> str:
    """The precision of the folder's engines, which are built where one is missing."""
    known = json.loads((folder / "profiles.json").read_text(encoding="utf-8"))
    missing = [graph for graph in known["graphs"] if not (folder / session.ENGINES / graph["engine"]).is_file()]
    said = session.built(folder / session.ENGINES)
    if not missing and said and precision in ("", said["precision"]):
        return said["precision"]  # type: ignore[no-any-return]  # session.py is not imported
    if any(not (folder / graph["file"]).is_file() for graph in known["graphs"]):
        name = missing[0]["engine"] if missing else session.BUILT
        raise session.Refused(f"{session.ENGINES}/{name} is missing or of another precision, and the graphs to build it of are not here.")
    builder = runpy.run_path(str(folder / "build.py"))
    builder["build_all"](folder, trt, precision)
    return str(session.built(folder / session.ENGINES)["precision"])


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=BACKENDS, default="", help="default: the library that the engines were built with")
    parser.add_argument("--precision", choices=("fp32", "tf32", "fp16", "bf16"), default="", help="build the engines so, if they are not")
    parser.add_argument("--limit", type=float, help="largest difference allowed, in standard deviations; default: by precision")
    parser.add_argument("--threads", type=int, default=0, help="of onnxruntime; default: all")
    parser.add_argument("--json", type=Path, help="a file for the verdict too")
    given = parser.parse_args()
    backend = given.backend
    try:
        backend = backend or session.library(session.built(FOLDER / session.ENGINES).get("library", "")).__name__
        verdict = verify(FOLDER, backend, given.precision, given.limit, given.threads)
    except Exception as error:  # runtimes have types of their own; each is a verdict too
        known = type(error).__name__ in ("Refused", "NoDeviceError")  # by name, since build.py has read session.py for itself
        reason = str(error) if known else f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        verdict = Verdict("not run", reason, backend)
        print(f"verify.py: {reason}", file=sys.stderr)
    text = json.dumps(asdict(verdict), indent=1)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n", encoding="utf-8")
    return {"passed": 0, "failed": 1}.get(verdict.verdict, 2)


if __name__ == "__main__":
    sys.exit(main())
