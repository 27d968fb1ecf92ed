"""What graphs.json says of the attention of a folder's graphs. Free of onnxruntime.

`cached_attention`: roles of graphs in the standard's operators whose attention, in one operator, was shown to be equal and not slower.
`shared_cache`: roles of graphs that can be run with the past and the present of each layer in one buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from daemon.contract.values import Json
from handlers.onnx.attention.fusing import shares_buffers

PROVED, SHARED = "cached_attention", "shared_cache"


def roles(extra: Json, key: str) -> tuple[str, ...]:
    """The roles that a GraphSet's `extra` lists under one of the two keys."""
    found = extra.get(key, ())
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


def with_roles(extra: Json, key: str, names: Iterable[str]) -> Json:
    """The same with other roles under a key; none leave no key."""
    rest, found = {name: value for name, value in extra.items() if name != key}, list(names)
    return {**rest, key: found} if found else rest


def unmarked(extra: Json) -> Json:
    """The same without both, for graphs of another runtime."""
    return {name: value for name, value in extra.items() if name not in (PROVED, SHARED)}


def sharing(models: Mapping[str, ir.Model]) -> list[str]:
    """Of graphs by role, the roles of those that can be run with one buffer for past and present."""
    return [role for role, model in models.items() if shares_buffers(model)]
