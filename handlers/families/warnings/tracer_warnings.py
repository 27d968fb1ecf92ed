"""What the TorchScript tracer's warnings mean: which branch it fixed, and whether the graph's check tried the other side of it.

Called by the onnx stage with the warnings that `handlers.families.warnings.library_warnings` collected. A table classifies a warning by the
place where it was raised; the check that every graph goes through feeds the shapes at which such branches turn, so a wrong graph has failed
before anything is judged here. Free of torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

CATEGORY = "TracerWarning"
_CONSTANT = "results are registered as constants"
"""The tracer's message for a tensor that is built from numbers: not a branch, but wrong if the numbers depend on the input."""


class BakedBranchError(Exception):
    """The tracer fixed a branch whose other side could not be tried."""


@dataclass(frozen=True)
class Origin:
    """Where the tracer warned."""

    file: str
    """Name of the source file, without its folder."""
    function: str
    """The innermost function around the line; "" outside of any."""
    constant: bool = False
    """Whether a value was fixed there, not a branch."""

    def __str__(self) -> str:
        return f"{self.file}, {self.function}" if self.function else self.file


@dataclass(frozen=True)
class WarningRule:
    """What a warning of that origin means."""

    file: str
    function: str
    """Regular expressions that match the whole name."""
    about: str
    """What the code there decides or computes."""
    turns: str
    """When the other side of the branch would be taken."""
    lengths: bool = False
    """Whether the other side may be taken at a length that the check could not try."""


RULES: tuple[WarningRule, ...] = (
    WarningRule(r"cache_utils\.py", r"get_seq_length|get_mask_sizes|is_initialized", "whether the cache is empty", "with an empty past"),
    WarningRule(r"cache_utils\.py", r".*", "a part of the cache", "with an empty or a long past"),
    WarningRule(r"masking_utils\.py", r"prepare_padding_mask", "whether the mask is too short", "with a mask shorter than all tokens"),
    WarningRule(r"masking_utils\.py", r"_ignore_\w+|fast_all", "whether the mask can be left out", "with padding, or a single token"),
    WarningRule(r"masking_utils\.py", r".*", "a part of the mask", "with padding, or a single token"),
    WarningRule(r"sdpa_attention\.py|eager_attention\.py", r".*", "how attention is called", "for a single token, or one row"),
    WarningRule(r"modeling_rope_utils\.py", r".*", "which frequencies a rotary embedding uses", "beyond its original length", lengths=True),
    WarningRule(r"moe\.py", r".*", "how tokens are sent to experts", "for other tokens"),
    WarningRule(r"modeling_\w+\.py", r".*", "something of the architecture's own", "for other lengths", lengths=True),
)  # fmt: skip
"""The first row that matches counts."""

_ELSE = WarningRule(".*", ".*", "something unknown", "for other shapes", lengths=True)


@lru_cache(maxsize=64)
def _functions(path: str) -> tuple[tuple[int, int, str], ...]:
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return tuple((node.lineno, node.end_lineno or node.lineno, node.name) for node in ast.walk(tree) if isinstance(node, kinds))


def origin(path: str, line: int, message: str = "") -> Origin:
    """Return the place of a warning, by the function that holds the line."""
    around = [(start, name) for start, end, name in _functions(path) if start <= line <= end]
    return Origin(Path(path).name, max(around)[1] if around else "", _CONSTANT in message)


def rule(place: Origin) -> WarningRule:
    """Return what a warning from there means."""
    matching = (row for row in RULES if re.fullmatch(row.file, place.file) and re.fullmatch(row.function, place.function))
    return next(matching, _ELSE)


def judge(places: Iterable[Origin], tested: str, untested: str) -> list[str]:
    """One line for each place at which the tracer fixed something, of a graph that agrees with torch on all that was tested.

    `tested`, `untested`: what the check fed, and what it could not, in words. Raises BakedBranchError for a branch that may turn there.
    """
    lines = []
    for place in dict.fromkeys(places):
        meaning = rule(place)
        if place.constant:
            lines.append(
                f"The tracer warned about {place}: it made a value constant there. This is harmless: the graph was tested on {tested}."
            )
            continue
        if meaning.lengths and untested:
            raise BakedBranchError(
                f"{place}: the tracer made this constant: {meaning.about}. It may change {untested}, and that was not tested"
            )
        what = f"it made this constant: {meaning.about}. It would change {meaning.turns}"
        lines.append(f"The tracer warned about {place}: {what}. This is harmless: the graph was tested on {tested}.")
    return lines


def summary(lines: Sequence[str], limit: int) -> list[str]:
    """At most `limit` lines; a last one counts the rest."""
    return list(lines) if len(lines) <= limit else [*lines[:limit], f"{len(lines) - limit} more such places are in the attempt's log"]
