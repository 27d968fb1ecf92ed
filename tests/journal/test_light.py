"""The dataclasses whose methods are shared are to their users what `dataclasses` makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from daemon.contract import light


def made_by(dataclass: Any) -> dict[str, Any]:
    """Some classes, made by one decorator."""

    @dataclass(frozen=True)
    class Plain:
        """Fields with and without defaults."""

        name: str
        sizes: list[int] = field(default_factory=list)
        most: int = 3

        def twice(self) -> int:
            return 2 * self.most

    @dataclass(frozen=True, kw_only=True)
    class Below(Plain):
        """More fields, by name alone."""

        needed: str
        other: str | None = None

    @dataclass(frozen=True, eq=False)
    class Itself:
        """Equal to itself alone."""

        name: str = ""

    @dataclass(frozen=True)
    class Kind:
        """A field that may not be given before one that must be."""

        kind: str = field(default="kind", init=False)
        name: str

    @dataclasses.dataclass(frozen=True)
    class Follows(Below):
        """Made by the library of one that may not be."""

        last: int = 0

    return {kind.__name__: kind for kind in (Plain, Below, Itself, Kind, Follows)}


CALLS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "by place": lambda made: made["Plain"]("a", [1], 2),
    "by name": lambda made: made["Plain"](most=1, name="a"),
    "with defaults": lambda made: (made["Plain"]("a").sizes, made["Plain"]("a").sizes is made["Plain"]("a").sizes),
    "missing": lambda made: made["Plain"](),
    "too many": lambda made: made["Plain"]("a", [], 1, 2),
    "twice": lambda made: made["Plain"]("a", name="b"),
    "unknown": lambda made: made["Plain"]("a", odd=1),
    "equal": lambda made: (made["Plain"]("a") == made["Plain"]("a"), made["Plain"]("a") == made["Plain"]("b"), made["Plain"]("a") == "a"),
    "hash": lambda made: len({made["Plain"]("a", ()), made["Plain"]("a", ())}),
    "unhashable": lambda made: hash(made["Plain"]("a")),
    "set": lambda made: setattr(made["Plain"]("a"), "name", "b"),
    "delete": lambda made: delattr(made["Plain"]("a"), "name"),
    "below": lambda made: (made["Below"]("a", [1], needed="n"), made["Below"]("a", needed="n") == made["Plain"]("a")),
    "below by place": lambda made: made["Below"]("a", [], 1, "n"),
    "follows": lambda made: (made["Follows"]("a", needed="n", last=3), made["Follows"]("a", needed="n").twice()),
    "itself": lambda made: (made["Itself"]() == made["Itself"](), len({made["Itself"](), made["Itself"]()})),
    "fixed": lambda made: (made["Kind"]("a"), dataclasses.replace(made["Kind"]("a"), name="b"), made["Kind"]("a") == made["Kind"]("b")),
    "fixed is given": lambda made: made["Kind"](kind="other", name="a"),
    "fixed by place": lambda made: made["Kind"]("other", "a"),
    "replace": lambda made: dataclasses.replace(made["Below"]("a", needed="n"), most=7, other="o"),
    "asdict": lambda made: dataclasses.asdict(made["Below"]("a", [1], needed="n")),
    "fields": lambda made: [(entry.name, entry.kw_only) for entry in dataclasses.fields(made["Below"])],
    "copy": lambda made: (copy.deepcopy(made["Plain"]("a", [1])), copy.copy(made["Plain"]("a"))),
    "matched": lambda made: made["Plain"].__match_args__,
}


def outcome(call: Callable[[dict[str, Any]], Any], made: dict[str, Any]) -> str:
    """What a call gives, or the kind of its error."""
    try:
        return repr(call(made))
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("name", CALLS)
def test_it_does_what_the_librarys_does(name: str) -> None:
    assert outcome(CALLS[name], made_by(light.dataclass)) == outcome(CALLS[name], made_by(dataclasses.dataclass))


@light.dataclass(frozen=True)
class Kept:
    """What is sent to another process."""

    name: str
    most: int = 3


def test_it_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept("a"))) == Kept("a", 3)
