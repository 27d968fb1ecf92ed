"""Keys of earlier versions: what most of them say still counts, and log and `ckptd check` say once what takes their place.

Called while the configuration is loaded. No page lists these keys. The next major version refuses them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from daemon.config.sources import PREFIX, given_on_command_line
from daemon.contract.faults.secrets import name_shown

if TYPE_CHECKING:
    from daemon.config.layers import Files

RENAMED = {"validate.thresholds": "validate.limits"}
"""Key → its name now; what it may say is the same."""
OURS = (
    "watch.stale_seconds", "pin.copy_limit", "limits.stop_seconds", "limits.crashes", "limits.retry_seconds", "onnx.templates",
    "onnx.accuracy_level",
)  # fmt: skip
"""Keys that ask for a decision which only ckptd's own code can be a ground for: its default is what fits."""
WITHOUT_EFFECT = {"toolchains.installer": "pip installs the same packages"}
"""Key that only said how something is done → why it is not asked any more."""
HIDDEN = frozenset({*RENAMED, *OURS, *WITHOUT_EFFECT})


def notes(files: Files) -> tuple[str, ...]:
    """A sentence for each place that sets a key of an earlier version."""
    return tuple(
        f"{origin}: {key} {_instead(key)}" for key in (*RENAMED, *OURS, *WITHOUT_EFFECT) for origin in dict.fromkeys(_origins(key, files))
    )


def _instead(key: str) -> str:
    if key in RENAMED:
        return f"is the name of an earlier version, and still counts; write {RENAMED[key]} instead"
    if key in WITHOUT_EFFECT:
        return f"is no key of the configuration any more, and has no effect: {WITHOUT_EFFECT[key]}; leave it out"
    return "is no key of the configuration any more: ckptd has a value that fits; what you set still counts, but leave it out"


def _origins(key: str, files: Files) -> Iterator[str]:
    """What sets the key, or a key below it."""
    for path, values in files.each:
        inner: object = values
        for part in key.split("."):
            inner = inner.get(part) if isinstance(inner, dict) else None
        if inner is not None:
            yield str(path)
    variable = f"{PREFIX}{key.replace('.', '__')}".upper()
    for name in os.environ:
        if name.upper() == variable or name.upper().startswith(f"{variable}__"):
            yield f"{name_shown(name)} (environment)"
    for given in given_on_command_line:
        if given == key or given.startswith(f"{key}."):
            yield "--set (command line)"
