"""What is wrong with one declaration taken by itself, each as a sentence for whoever writes it.

`daemon.contract.formats.catalog` leaves out a format with a mistake, so that nothing else has to expect one: a key of `settings` that does
not exist would otherwise stop every export, and an option without a default every command. Nothing of the format is imported here.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from daemon.contract.formats.declaration import Format, Kind, Limits, Variant

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
KINDS: tuple[str, ...] = get_args(Kind)
"""The kinds of models that engines are declared for."""
OPTION_SECTIONS = ("export", "merge", "validation")
"""Sections of a job's configuration beside those of the formats (`daemon.contract.jobs.options.Work`)."""


def near(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that proposes the known name which is most like `name`; "" where none is."""
    match = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {match[0]!r}?" if match else ""


def in_one_line(error: Exception) -> str:
    """An error while a declaration was read, as the end of a sentence. What pydantic says on several lines becomes one."""
    if isinstance(error, ValidationError):
        said = (f"{'.'.join(map(str, item['loc']))} can't be {_short(item['input'])} ({item['msg']})" for item in error.errors())
        return f"{error.title}: {'; '.join(said)}"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def mistakes(declared: Format) -> Iterator[str]:
    """Each thing that is wrong with a declaration. Where a field has a wrong type nothing that reads it is looked at."""
    wrong = list(_wrong_types(declared, "its "))
    yield from wrong
    if wrong:
        return
    if not declared.variants:
        yield "it has no variants"
    yield from _options(declared)
    for engine, kinds in declared.engines.items():
        if not kinds:
            yield f"its engine {engine} takes no kind of model; name one of {', '.join(KINDS)}"
        for kind, place in kinds.items():
            if kind not in KINDS:
                yield f"its engine {engine} takes models of the kind {kind!r}; it is one of {', '.join(KINDS)}"
            if not _PLACE.fullmatch(place):
                yield f"its engine {engine} is {place!r}; write module:class"
    for variant in declared.variants:
        wrong = list(_wrong_types(variant, f"{variant.name}: ")) or list(_wrong_types(variant.limits, f"{variant.name}: limits."))
        yield from wrong or _variant(variant)


def unknown_settings(declared: Format, everyone: Iterable[Format]) -> Iterator[str]:
    """Each key in `settings` of a variant that no section has; of ckptd's own sections only the section is looked at."""
    sections = {one.section: one.options.model_fields for one in everyone if one.options is not None}
    for variant in declared.variants:
        for path in variant.settings:
            section, _, key = path.partition(".")
            if section not in sections and section not in OPTION_SECTIONS:
                known = (*OPTION_SECTIONS, *sections)
                yield f"{variant.name}: settings names the section {section!r}, which nobody has{near(section, known)}"
            elif key and section in sections and key not in sections[section]:
                yield f"{variant.name}: settings names the key {path!r}, which [{section}] has not{near(key, sections[section])}"


def _options(declared: Format) -> Iterator[str]:
    if declared.options is None:
        if declared.section:
            yield f"it has a section {declared.section!r} and no options; give both or none"
        return
    if not declared.section:
        yield "it has options and no section; give the section of the configuration that they are read from"
    if lacking := [name for name, field in declared.options.model_fields.items() if field.is_required()]:
        yield f"its option {lacking[0]} has no default; give every option one, so that ckptd works without a configuration"
        return
    try:
        declared.options.model_validate(declared.options().model_dump())
    except Exception as error:  # another package's code
        yield f"the defaults of its options are not valid: {in_one_line(error)}"


def _variant(variant: Variant) -> Iterator[str]:
    if not _NAME.fullmatch(variant.name):
        yield f"a variant is called {variant.name!r}; its name is a folder's: take letters, digits and . _ -"
    if not _PLACE.fullmatch(variant.entry):
        yield f"{variant.name}: entry is {variant.entry!r}; write module:function"
    if variant.level and not variant.form_of:
        yield f"{variant.name}: level is given without form_of; name the variant that it is a smaller form of"
    if variant.fallback == variant.name or variant.form_of == variant.name:
        yield f"{variant.name}: it is named as its own fallback or form_of; name another variant"
    if variant.usage is not None and not variant.usage.is_file():
        yield f"{variant.name}: usage is {variant.usage}, where there is no file; add it to the package (package-data of setuptools)"
    for name, count in Counter(variant.needs).items():
        if count > 1:
            yield f"{variant.name}: needs names {name} more than once"


def _wrong_types(value: Format | Variant | Limits, where: str) -> Iterator[str]:
    """One sentence for each field that does not have the type which its class says."""
    for name, hint in _hints(next(kind for kind in (Format, Variant, Limits) if isinstance(value, kind))).items():
        if misfit := _misfit(getattr(value, name), hint):
            yield f"{where}{name} {misfit}"


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _misfit(value: Any, hint: Any) -> str | None:
    """Why a value is not of a type, as the end of a sentence; None where it is."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):  # a union with a Literal is the former
        misfits = [_misfit(value, one) for one in inner]
        return None if None in misfits else misfits[0]
    if origin is Literal:
        known = ", ".join(map(repr, inner))
        return None if value in inner else f"can't be {_short(value)}; it is one of {known}{near(str(value), inner)}"
    if origin is tuple:
        return _misfit_of_all(value, inner[0]) if isinstance(value, tuple) else f"is {_short(value)}; write a tuple, (…,) with its comma"
    if origin is frozenset:
        return _misfit_of_all(value, inner[0]) if isinstance(value, frozenset) else f"is {_short(value)}; write frozenset({{…}})"
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return f"is {_short(value)}; write a dict"
        return _misfit_of_all(value, inner[0]) or _misfit_of_all(value.values(), inner[1])
    if origin is type:
        fits = isinstance(value, type) and issubclass(value, inner[0])
        return None if fits else f"is {_short(value)}; it must be a subclass of {inner[0].__name__}"
    fits = isinstance(value, (int, float) if hint is float else hint) and (hint is bool or not isinstance(value, bool))
    return None if fits else f"can't be {_short(value)}; write a value of the type {hint.__name__}"


def _misfit_of_all(values: Iterable[Any], hint: Any) -> str | None:
    return next((misfit for one in values if (misfit := _misfit(one, hint))), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
