"""The formats that are installed, less some: what happens where a target has none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from daemon.contract.formats import catalog
from daemon.contract.formats.declaration import Target


@contextlib.contextmanager
def nothing_for(target: Target) -> Iterator[None]:
    """While this runs, no format is installed that fits the target."""
    known = catalog.catalog()
    able = {one.name for one in known.formats if any(target in spec.targets | spec.also_for for spec in one.variants)}
    catalog.use([entry for entry, one in zip(known.entries, known.formats, strict=True) if one.name not in able])
    try:
        yield
    finally:
        catalog.use(known.entries)
