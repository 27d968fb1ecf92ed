"""A decoder run layer by layer over the calibration texts, with one layer's weights in memory at a time.

Called by `compressed` for the correction of errors. The model is built without weights. Each of its layers is first replaced by one that
notes what it is called with (masks, angles of positions), which no layer changes; then the layers themselves are run one after the other,
each on what the quantized ones before it gave. What is outside of the layers is read as far as it is needed: of the embeddings, the rows of
the texts' tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from handlers.merge.weights.model_structure import model_class
from handlers.models.folder import ModelFolder
from handlers.pytorch.quantize.linears import Linear, Linears
from handlers.tensors.sources import StoredSource

SMALL = 1 << 22
"""Elements of an embedding up to which it is read as a whole."""
Call = tuple[tuple[Any, ...], dict[str, Any]]
"""What a layer is called with, the hidden states left out."""


class UnknownModelError(Exception):
    """The model can't be run layer by layer."""


class _Reached(Exception):
    """All layers were called."""


class _Note(torch.nn.Module):
    """Takes a layer's place: notes what it is called with, and hands on the hidden states."""

    def __init__(self, layer: Any, calls: list[list[Call]], place: int, hidden: list[torch.Tensor]) -> None:
        super().__init__()
        self._layer = [layer]  # in a list, so that it is no module of this one
        self._calls, self._place, self._hidden = calls, place, hidden

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_layer"][0], name)

    def forward(self, hidden_states: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        """Note one call."""
        self._calls[self._place].append((others, named))
        if self._place == 0:
            self._hidden.append(hidden_states)
        if self._place == len(self._calls) - 1:
            raise _Reached
        return hidden_states


@dataclass
class Inputs:
    """What the linear layers of one decoder layer get, summed up over all texts."""

    hessians: dict[str, torch.Tensor]
    """Weight's name → mean of xxᵀ, (inputs, inputs); layers with the same input share it."""
    tokens: int


Quantize = Callable[[Linear, torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(layer, weight in fp32, mean of xxᵀ over its inputs, their number) → the weight as it will be computed with, in fp32."""


class Walk:
    """One decoder, to be walked through once. Raises UnknownModelError for one that is not built as expected."""

    def __init__(self, model: ModelFolder, linears: Linears) -> None:
        from accelerate import init_empty_weights
        from transformers.initialization import no_init_weights

        self._model, self._linears = model, linears
        cls = model_class(model)
        with no_init_weights(), init_empty_weights(include_buffers=False):  # buffers are computed, not stored
            self._built = cls(cls.config_class.from_pretrained(model.path)).eval()
        self._list = self._layer_list()
        self._layers = list(self._built.get_submodule(self._list))
        sample = next(iter(linears.quantized.values()))
        self._bare = sample.tensor != f"{sample.module}.weight"

    def _layer_list(self) -> str:
        """The path of the list of layers that holds all that is quantized."""
        names = [name for name, module in self._built.named_modules() if isinstance(module, torch.nn.ModuleList)]
        holding = [name for name in names if all(linear.module.startswith(f"{name}.") for linear in self._linears.quantized.values())]
        if not holding:
            raise UnknownModelError("its quantized layers do not lie in one list of equal layers")
        return str(max(holding, key=len))

    def _stored(self, name: str) -> str:
        """The name in the files of a parameter."""
        return name.partition(".")[2] if self._bare else name

    def _read(self, name: str, into: torch.Tensor) -> None:
        stored = self._stored(name)
        info = self._model.headers.get(stored)
        if info is None or info.shape != tuple(into.shape):
            raise UnknownModelError(f"its weight {name} is stored under another name or in another shape")
        StoredSource(stored, self._model.path_of(info), info).rows(0, info.shape[0], into)

    def _fill(self, module: Any, path: str) -> None:
        """Give a module's own and its parts' parameters their values, in fp32."""
        for name, parameter in list(module.named_parameters()):
            values = torch.empty(parameter.shape)
            self._read(f"{path}.{name}" if path else name, values)
            _put(module, name, values)

    def _fill_embedding(self, module: Any, path: str, tokens: Sequence[int]) -> None:
        """Give an embedding the rows of the texts' tokens; the pages of all other rows are never touched."""
        name = self._stored(f"{path}.weight")
        info = self._model.headers.get(name)
        if info is None or info.shape != tuple(module.weight.shape):
            raise UnknownModelError(f"its embedding {path} is stored under another name or in another shape")
        table = torch.from_numpy(np.zeros(info.shape, np.float32))
        source = StoredSource(name, self._model.path_of(info), info)
        for row in sorted({token for token in tokens if token < info.shape[0]}):
            source.rows(row, 1, table[row : row + 1])
        _put(module, "weight", table)

    def run(self, rows: Sequence[Sequence[int]], quantize: Quantize, passed: Callable[[int, int], None]) -> None:
        """Run the texts, given as token ids, and have every quantized layer quantized on the way.

        `passed` is called with the number of layers that are done, and with that of all. UnknownModelError ends the walk where a layer
        can't be run; what was quantized until then stays so.
        """
        with torch.inference_mode():
            hidden, calls = self._begin(rows)
            targets = {linear.module: linear for linear in self._linears.quantized.values()}
            for place, layer in enumerate(self._layers):
                self._fill(layer, f"{self._list}.{place}")
                inside = {f"{self._list}.{place}.{name}": module for name, module in layer.named_modules()}
                parts = {name: module for name, module in inside.items() if name in targets}
                seen = self._watched(layer, parts, hidden, calls[place])
                for name, part in parts.items():
                    part.weight.data = quantize(targets[name], part.weight.data, seen.hessians.pop(name), seen.tokens)
                for number, states in enumerate(hidden):
                    hidden[number] = _call(layer, states, calls[place][number])
                layer.to("meta")
                passed(place + 1, len(self._layers))

    def _begin(self, rows: Sequence[Sequence[int]]) -> tuple[list[torch.Tensor], list[list[Call]]]:
        """What goes into the first layer for each text, and what each layer is called with beside it."""
        head = self._built.get_output_embeddings()
        tokens = [token for row in rows for token in row]
        for path, module in self._built.named_modules():
            if path.startswith(f"{self._list}.") or module is head:
                continue
            own = dict(module.named_parameters(recurse=False))
            if isinstance(module, torch.nn.Embedding) and module.weight.numel() > SMALL:
                self._fill_embedding(module, path, tokens)
            elif own:
                for name, parameter in own.items():
                    values = torch.empty(parameter.shape)
                    self._read(f"{path}.{name}" if path else name, values)
                    _put(module, name, values)
        hidden: list[torch.Tensor] = []
        calls: list[list[Call]] = [[] for _ in self._layers]
        notes = [_Note(layer, calls, place, hidden) for place, layer in enumerate(self._layers)]
        parent, _, name = self._list.rpartition(".")
        setattr(self._built.get_submodule(parent), name, torch.nn.ModuleList(notes))
        for row in rows:
            try:
                self._built(input_ids=torch.tensor([list(row)]), use_cache=False)
            except _Reached:
                continue
            except Exception as error:  # a model's own code, which may expect anything of its layers
                raise UnknownModelError(f"its layers can't be run one by one: {_first_line(error)}") from error
            raise UnknownModelError("it does not run its layers in their order")
        return hidden, calls

    @staticmethod
    def _watched(layer: Any, quantized: dict[str, Any], hidden: Sequence[torch.Tensor], calls: Sequence[Call]) -> Inputs:
        """Run one layer on all texts, and sum up what its quantized parts get."""
        sums: dict[str, torch.Tensor] = {}
        same: dict[str, str] = {}
        last: list[tuple[torch.Tensor, str]] = []

        def hook(name: str) -> Callable[[Any, tuple[torch.Tensor, ...]], None]:
            def see(_: Any, given: tuple[torch.Tensor, ...]) -> None:
                first = next((other for states, other in last if states is given[0]), name)
                last.append((given[0], first))
                if same.setdefault(name, first) != first:
                    raise UnknownModelError(f"{name} does not always get the same input as {same[name]}")
                if first == name:
                    states = given[0].reshape(-1, given[0].shape[-1])
                    if name not in sums:
                        sums[name] = torch.zeros(states.shape[1], states.shape[1])
                    sums[name].addmm_(states.T, states)

            return see

        hooks = [module.register_forward_pre_hook(hook(name)) for name, module in quantized.items()]
        for states, call in zip(hidden, calls, strict=True):
            last.clear()
            _call(layer, states, call)
        for handle in hooks:
            handle.remove()
        if missing := quantized.keys() - same.keys():
            raise UnknownModelError(f"the texts do not reach {min(missing)}")
        tokens = sum(states.shape[1] for states in hidden)
        for total in sums.values():
            total /= tokens
        return Inputs({name: sums[first] for name, first in same.items()}, tokens)


def _call(layer: Any, states: torch.Tensor, call: Call) -> torch.Tensor:
    try:
        given = layer(states, *call[0], **call[1])
    except UnknownModelError:
        raise
    except Exception as error:  # a model's own code
        raise UnknownModelError(f"its layers can't be run one by one: {_first_line(error)}") from error
    states = given[0] if isinstance(given, tuple) else given
    if not isinstance(states, torch.Tensor):
        raise UnknownModelError("its layers give something else than hidden states")
    return states


def _put(module: Any, name: str, values: torch.Tensor) -> None:
    """Replace a parameter of a module or of one of its parts."""
    path, _, own = name.rpartition(".")
    holder = module.get_submodule(path) if path else module
    setattr(holder, own, torch.nn.Parameter(values, requires_grad=False))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
