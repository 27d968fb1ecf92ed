"""What makes a declaration unusable by itself, whatever others there are.

Called by `daemon.contract.formats.catalog` for each that it finds. A declaration is another package's code: its types, names
and options are looked at once, here, so that nothing behind this border has to.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from daemon.contract.formats.declaration import Format, Thresholds, Variant
from daemon.contract.values import Frozen

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""Of formats, variants and engines: folders, keys of the configuration and parts of its dotted paths and variables."""
_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""Of sections and their keys, which are fields of a model and parts of the variables CKPTD_SECTION__KEY."""
_ENTRY = re.compile(r"[\w.]+:[\w.]+")
_FOLDERS = frozenset({"rejected"})
"""Folders of an export that are no variant's."""
_MOST = 1e6
"""Bytes a byte of weights: beyond it no estimate is meant."""


def defects(declared: Format) -> Iterator[str]:
    """Sentences, none where it can be used. The first may be what the others follow from. Raises nothing."""
    try:
        _types().validate_python([declared])
    except ValidationError as error:
        problem = error.errors()[0]
        yield f"{'.'.join(map(str, problem['loc'][1:]))}: {problem['msg'][:1].lower()}{problem['msg'][1:]}"
        return
    for kind, name in (("format", declared.name), *(("engine", name) for name in declared.engines)):
        if not _NAME.fullmatch(name):
            yield f"no {kind} can be called {name!r}: small letters, digits, - and _ alone"
    for path in (path for kinds in declared.engines.values() for path in kinds.values()):
        if not _ENTRY.fullmatch(path):
            yield f"{path!r} is no module:class"
    for one in declared.variants:
        yield from _of_variant(one)
    if declared.options is not None:
        yield from _of_options(declared.section, declared.options)
    elif declared.section:
        yield f"it has a section [{declared.section}] and no options"


@functools.cache
def _types() -> TypeAdapter[list[Format]]:
    """What the annotations of a declaration say, down to its limits."""
    return TypeAdapter(list[Format], config=ConfigDict(strict=True, revalidate_instances="always", allow_inf_nan=False))


def _of_variant(one: Variant) -> Iterator[str]:
    if not _NAME.fullmatch(one.name) or one.name in _FOLDERS:
        yield f"no variant can be called {one.name!r}: small letters, digits, - and _ alone, and none of {', '.join(sorted(_FOLDERS))}"
    if not _ENTRY.fullmatch(one.entry):
        yield f"{one.name}: its entry {one.entry!r} is no module:function"
    if not one.artifact or one.checks or one.alone:
        yield f"{one.name}: artifact, checks and alone are for the stages of ckptd itself"
    if not isinstance(one.thresholds, Thresholds):
        yield f"{one.name}: its thresholds are a {type(one.thresholds).__name__} and no Thresholds"
    if one.name in (one.form_of, one.fallback):
        yield f"{one.name}: it can't be a form of itself, nor be taken where it is not exact enough itself"
    if one.level and not one.form_of:
        yield f"{one.name}: it has a level, and says not what it is a smaller form of"
    limits = one.limits
    sizes = (one.threads, one.memory_fixed, one.disk_fixed, limits.memory_fixed, limits.cache, limits.padding, limits.noise_share)
    if min(*sizes, limits.merged or 0) < 0:
        yield f"{one.name}: a size, a number of threads or a limit is negative"
    if not all(0 <= factor <= _MOST for factor in (one.memory_fp32, one.disk_stored, one.disk_fp32, limits.memory_fp32)):
        yield f"{one.name}: a factor of its memory or disk is negative, or more than {_MOST:.0e}"


def _of_options(section: str, options: type[Frozen]) -> Iterator[str]:
    """Options are written into job files and the journal, read back by other processes, and part of digests."""
    if not _KEY.fullmatch(section) or hasattr(BaseModel, section):
        yield f"its section can't be called {section!r}"
    if odd := [name for name in options.model_fields if not _KEY.fullmatch(name)]:
        yield f"[{section}]: no key can be called {odd[0]!r}: small letters, digits and _ alone"
    try:
        schema = json.dumps(options.model_json_schema())
        default = options()
        same = options.model_validate_json(default.model_dump_json()) == default
    except Exception as error:  # another package's code
        yield f"[{section}]: its defaults can't be used: {said(error)}"
        return
    if not same:
        yield f"[{section}]: its defaults are others once they were written and read: each must be of its key's type, and as JSON has it"
    if '"writeOnly": true' in schema:
        yield f"[{section}]: it has a secret, and what is secret can't stand in a job file; name the variable or the file that holds it"
    if '"uniqueItems": true' in schema:
        yield f"[{section}]: it has a set, whose order is another in every process; take a tuple"


def said(error: BaseException) -> str:
    """Kind and message of another package's error, as one line of a bounded length."""
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = ""
    return f"{type(error).__name__}: {message[:300] or 'no message'}"
