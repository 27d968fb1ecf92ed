"""The twin: the merged model in PyTorch with what the artifact stores in the place of its matrices.

Used by the comparison, in a process of its own. transformers builds and runs the model; only numbers are put into it. A matrix that is tied
to the embedding, but is stored twice, is untied. Imports torch and transformers.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from handlers.validate.engines.registry import EngineSpec, load
from handlers.validate.twins import matching, rounding
from handlers.validate.twins.matching import Segment
from handlers.validate.twins.rounding import Misrounded
from handlers.validate.twins.weights import Stored, UnreadableError

_ELEMENTS = 1 << 20
"""That are written at once."""
_SMALL = 1 << 16
"""Elements of a parameter that is known by all its numbers."""


@dataclass(frozen=True)
class Wrong:
    """A stored weight that is not a merged one rounded."""

    name: str
    parameter: str
    """The one that it is nearest to; "" for none."""
    misrounded: Misrounded | None
    """None where it is near no parameter."""

    @property
    def share(self) -> float:
        return self.misrounded.share if self.misrounded else 1.0


@dataclass(frozen=True)
class _Owner:
    """A place of a model that has a parameter."""

    path: str
    module: torch.nn.Module
    attribute: str


class Twin:
    """A merged model whose weights are replaced."""

    def __init__(self, merged: Path, spec: EngineSpec) -> None:
        """Load it. `spec`: task and threads. Raises UnreadableError where its weights are no plain numbers."""
        # A merged model has no processor; the artifact's is judged beside the live model's.
        self.engine: Any = load(spec.model_copy(update={"engine": "torch", "folder": str(merged), "processors": (spec.folder,)}))
        self._model: torch.nn.Module = self.engine._plain()
        self._owners: dict[str, list[_Owner]] = {}
        """Name of a parameter → the places that have it; of a tied one, all of them."""
        self._weights: dict[str, torch.Tensor] = {}
        """Parameters, and tables that are computed when the model is made (positions)."""
        names: dict[int, str] = {}
        for path, module in self._model.named_modules():
            tables = (pair for pair in module.named_buffers(recurse=False) if pair[1].ndim > 1 and pair[1].is_floating_point())
            for name, weight in (*module.named_parameters(recurse=False), *tables):
                if not weight.is_floating_point():
                    raise UnreadableError("the merged model is stored quantized")
                own = names.setdefault(id(weight), f"{path}.{name}")
                self._owners.setdefault(own, []).append(_Owner(path, module, name))
                self._weights[own] = weight
        self._merged = {name: weight.detach().numpy() for name, weight in self._weights.items()}

    def take(self, weights: Sequence[Stored]) -> list[Wrong]:
        """Put stored weights in the place of the merged ones that they are; those that are none, or not well rounded, are given back."""
        wrong, taken, plan = list[Wrong](), dict[str, list[str]](), list[tuple[Stored, list[Segment]]]()
        for weight in weights:
            segments = matching.match(weight, self._merged, taken.get(weight.use, ()))
            if segments is None:
                wrong.append(Wrong(weight.name, "", None))
                continue
            taken.setdefault(weight.use, []).extend(segment.parameter for segment in segments)
            judged = [(segment, rounding.misrounded(weight, self._rows(segment), segment.first)) for segment in segments]
            bad = [Wrong(weight.name, segment.parameter, fault) for segment, fault in judged if fault is not None]
            wrong += sorted(bad, key=lambda fault: -fault.share)[:1]
            plan.append((weight, segments))
        for weight, segments in plan:
            for segment in segments:
                _write(weight, segment, self._own(segment.parameter, weight))
        return wrong

    def round_to(self, halves: Set[bytes]) -> None:
        """Let each parameter be in halves whose halves are among `halves`, the bytes of tensors."""
        for weight in self._weights.values():
            if weight.numel() <= _SMALL and (half := weight.detach().half()).numpy().tobytes() in halves:
                weight.data.copy_(half)

    def _rows(self, segment: Segment) -> np.ndarray:
        return _as_rows(self._merged[segment.parameter], segment)

    def _own(self, name: str, weight: Stored) -> torch.Tensor:
        """Give a parameter for the place where a weight is read, and its side of an encoder-decoder; what is tied to it keeps its own."""
        mine = owners = self._owners[name]
        for fits in (
            lambda owner: isinstance(owner.module, torch.nn.Embedding) == (weight.use == "table"),
            lambda owner: ("encoder" in owner.path.split(".")) == (weight.role == "encoder"),
        ):
            mine = [owner for owner in mine if fits(owner)] or mine
        parameter: torch.Tensor = getattr(mine[0].module, mine[0].attribute)
        others = [owner for owner in owners if owner not in mine and getattr(owner.module, owner.attribute) is parameter]
        if parameter is self._weights[name] and others:
            parameter = torch.nn.Parameter(parameter.detach().clone(), requires_grad=False)
            for owner in mine:
                setattr(owner.module, owner.attribute, parameter)
        return parameter


def _as_rows(array: np.ndarray, segment: Segment) -> np.ndarray:
    rows: np.ndarray = array.T if segment.turned else array.reshape(-1, array.shape[-1])
    return rows[segment.start : segment.start + segment.count]


def _write(weight: Stored, segment: Segment, target: torch.Tensor) -> None:
    rows, step = _as_rows(target.detach().numpy(), segment), max(1, _ELEMENTS // weight.shape[1])
    for start in range(0, segment.count, step):
        end = min(segment.count, start + step)
        rows[start:end] = weight.part(slice(segment.first + start, segment.first + end)).values
