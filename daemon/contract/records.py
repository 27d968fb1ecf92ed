"""Values of the journal and of messages: as pydantic's models in all that a caller sees, but read and made without importing pydantic.

`ckptd status` and `ckptd list` read hundreds of them, and pydantic alone takes longer to import than they may. A record's annotations say
once what its fields may be. A value that is exactly that is taken as it is; where anything else is given, or a record is written, pydantic
decides: whether the value can be meant so, and what is wrong with it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
Take: typing.TypeAlias = Callable[[Any], Any]
_REQUIRED = object()


class Unclear(ValueError):
    """A value is not exactly what an annotation says."""


class Within(NamedTuple):
    """Bounds of a number, as an annotation: `Annotated[float, Within(0, 1)]`."""

    least: float
    most: float = math.inf

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """The number's schema with these bounds, as pydantic asks any annotation for it."""
        bounds = {"ge": self.least} if self.most == math.inf else {"ge": self.least, "le": self.most}
        return {**handler(source), **bounds}

    def holds(self, number: float) -> bool:
        """Whether a number lies within them."""
        return self.least <= number <= self.most


class Length(NamedTuple):
    """Most characters of a text, or entries of a tuple, as an annotation. `barred`: a character that the text must not have."""

    most: int
    barred: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """The schema of the text or the tuple with these bounds, as pydantic asks any annotation for it."""
        pattern = {"pattern": f"^[^\\x{ord(self.barred):02x}]*$"} if self.barred else {}
        return {**handler(source), "max_length": self.most, **pattern}

    def holds(self, value: str | tuple[Any, ...]) -> bool:
        """Whether a text or a tuple keeps to them."""
        return len(value) <= self.most and not (self.barred and self.barred in value)


class ShownAs(NamedTuple):
    """What a JSON schema says of a type, as an annotation: `Annotated[Code, ShownAs("string")]`."""

    type: str

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """That, as pydantic asks any annotation for it."""
        return {"type": self.type}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
class Record:
    """Immutable, hashable where its fields are, and closed to unknown keys. Made, copied, written and read as a model of pydantic is."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    model_fields: ClassVar[Mapping[str, Any]]
    """The fields by their names."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)
        cls.model_fields = cls.__dataclass_fields__

    def __init__(self, **values: Any) -> None:
        """Raises pydantic's ValidationError for what can't be meant by a field's annotation."""
        kind, given = type(self), self.prepared(values)
        try:
            fields = _fields_in(kind, given)
        except Unclear:
            fields = {**vars(validator_of(kind).validate_python(given))}
        self.__dict__.update(fields)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Called when a record is made, by pydantic too."""

    @staticmethod
    def prepared(values: dict[str, Any]) -> dict[str, Any]:
        """What is given for the fields, before it is looked at."""
        return values

    @classmethod
    def model_validate(cls, value: Any, *, strict: bool | None = None) -> Self:
        """The record of a dictionary. Raises ValidationError."""
        try:
            made: Self = _made(cls, value)
        except Unclear:
            return validator_of(cls).validate_python(value, strict=strict)  # which, if strict, takes no dictionary at all
        return made

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        """The record of a JSON text. Raises ValidationError."""
        return read_json(cls, text)

    @classmethod
    def model_rebuild(cls) -> None:
        """Let pydantic get ready now: where there is no handle or memory left it could not."""
        validator_of(cls)

    def model_dump(self, **how: Any) -> dict[str, Any]:
        """The fields as a dictionary; `how`: what pydantic's `model_dump` takes."""
        values: dict[str, Any] = validator_of(type(self)).dump_python(self, **how)
        return values

    def model_dump_json(self, **how: Any) -> str:
        """The fields as a JSON text; `how`: what pydantic's `model_dump_json` takes."""
        return validator_of(type(self)).dump_json(self, **how).decode()

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """The record with other values."""
        return type(self)(**{**vars(self), **(update or {})})

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def read_json(kind: type[T], text: str | bytes) -> T:
    """The record, or the plain dataclass, that a JSON text holds. Raises pydantic's ValidationError, a ValueError."""
    wanted: Any = kind
    try:
        value: T = _taker(wanted)(_parsed(text))
    except (Unclear, RecursionError):
        return validator_of(kind).validate_json(text)
    return value


