"""What is wrong with one declaration taken by itself, each as a sentence for whoever writes it.

`daemon.contract.formats.catalog` leaves out a format with a mistake. A declaration is another package's code: its types, names and options
are looked at once, here, so that nothing behind this border has to expect a mistake. Nothing that it names is imported here.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from daemon.contract.formats.declaration import Format, Kind, Variant
from daemon.contract.formats.stages import StageSpec
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.values import Frozen

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""Of formats, variants and engines: folders, keys of the configuration and parts of its dotted paths and variables."""
_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""Of sections and their keys, which are fields of a model and parts of the variables CKPTD_SECTION__KEY."""
_PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_FOLDERS = ("rejected", "answers")
"""Folders of an export that are no variant's."""
_LARGEST_FACTOR = 1e6
"""Bytes a byte of weights: beyond it no estimate is meant."""
_WHAT_TO_WRITE = {"tuple_type": "write a tuple, (…,) with its comma", "frozen_set_type": "write frozenset({…})"}
KINDS: tuple[str, ...] = get_args(Kind)
"""The kinds of models that engines are declared for."""


def alike(name: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """The known name that is most like `name`, `least` so (0 to 1); None where none is."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=least)), None)


def near(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that proposes the known name which is most like `name`; "" where none is."""
    match = alike(name, known)
    return f"; did you mean {match!r}?" if match else ""


def in_one_line(error: BaseException) -> str:
    """An error of another package's code, as the end of a sentence: one line of a bounded length."""
    if isinstance(error, ValidationError):
        said = (f"{'.'.join(map(str, item['loc']))} can't be {_short(item['input'])} ({item['msg']})" for item in error.errors())
        return f"{error.title}: {'; '.join(said)}"
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = ""
    return f"{type(error).__name__}: {message[:300] or 'no message'}"


def mistakes(declared: Format) -> Iterator[str]:
    """Each thing that is wrong with a declaration; of wrong types the first alone, since the rest may follow from it. Raises nothing."""
    if wrong := _wrong_type(declared):
        yield wrong
        return
    if not (declared.variants or declared.stages):
        yield "it has no variants"
    for kind, name in (("format", declared.name), *(("engine", name) for name in declared.engines)):
        if not _NAME.fullmatch(name):
            yield f"the name of a {kind} can't be {name!r}: use only small letters, digits, - and _"
    yield from _options(declared)
    for engine, kinds in declared.engines.items():
        if not kinds:
            yield f"its engine {engine} supports no kind of model; name one of {', '.join(KINDS)}"
        for kind, place in kinds.items():
            if kind not in KINDS:
                yield f"its engine {engine} supports models of the kind {kind!r}, which does not exist; use one of {', '.join(KINDS)}"
            if not _PLACE.fullmatch(place):
                yield f"its engine {engine} is {place!r}; write module:class"
    if declared.notes is not None and not declared.notes.is_file():
        yield f"its notes are {declared.notes}, which does not exist; add this file to the package (package-data of setuptools)"
    for stage in declared.stages:
        yield from _stage(stage)
        if stage.artifact:
            yield f"{stage.name}: artifact is for variants alone; declare it among them if it is to be published"
    for variant in declared.variants:
        yield from _variant(variant)


def _wrong_type(declared: Format) -> str | None:
    """Why a field does not have the type that its class says, down to the limits of its variants; None where all have."""
    try:
        _types().validate_python([declared])
    except ValidationError as error:
        problem = error.errors()[0]
        hint = _WHAT_TO_WRITE.get(problem["type"]) or f"{problem['msg'][:1].lower()}{problem['msg'][1:]}"
        if problem["type"] == "literal_error":
            hint = f"it is one of {problem['ctx']['expected']}"
        return _said(_field(declared, problem["loc"][1:]), problem["input"], hint)
    options = declared.options_class
    if options is not None and not (isinstance(options, type) and issubclass(options, Frozen)):
        return _said(_field(declared, ("options",)), options, "daemon.contract.values.Frozen")
    return None


def _said(field: str, value: Any, hint: str) -> str:
    return f"{field} can't be {_short(value)}; {hint}"


def _field(declared: Format, place: Sequence[int | str]) -> str:
    """The name of a field, after that of its variant; of what lies in a tuple or a set, the field's."""
    if place[:1] in (("variants",), ("stages",)) and len(place) > 1 and isinstance(place[1], int):
        spec = getattr(declared, str(place[0]))[place[1]]
        name, place = getattr(spec, "name", f"{str(place[0])[:-1]} {place[1] + 1}"), place[2:]
        return f"{name}: {_dotted(place) or 'it'}"
    return f"its {_dotted(place) or 'declaration'}"


def _dotted(place: Sequence[int | str]) -> str:
    return ".".join(part for part in place if isinstance(part, str))


@functools.cache
def _types() -> TypeAdapter[list[Format]]:
    """What the annotations of a declaration say."""
    return TypeAdapter(list[Format], config=ConfigDict(strict=True, revalidate_instances="always", allow_inf_nan=False))


def _options(declared: Format) -> Iterator[str]:
    """Options are written into job files and the journal, read back by other processes, and part of digests."""
    section, options = declared.section, declared.options_class
    if options is None:
        if section:
            yield f"it has a section {section!r} but no options; give both or neither"
        return
    if not section:
        yield "it has options but no section; give the section of the configuration from which they are read"
    elif not _KEY.fullmatch(section) or hasattr(BaseModel, section):
        yield f"its section can't be named {section!r}"
    if odd := [name for name in options.model_fields if not _KEY.fullmatch(name)]:
        yield f"[{section}]: the name of a key can't be {odd[0]!r}: use only small letters, digits and _"
    if lacking := [name for name, field in options.model_fields.items() if field.is_required()]:
        yield f"[{section}]: its option {lacking[0]} has no default; give every option one, so that ckptd works without a configuration"
        return
    yield from _defaults(section, options)


def _defaults(section: str, options: type[Frozen]) -> Iterator[str]:
    try:
        schema = json.dumps(options.model_json_schema())
        default = options()
        same = options.model_validate_json(default.model_dump_json()) == default
    except Exception as error:  # another package's code
        yield f"[{section}]: the defaults of its options can't be used: {in_one_line(error)}"
        return
    if not same:
        yield f"[{section}]: its defaults change when they are written and read back: each must have its key's type, in the form of JSON"
    if '"writeOnly": true' in schema:
        yield f"[{section}]: it has a secret, but a job file must hold no secrets; give the name of the variable or file that holds it"
    if '"uniqueItems": true' in schema:
        yield f"[{section}]: it has a set, whose order differs in every process; use a tuple"


def _stage(stage: StageSpec) -> Iterator[str]:
    """What is wrong with a stage, published or not."""
    if not _NAME.fullmatch(stage.name) or stage.name in _FOLDERS:
        yield (
            f"the name of a variant can't be {stage.name!r}; it is the name of a folder: use only small letters, digits, - and _, and none"
            f" of {', '.join(_FOLDERS)}"
        )
    if not _PLACE.fullmatch(stage.entry):
        yield f"{stage.name}: entry is {stage.entry!r}; write module:function"
    if stage.checks or stage.alone:
        yield f"{stage.name}: artifact, checks and alone are only for ckptd's own stages"
    if stage.kv_cache not in ("", "always", *stage.settings):
        yield f'{stage.name}: kv_cache is {stage.kv_cache!r}; write "always" or a key of its settings'
    for name, count in Counter(stage.needs).items():
        if count > 1:
            yield f"{stage.name}: needs names {name} more than once"
    if min(stage.threads, stage.memory_fixed, stage.disk_fixed) < 0:
        yield f"{stage.name}: a size or a number of threads is negative"
    if not all(0 <= factor <= _LARGEST_FACTOR for factor in (stage.memory_fp32, stage.disk_stored, stage.disk_fp32)):
        yield f"{stage.name}: a factor of its memory or disk is negative, or more than {_LARGEST_FACTOR:.0e}"


def _variant(variant: Variant) -> Iterator[str]:
    yield from _stage(variant)
    if not variant.artifact:
        yield f"{variant.name}: artifact, checks and alone are only for ckptd's own stages"
    if not isinstance(variant.thresholds, Thresholds):
        yield f"{variant.name}: its thresholds are a {type(variant.thresholds).__name__}, not a Thresholds"
    if variant.level and not variant.form_of:
        yield f"{variant.name}: level is given without form_of; name the variant that it is a smaller form of"
    if variant.name in (variant.form_of, variant.fallback):
        yield f"{variant.name}: it is its own fallback or form_of; name another variant"
    if variant.usage is not None and not variant.usage.is_file():
        yield f"{variant.name}: usage is {variant.usage}, which does not exist; add this file to the package (package-data of setuptools)"
    limits = variant.limits
    if limits.twin and not _PLACE.fullmatch(limits.twin):
        yield f"{variant.name}: limits.twin is {limits.twin!r}; write module:class"
    if min(limits.memory_fixed, limits.cache, limits.padding, limits.noise_share, limits.merged or 0) < 0:
        yield f"{variant.name}: a limit of its check is negative"
    if not all(0 <= factor <= _LARGEST_FACTOR for factor in (limits.memory_fp32, limits.disk_fp32)):
        yield f"{variant.name}: the factor of its check's memory is negative, or more than {_LARGEST_FACTOR:.0e}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # another package's code
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}…"
