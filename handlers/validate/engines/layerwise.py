"""Engines of language models that are read layer by layer: the live model, and the merged one. Imported only inside workers.

They are the usual engines, of the same classes, in which the weights come and go while passes wait for them. So the order of all arithmetic
is the usual one, and the outputs are equal bit for bit.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handlers.layerwise import adapters, skeleton
from handlers.layerwise.lockstep import Door, Lockstep, Task, task_here
from handlers.layerwise.parts import Wanted
from handlers.merge.weights.nf4_round_trip import quantized_tensors, round_trip
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import Source, StoredSource
from handlers.validate.engines.live import LiveEngine
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.engines.torch_causal import TorchEngine

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Of mallopt(3)."""


@dataclass
class Pass:
    """What a task's passes are like."""

    bare: bool
    """Without the adapter."""
    wanted: Wanted
    """Positions whose logits are wanted."""
    single: bool = False
    """It is one pass alone, after which no cache is needed."""


class Layerwise:
    """What both engines share. Its `step` may only be called by tasks that `start` makes."""

    lockstep: Lockstep
    final: Door
    """The last door that every pass comes to."""
    _files: ModelFolder
    _values = "original"
    _packed: frozenset[str] = frozenset()
    _bare = False
    _acts: contextlib.ExitStack | None = None
    _model: Any

    def start(self, work: Callable[[], Any], wanted: Wanted, held: Door | None = None) -> Task:
        """A task that runs with the adapter, or without it inside of `without_adapter`; it stands at its first door."""
        return self.lockstep.add(Task(work, Pass(self._bare, wanted, held is not None), held))

    def _keeps_cache(self) -> bool:
        tag: Pass = task_here().tag
        return not tag.single

    @contextlib.contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Inside, tasks are started on the bare base."""
        self._bare = True
        try:
            yield
        finally:
            self._bare = False

    def _begin(self, path: Path, task: str) -> skeleton.Skeleton:
        _return_memory()
        self.lockstep = Lockstep(self._switch)
        made = skeleton.build(path, task)
        self._files = made.folder
        return made

    def _switch(self, task: Task) -> None:
        """Let the adapter act or not, as the task that runs next wants it."""
        if task.tag.bare and self._acts is None:
            self._acts = contextlib.ExitStack()
            self._acts.enter_context(self._model.disable_adapter())
        elif not task.tag.bare and self._acts is not None:
            self._acts.close()
            self._acts = None

    def _source(self, name: str) -> Source:
        if name in self._packed:
            return round_trip(self._files, name, double=self._values == "dequantized-double")
        info = self._files.headers[name]
        return StoredSource(name, self._files.path_of(info), info)

    def _take(self, values: str) -> int:
        """Give the base the values that `merge.base` names; the number of tensors that this is about."""
        packed = frozenset(quantized_tensors(self._files))
        self._values, self._packed = values, packed if values != "original" else frozenset()
        return len(packed)


class LayerwiseTorch(Layerwise, TorchEngine):
    """A transformers folder."""

    def _load(self, spec: EngineSpec) -> Any:
        made = self._begin(Path(spec.folder), spec.task)
        self.final = skeleton.furnish(made.model, made, self._source)
        return made.model


class LayerwiseLive(Layerwise, LiveEngine):
    """The base with the adapter applied at run time, by PEFT's own layers."""

    _made: skeleton.Skeleton

    def _load(self, spec: EngineSpec) -> Any:
        wrapped = super()._load(spec)
        self.final = skeleton.furnish(wrapped, self._made, self._source, adapters.reads_weights)
        if spec.base_values != "original":
            self._take(spec.base_values)
        return wrapped

    def _load_base(self, base: Path, spec: EngineSpec, saved: dict[str, tuple[int, ...]]) -> Any:
        config: Any = adapters.check_adapter(Path(spec.folder))
        for folder, _ in spec.additions:
            adapters.check_adapter(Path(folder))
        self._made = self._begin(base, spec.task)
        adapters.release(self._made, saved, config.modules_to_save or ())
        return self._made.model

    def rebase(self, values: str) -> int:
        """See `Adapted.rebase`."""
        return self._take(values)


def _return_memory() -> None:
    """Let what is freed go back at once: buffers of layers come and go in the threads of many tasks."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 20)
