"""What graphs.json says of the attention of a folder's graphs. Free of onnxruntime and onnx_ir: stages
that run in the Python of a toolchain read it.

`cached_attention`: roles of graphs in the standard's operators whose attention, in one operator, was shown to be equal and not slower.
`shared_cache`: roles of graphs that can be run with the past and the present of each layer in one buffer.
"""

from __future__ import annotations

from collections.abc import Iterable

from daemon.contract.values import Json

PROVED, SHARED = "cached_attention", "shared_cache"


def roles(extra: Json, key: str) -> tuple[str, ...]:
    """Return the roles that a GraphSet's `extra` lists under one of the two keys."""
    names = extra.get(key, ())
    return tuple(map(str, names)) if isinstance(names, list | tuple) else ()


def marked(extra: Json, *, proved: Iterable[str] = (), shared: Iterable[str] = ()) -> Json:
    """Return the same with these roles under the two keys, and no others; no key where there are none, as for graphs of another runtime."""
    rest = {name: value for name, value in extra.items() if name not in (PROVED, SHARED)}
    return rest | {key: listed for key, names in ((PROVED, proved), (SHARED, shared)) if (listed := list(names))}
