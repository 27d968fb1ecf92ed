"""`dataclass` for frozen classes that `ckptd status` needs: what `dataclasses` makes of a class, with methods that all of them share.

The library writes source code for each class and compiles it, about 0.6 ms each, which for sixty classes is more than all else that a
command does. `fields`, `replace`, `asdict` and pydantic take these as what they are, dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass


class _Shape(NamedTuple):
    """The fields of a class."""

    by_place: tuple[str, ...]
    """Those that may be given by their place."""
    fixed: frozenset[str]
    """Those that may not be given."""
    defaults: dict[str, Any]
    """Each field's default; what makes it, as a `_Made`; MISSING where it must be given."""


class _Made(NamedTuple):
    """A default that is made for each value."""

    make: Callable[[], Any]


def _frozen_dataclass(*, frozen: bool, kw_only: bool = False, eq: bool = True) -> Callable[[type], type]:
    """As `dataclasses.dataclass` with these arguments."""
    assert frozen

    def made(kind: Any) -> Any:
        above = [base.__dataclass_params__ for base in kind.__mro__[1:] if "__shape__" in vars(base)]
        for params in above:
            params.frozen = False
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(kind)
        for params in (*above, kind.__dataclass_params__):
            params.frozen = True  # for the library: a frozen class may follow from this
        fields = dataclasses.fields(kind)
        kind.__shape__ = _Shape(
            tuple(field.name for field in fields if field.init and not field.kw_only),
            frozenset(field.name for field in fields if not field.init),
            {field.name: _default(field) for field in fields},
        )
        kind.__init__, kind.__repr__ = _init, _repr
        kind.__setattr__, kind.__delattr__ = _refuse, _refuse
        if eq:
            kind.__eq__, kind.__hash__ = _eq, _hash
        return kind

    return made


if not TYPE_CHECKING:
    dataclass = _frozen_dataclass


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else _Made(field.default_factory)


def _init(self: Any, /, *given: Any, **named: Any) -> None:
    shape: _Shape = type(self).__shape__
    if given:
        named = _placed(self, shape.by_place, given, named)
    values = self.__dict__
    for name, default in shape.defaults.items():
        if name in named and name not in shape.fixed:
            values[name] = named.pop(name)
        elif default is dataclasses.MISSING:
            raise TypeError(f"{type(self).__name__}.__init__() missing a required argument: {name!r}")
        else:
            values[name] = default.make() if type(default) is _Made else default
    if named:
        raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument {next(iter(named))!r}")


def _placed(self: Any, names: tuple[str, ...], given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    if len(given) > len(names):
        raise TypeError(f"{type(self).__name__}.__init__() takes {len(names)} positional arguments but {len(given)} were given")
    placed = dict(zip(names, given, strict=False))
    if twice := placed.keys() & named.keys():
        raise TypeError(f"{type(self).__name__}.__init__() got multiple values for argument {min(twice)!r}")
    return {**placed, **named}


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in type(self).__shape__.defaults])


def _repr(self: Any) -> str:
    named = zip(type(self).__shape__.defaults, _values(self), strict=True)
    return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in named)})"


def _eq(self: Any, other: object) -> bool:
    shape: _Shape = type(self).__shape__
    pairs = ((getattr(self, name), getattr(other, name)) for name in shape.defaults)
    return all(mine is its or mine == its for mine, its in pairs) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _refuse(self: Any, name: str, *_: Any) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
