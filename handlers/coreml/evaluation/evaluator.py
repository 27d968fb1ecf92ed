"""Evaluates the program of a Core ML package operator by operator, with numpy.

Used by the session of the folder's engine outside of macOS, where Core ML has no runtime, and by the stages that try what they made. It
shows that the program and its weights, as they lie on disk, compute what the model computes. It does not show how Apple's runtime computes:
sums are fp32 here, and results are rounded to half precision where the program stores them so. What comes out of each operator must have
the type that the program declares for it, since a runtime goes by that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from handlers.coreml.evaluation.blobs import DTYPES, Blob, Unreadable
from handlers.coreml.evaluation.decompression import DECOMPRESSED, PREFIX
from handlers.coreml.evaluation.kernels import KERNELS, MOVES
from handlers.coreml.evaluation.package import Operator, Program, Type

State = Mapping[str, np.ndarray]
_HALF = "float16"


class UnknownOperator(Unreadable):
    """The program has an operator that is not evaluated here."""


class Unsound(Unreadable):
    """The program contradicts itself, or what it is given is not what it declares."""


class Evaluator:
    """One program with its weights in memory, in fp32."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._values: dict[str, Any] = {}
        """All that does not depend on the inputs."""
        self._steps: list[Operator] = []
        for operator in program.operators:
            if operator.kind == "const" or operator.kind.startswith(PREFIX):
                (name, kind), value = operator.outputs[0], constant(operator, self._values)
                self._values[name] = _stored(value, kind, operator.kind)
            elif operator.kind not in KERNELS and operator.kind not in ("read_state", "write_state"):
                raise UnknownOperator(f"it has an operator {operator.kind} ({operator.outputs[0][0]}), which is not evaluated here")
            else:
                self._steps.append(operator)
        compressed = {name for operator in program.operators if operator.kind.startswith(PREFIX) for name in _names(operator)}
        used = {name for step in self._steps for name in _names(step)} | set(program.outputs)
        for name in compressed - used:
            del self._values[name]
        self._ends = _last_uses(self._steps, {*self._values, *program.outputs})

    def start(self) -> State:
        """States as they are at first: zeros."""
        return {name: np.zeros([size or 0 for size in kind.shape], np.float32) for name, kind in self.program.states.items()}

    def run(self, state: State, feeds: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], State]:
        """Outputs by name, and the states after it; `state` stays as it is. Raises Unsound."""
        values, states = {**self._values, **self._fed(feeds)}, dict(state)
        with np.errstate(all="ignore"):  # infinities are the outcome's matter
            for place, operator in enumerate(self._steps):
                if operator.kind == "write_state":
                    name = str(operator.inputs["input"][0])
                    states[name] = _stored(_value(operator.inputs["data"][0], values), self.program.states[name], operator.kind)
                else:
                    self._step(operator, values, states)
                for name in self._ends[place]:
                    values.pop(name, None)
        return {name: np.asarray(values[name]) for name in self.program.outputs}, states

    def _step(self, operator: Operator, values: dict[str, Any], states: dict[str, np.ndarray]) -> None:
        if operator.kind == "read_state":
            result: Any = states[str(operator.inputs["input"][0])]
        else:
            try:
                result = KERNELS[operator.kind](_given(operator, values))
            except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
                raise Unsound(f"its operator {_called(operator)} can't be computed ({type(error).__name__}: {error})") from error
        several = result if isinstance(result, list | tuple) else [result]
        for (name, kind), value in zip(operator.outputs, several, strict=False):
            values[name] = _stored(value, kind, _called(operator), rounds=operator.kind not in MOVES)

    def _fed(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if set(feeds) != set(self.program.inputs):
            raise Unsound(f"it takes {sorted(self.program.inputs)}, and was given {sorted(feeds)}")
        places = [shapes.index(np.shape(feeds[name])) for name, shapes in self.program.shapes.items() if np.shape(feeds[name]) in shapes]
        listed = {len(shapes) for shapes in self.program.shapes.values()} - {1}
        flexible = {place for place, shapes in zip(places, self.program.shapes.values(), strict=False) if len(shapes) > 1}
        if len(places) < len(self.program.shapes) or len(listed) > 1 or len(flexible) > 1:
            given = {name: np.shape(array) for name, array in feeds.items()}
            raise Unsound(f"it takes no inputs of the shapes {given}")
        return {name: _stored(array, self.program.inputs[name], f"the input {name}") for name, array in feeds.items()}


def constant(operator: Operator, values: Mapping[str, Any]) -> Any:
    """What a constant of a program stands for, given those before it. Raises Unreadable."""
    if operator.kind == "const":
        value = operator.value
        return value.read() if isinstance(value, Blob) else value
    if operator.kind not in DECOMPRESSED:
        raise UnknownOperator(f"it has weights as {operator.kind} ({operator.outputs[0][0]}), which are not decompressed here")
    try:
        return DECOMPRESSED[operator.kind]({name: np.asarray(value) for name, value in _given(operator, values).items()})
    except (NotImplementedError, ValueError, IndexError, KeyError) as error:
        raise Unreadable(f"its weights {operator.outputs[0][0]} can't be decompressed ({type(error).__name__}: {error})") from error


def half(array: np.ndarray) -> np.ndarray:
    """fp32 numbers as half precision keeps them, in fp32."""
    return array.astype(np.float16).astype(np.float32)


def _given(operator: Operator, values: Mapping[str, Any]) -> dict[str, Any]:
    """The operator's inputs by name; a list where it takes several values under one name."""
    given: dict[str, Any] = {}
    for name, bounds in operator.inputs.items():
        arrays = [_value(bound, values) for bound in bounds]
        given[name] = arrays if name == "values" else arrays[0]
    return given


def _value(bound: Any, values: Mapping[str, Any]) -> Any:
    value = values[bound] if isinstance(bound, str) else bound.read() if isinstance(bound, Blob) else bound
    return value.astype(np.float32) if isinstance(value, np.ndarray | np.generic) and value.dtype == np.float16 else value


def _stored(value: Any, kind: Type, what: str, *, rounds: bool = True) -> Any:
    """A value as its type keeps it: fractions in fp32, rounded to half precision where it says so. Raises Unsound for another type."""
    if kind.dtype == "string":
        return str(value)
    array = np.asarray(value)
    if not kind.fits(array.shape):
        wanted = tuple("any" if size is None else size for size in kind.shape)
        raise Unsound(f"{what} has the shape {array.shape}, and is declared as {wanted}")
    if kind.dtype in (_HALF, "float32"):
        if not np.issubdtype(array.dtype, np.floating):
            raise Unsound(f"{what} is {array.dtype}, and is declared as {kind.dtype}")
        if kind.dtype == _HALF and rounds:
            return array.astype(np.float32) if array.dtype == np.float16 else half(array)
        return array.astype(np.float32, copy=False)
    wanted_kind = DTYPES.get(kind.dtype)
    if wanted_kind is None:
        return array
    if np.issubdtype(wanted_kind, np.integer) != np.issubdtype(array.dtype, np.integer):
        raise Unsound(f"{what} is {array.dtype}, and is declared as {kind.dtype}")
    return array.astype(wanted_kind, copy=False)


def _called(operator: Operator) -> str:
    return f"{operator.kind} ({operator.outputs[0][0]})"


def _names(operator: Operator) -> Iterator[str]:
    return (bound for bounds in operator.inputs.values() for bound in bounds if isinstance(bound, str))


def _last_uses(steps: list[Operator], kept: set[str]) -> list[list[str]]:
    """For each step the values that nothing reads after it."""
    seen, ends = set(kept), list[list[str]]()
    for step in reversed(steps):
        names = {*_names(step), *(name for name, _ in step.outputs)}
        ends.append([name for name in names if name not in seen])
        seen |= names
    return ends[::-1]
