"""Whether the code that a format's declaration names is there: found and parsed, never imported, since it loads heavy libraries."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.declaration import Variant
from daemon.contract.formats.mistakes import near


def flaws(variant: Variant) -> Iterator[str]:
    """Each thing that keeps a variant from being made or checked and that only its package can put right."""
    if said := _missing(variant.entry):
        yield f"its entry {variant.entry} is wrong: {said}"
    for kind, place in catalog().engines.get(variant.limits.engine, {}).items():
        if said := _missing(place):
            yield f"its engine {variant.limits.engine} ({kind}) is wrong: {said}"


def _missing(place: str) -> str | None:
    """Why nothing is at `module:name`; None where it is, or where that can't be told without an import."""
    module, _, name = place.partition(":")
    try:
        spec = _spec(module)
    except (ImportError, ValueError, AttributeError) as error:
        return f"the search for the module {module} failed ({error})"
    if spec is None:
        return f"there is no module {module}"
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        state = os.stat(spec.origin)
        names = _names_in(spec.origin, state.st_mtime_ns, state.st_size)
    except (OSError, SyntaxError, ValueError) as error:
        return f"the module {module} can't be read ({error})"
    return None if name in names or names & {"*", "__getattr__"} else f"the module {module} has no {name}{near(name, names)}"


def _spec(module: str) -> importlib.machinery.ModuleSpec | None:
    """The spec of a module; the packages around it are not imported either."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    return spec


@functools.lru_cache(1024)
def _names_in(file: str, written: int, size: int) -> frozenset[str]:
    """The names that a file as it is now may define: most files serve several variants. Raises OSError, SyntaxError, ValueError."""
    return frozenset(_names(ast.parse(Path(file).read_bytes(), file)))


def _names(tree: ast.Module) -> Iterator[str]:
    """The names that a module's own code may define, in whatever block they stand; "*" for an import of all."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
