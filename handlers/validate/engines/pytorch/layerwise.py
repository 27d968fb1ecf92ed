"""Engines of language models that are read layer by layer: the live model, and the merged one. Imported only inside workers.

They are the usual engines, of the same classes, in which the weights come and go while passes wait for them. So the order of all arithmetic
is the usual one, and the outputs are equal bit for bit.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from handlers.layerwise import adapters, skeleton
from handlers.layerwise.lockstep import Door, Lockstep, Task, task_here
from handlers.layerwise.parts import Wanted
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import Source, StoredSource
from handlers.validate.engines.adapters import packed_base, vocabulary
from handlers.validate.engines.pytorch.live import LiveEngine
from handlers.validate.engines.pytorch.torch_causal import TorchEngine
from handlers.validate.engines.registry import EngineSpec

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
    _bare = False
    _acts: contextlib.ExitStack | None = None
    _model: Any

    def start(self, work: Callable[[], Any], wanted: Wanted, held: Door | None = None) -> Task:
        """Give a task that runs with the adapter, or without it inside of `without_adapter`; it stands at its first door."""
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
        info = self._files.headers[name]
        return StoredSource(name, self._files.path_of(info), info)


class LayerwiseTorch(Layerwise, TorchEngine):
    """A transformers folder."""

    def _load(self, spec: EngineSpec) -> Any:
        made = self._begin(Path(spec.folder), spec.task)
        self.final = skeleton.furnish(made.model, made, self._source)
        return made.model


class LayerwiseLive(Layerwise, LiveEngine):
    """The base with the adapter applied at run time, by PEFT's own layers."""

    _made: skeleton.Skeleton
    _packed: Mapping[str, bool] = MappingProxyType({})
    """Stored name of each tensor that a load in 4 bits would pack → whether it packs the transpose."""

    def _load(self, spec: EngineSpec) -> Any:
        wrapped = super()._load(spec)
        self.final = skeleton.furnish(wrapped, self._made, self._source, adapters.reads_weights)
        if spec.base_values != "original":
            self.rebase(spec.base_values)
        return wrapped

    def _load_base(self, base: Path, spec: EngineSpec, shapes: dict[str, tuple[int, ...]]) -> Any:
        for folder in (spec.folder, *(folder for folder, _ in spec.additions)):
            adapters.check_adapter(Path(folder))
        self._made = self._begin(base, spec.task)
        adapters.fill_while_loading(self._made)
        model = self._made.model
        self._names = {name: self._made.stored[id(value)] for name, value in model.named_parameters(remove_duplicate=False)}
        return model

    def _resize(self, model: Any, shapes: dict[str, tuple[int, ...]]) -> vocabulary.Resized | None:
        """Raise Permanent where the adapter has another vocabulary."""
        if weight := vocabulary.wanted(model, shapes):
            wanted = [weight.rows, *weight.shape[1:]]
            raise skeleton.refuse(self._files.path, f"the adapter changes the size of {weight.name} from {list(weight.shape)} to {wanted}")
        return None

    def rebase(self, values: str) -> int:
        """See `Adapted.rebase`."""
        self._values = values
        if not self._packed:
            self._packed = {self._names[name]: way for name, way in packed_base.packed_layers(self._made.model).items()}
        return len(self._packed)

    def _source(self, name: str) -> Source:
        source = super()._source(name)
        if self._values == "original" or name not in self._packed:
            return source
        return packed_base.PackedSource(source, double=self._values == "dequantized-double", transposed=self._packed[name])


def _return_memory() -> None:
    """Let what is freed go back at once: buffers of layers come and go in the threads of many tasks."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 20)
