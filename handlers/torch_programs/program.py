"""Opens a program on disk, and runs it by the names of its inputs and outputs, in the manner of onnxruntime's sessions.

Used by the stage that compares a program with the model that it was made of, and by the engine that checks its folder. It goes into the
folder too, beside `example.py`, so it needs torch and numpy alone.
"""

from __future__ import annotations

import json
import platform
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

GRAPHS = "graphs.json"
SCRIPT, EXPORTED = ".pt", ".pt2"


_TYPES = {"int64": "int64", "float32": "float", "float16": "float16", "bool": "bool"}


@dataclass(frozen=True)
class Port:
    """One input or output; `shape` has names for dynamic axes."""

    name: str
    type: str
    shape: tuple[int | str, ...]


def _compiled(path: Path) -> Callable[..., Any]:
    """What AOTInductor compiled, by the loader that C++ programs use too: that of Python tries this box's compiler first."""
    loader: Any = torch._C._aoti.AOTIModelPackageLoader
    said = loader.load_metadata_from_package(str(path), "model")
    machine, vectors = said.get("AOTI_MACHINE"), said.get("AOTI_CPU_ISA", "")
    if machine != platform.machine():
        raise RuntimeError(f"{path.name} is compiled for {machine}, and this is {platform.machine()}")
    if vectors.startswith("AVX") and not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        raise RuntimeError(f"{path.name} is compiled for processors with {vectors}, which this one does not have")
    opened = loader(str(path), "model", False, 1, -1)
    return lambda *tensors: opened.boxed_run(list(tensors))


def _exported(path: Path) -> Callable[..., Any]:
    with zipfile.ZipFile(path) as archive:
        if any("/data/aotinductor/" in name for name in archive.namelist()):
            return _compiled(path)
    # The guards are those of the example's sizes; the stage that wrote the file ran it at others, and widened what is checked.
    return torch.export.load(str(path)).module(check_guards=False)


def _scripted(path: Path, optimized: bool) -> Any:
    # What is optimized is not saved, but made where it runs: which kernels it chooses is the business of that torch on that processor.
    module = torch.jit.load(str(path))
    return torch.jit.optimize_for_inference(module) if optimized else module


class Program:
    """One program: TorchScript (.pt), what torch.export saves, or what AOTInductor made of that (both .pt2). Takes and gives numpy arrays.

    `optimized`: TorchScript is optimized for this processor when it is loaded, which takes a moment and may make it faster.
    """

    def __init__(self, path: str | Path, *, optimized: bool = False, **_: Any) -> None:
        self.path = Path(path)
        described = json.loads((self.path.parent / GRAPHS).read_text(encoding="utf-8"))["graphs"]
        ports = next(entry for entry in described if entry["file"] == self.path.name)
        self._inputs, self._outputs = (
            [Port(entry["name"], f"tensor({_TYPES[entry['dtype']]})", tuple(entry["shape"])) for entry in ports[side]]
            for side in ("inputs", "outputs")
        )
        self._run: Any = _scripted(self.path, optimized) if self.path.suffix == SCRIPT else _exported(self.path)

    def get_inputs(self) -> list[Port]:
        """In the program's order."""
        return self._inputs

    def get_outputs(self) -> list[Port]:
        """In the program's order."""
        return self._outputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs asked for, all if `names` is None."""
        outputs = self.tensors({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()})
        return [outputs[name].numpy() for name in (outputs if names is None else names)]

    def generate(self, ids: np.ndarray, mask: np.ndarray, most: int, ends: Sequence[int]) -> np.ndarray:
        """Greedy tokens (rows, at most `most`) behind left-padded ids, by the loop inside a language model in TorchScript.

        It stops when each row has had one of `ends`; a row that ended before the others is filled up with the first of them.
        """
        with torch.inference_mode():
            tensors = (torch.from_numpy(np.ascontiguousarray(array, np.int64)) for array in (ids, mask))
            written: np.ndarray = self._run.generate(*tensors, most, list(ends)).numpy()
        return written

    def tensors(self, feeds: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """All outputs by name. Tensors must be contiguous: torch.export takes the strides of its example for granted."""
        with torch.inference_mode():
            results = self._run(*(feeds[port.name].contiguous() for port in self._inputs))
        results = results if isinstance(results, tuple | list) else (results,)
        return {port.name: value for port, value in zip(self._outputs, results, strict=True)}


class Decoders:
    """An encoder-decoder's two decoders as the one that onnxruntime's folders have: `use_cache_branch` says whether there is a cache."""

    def __init__(self, first: Program, later: Program) -> None:
        self._first, self._later = first, later

    def get_inputs(self) -> list[Port]:
        """Those of both, and which of them is meant."""
        named = {port.name: port for port in (*self._first.get_inputs(), *self._later.get_inputs())}
        return [*named.values(), Port("use_cache_branch", "tensor(bool)", (1,))]

    def get_outputs(self) -> list[Port]:
        """Those of the first step."""
        return self._first.get_outputs()

    def run(self, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs asked for."""
        program = self._later if feeds["use_cache_branch"].any() else self._first
        return program.run(names, {port.name: feeds[port.name] for port in program.get_inputs()})


def opened(folder: Path, name: str) -> Program | Decoders:
    """The program that stands for a graph, by the name that the graph would have."""
    described = json.loads((folder / GRAPHS).read_text(encoding="utf-8"))["graphs"]
    files = {Path(entry["file"]).stem: folder / entry["file"] for entry in described}
    stem = Path(name).stem
    if stem == "decoder_model_merged":
        return Decoders(Program(files["decoder_model"]), Program(files["decoder_with_past_model"]))
    return Program(files[stem])
