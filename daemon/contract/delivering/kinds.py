"""All kinds of delivery targets that are installed, ours and other packages', found by the entry points `ckptd.deliveries`.

Asked only where a target is configured, or where a person asks what there is. A declaration that can't be loaded is left out and named in
`problems`: it must never keep the daemon from starting.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
import re
import sys
from collections.abc import Mapping

from pydantic import BaseModel

from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.formats.entry_points import values_of
from daemon.contract.formats.mistakes import in_one_line
from daemon.contract.light import dataclass

GROUP = "ckptd.deliveries"
COMMON_KEYS = frozenset({
    "name", "kind", "runs", "policy", "steps", "variants", "bandwidth", "keep", "secret_file", "read_back", "share",
})  # fmt: skip
"""Keys that a table of any kind has, which no kind's own key may be called."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_KEY = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Kinds:
    """The kinds by their names."""

    by_name: Mapping[str, DeliveryKind]
    problems: tuple[str, ...] = ()
    """One sentence for each declaration that was left out."""


@functools.cache
def kinds() -> Kinds:
    """The kinds, found once in a process; where two have one name ours stays."""
    by_name, problems = dict[str, DeliveryKind](), list[str]()
    for place in sorted(values_of(GROUP), key=lambda place: (not place.startswith("handlers."), place)):
        try:
            with contextlib.redirect_stdout(sys.stderr):  # what it prints is no answer of `--json`
                declared = pkgutil.resolve_name(place)
            _check(declared, by_name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # another package's code, which may even call sys.exit
            problems.append(f"the kind of delivery {place} was left out: {in_one_line(error)}")
            continue
        by_name[declared.name] = declared
    return Kinds(dict(sorted(by_name.items())), tuple(problems))


def _check(declared: object, others: Mapping[str, DeliveryKind]) -> None:
    """Raise TypeError or ValueError for what is no declaration that fits the others."""
    if not isinstance(declared, DeliveryKind):
        raise TypeError(f"it is a {type(declared).__name__}, not a DeliveryKind")
    if not _NAME.fullmatch(declared.name):
        raise ValueError(f"its name {declared.name!r} is not of lower-case letters, digits, - and _")
    if declared.name in others:
        raise ValueError(f"there is another kind {declared.name!r}")
    if not _PLACE.fullmatch(declared.entry):
        raise ValueError(f"its entry {declared.entry!r} is not module:class")
    if not (isinstance(declared.options, type) and issubclass(declared.options, BaseModel)):
        raise TypeError("its options are no class of pydantic's models")
    for key in declared.options.model_fields:
        if key in COMMON_KEYS or not _KEY.fullmatch(key):
            raise ValueError(f"its key {key!r} is one of every target" if key in COMMON_KEYS else f"its key {key!r} is no key")
