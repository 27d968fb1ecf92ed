"""Immutable values and their digest, which the contract and the options are built on. Pure.

`Frozen`, the base of models, is imported when it is asked for: what needs none of them had better not wait for pydantic.
"""

from __future__ import annotations

import hashlib
import json
import math
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from daemon.contract.records import Record, validator_of

if TYPE_CHECKING:
    from pydantic import BaseModel

    from daemon.contract.frozen import Frozen as Frozen

Json: TypeAlias = Mapping[str, Any]
"""A JSON object whose keys others decide: a configuration, a trainer's state, the file of a tokenizer. It is read, never changed."""


def __getattr__(name: str) -> Any:
    if name == "Frozen":
        from daemon.contract.frozen import Frozen

        return Frozen
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def build_models() -> None:
    """Build the validators of all models that are imported: for whoever begins threads, two of which could need one for the first time.
    Not every release of pydantic that we run with has a lock for that."""
    from pydantic import BaseModel

    _build(BaseModel)
    for record in Record.__subclasses__():
        validator_of(record)


def _build(kind: type[BaseModel]) -> None:
    for model in kind.__subclasses__():
        model.model_rebuild(raise_errors=False)
        _build(model)


def docstrings(model: type[BaseModel] | type[Record]) -> dict[str, str]:
    """Field → the text below it in the source of its class.

    pydantic reads them too (`use_attribute_docstrings`), whenever a class is made: for all of ours that takes a tenth of a second in every
    process, and only documents are made of them.
    """
    import ast
    import inspect

    texts, fields = {}, model.model_fields
    for kind in reversed(model.__mro__):
        if not fields.keys() & inspect.get_annotations(kind).keys():
            continue
        (written,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(written, ast.ClassDef)
        for field, text in pairwise(written.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))) if name in fields:
                    texts[name] = inspect.cleandoc(words)
    return texts


def digest_of(value: Any) -> str:
    """SHA-256, in hex, of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def value_at(value: Any, *names: str) -> Any:
    """What lies at the keys of nested JSON objects; None where one of them is missing, or is no object."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def text_at(value: Any, *names: str) -> str | None:
    """The text there; None for anything else."""
    entry = value_at(value, *names)
    return entry if isinstance(entry, str) else None


def number_at(value: Any, *names: str) -> float | None:
    """The finite number there; None for anything else."""
    entry = value_at(value, *names)
    if not isinstance(entry, int | float) or isinstance(entry, bool):
        return None
    try:
        number = float(entry)
    except OverflowError:  # a whole number may have any number of digits
        return None
    return number if math.isfinite(number) else None


def whole_at(value: Any, *names: str) -> int | None:
    """The whole number there; None for anything else."""
    entry = value_at(value, *names)
    return entry if isinstance(entry, int) and not isinstance(entry, bool) else None