def validator_of(kind: type[T]) -> TypeAdapter[T]:
    """What pydantic makes of a class."""
    wanted: Any = kind
    validator: TypeAdapter[T] = _validator(wanted)
    return validator


@functools.cache
def _validator(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _parsed(text: str | bytes) -> Any:
    """A JSON text's value, where every reader of JSON reads the same. Raises Unclear."""
    try:
        words = text if isinstance(text, str) else text.decode()
        if "\\ud" in words or "\\uD" in words:
            raise Unclear("a half of a surrogate pair may be in it")
        return json.loads(words, parse_constant=_refuse)
    except ValueError as error:
        raise Unclear from error


def _refuse(word: str) -> Any:
    raise Unclear(word)


def _fields_in(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all fields, in their order. Raises Unclear."""
    takers, fields = _takers(kind), {}
    if not given.keys() <= takers.keys() and getattr(kind, "__pydantic_config__", {}).get("extra") == "forbid":
        raise Unclear("a key is not known")
    for name, (take, default) in takers.items():
        if name in given:
            fields[name] = take(given[name])
        elif default is _REQUIRED:
            raise Unclear(f"{name} is missing")
        else:
            fields[name] = default() if callable(default) else default
    return fields


@functools.cache
def _takers(kind: type) -> dict[str, tuple[Take, Any]]:
    """Field → what takes its value, and its default or what makes it."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: (_taker(hints[field.name]), _default(field)) for field in dataclasses.fields(kind)}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    return _REQUIRED if field.default is dataclasses.MISSING else field.default


@functools.cache
def _taker(kind: Any) -> Take:
    """What takes a value that is exactly of this type, and raises Unclear for any other."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, typing.NewType):
        return _taker(kind.__supertype__)
    if origin is typing.Annotated:
        return _bounded(_taker(inner[0]), [mark for mark in inner[1:] if isinstance(mark, Within | Length)])
    if origin in (types.UnionType, typing.Union):
        return _first([_taker(part) for part in inner])
    if origin is typing.Literal:
        return functools.partial(_known, dict(zip(inner, inner, strict=True)))
    if origin is tuple and inner[1:] == (Ellipsis,):
        return functools.partial(_tuple, _taker(inner[0]))
    if origin in (dict, Mapping) and inner[0] is str:
        return functools.partial(_mapping, _taker(inner[1]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return functools.partial(_known, {member.value: member for member in kind})
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return functools.partial(_made, kind)
    raise TypeError(f"a record can't have a field of the type {kind}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unclear
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unclear from None
    return value if type(value) is str else str.__str__(value)


def _number(value: Any) -> float:
    if type(value) is int and abs(value) < 1 << 53:
        return float(value)
    return float(_exact(float, value))


def _exact(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise Unclear
    return value


def _any(value: Any) -> Any:
    return value


_PLAIN: dict[Any, Take] = {
    str: _text, float: _number, int: functools.partial(_exact, int), bool: functools.partial(_exact, bool), Any: _any, object: _any,
    type(None): functools.partial(_exact, type(None)), Path: lambda value: Path(_text(value)),
}  # fmt: skip


def _bounded(take: Take, bounds: list[Within | Length]) -> Take:
    def taken(value: Any) -> Any:
        inner = take(value)
        if not all(bound.holds(inner) for bound in bounds):
            raise Unclear
        return inner

    return taken


def _first(takes: list[Take]) -> Take:
    def taken(value: Any) -> Any:
        for take in takes:
            try:
                return take(value)
            except Unclear:
                continue
        raise Unclear

    return taken


def _known(members: Mapping[Any, Any], value: Any) -> Any:
    if not isinstance(value, str) or value not in members:
        raise Unclear
    return members[value]


def _tuple(take: Take, value: Any) -> tuple[Any, ...]:
    if type(value) not in (tuple, list):
        raise Unclear
    return tuple([take(part) for part in value])


def _mapping(take: Take, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise Unclear
    return {_text(name): take(part) for name, part in value.items()}


def _made(kind: type, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if type(value) is not dict:
        raise Unclear
    if issubclass(kind, Record):
        made = object.__new__(kind)
        made.__dict__.update(_fields_in(kind, kind.prepared(value)))
        made.__post_init__()
        return made
    return kind(**_fields_in(kind, value))
