"""Where a version's files lie in a repository: where the Hub's readers look for them. Pure.

transformers and vLLM read the top, transformers.js `onnx/`, optimum the folder that it is given, llama.cpp and Ollama any GGUF file at the
top by the quantization in its name (`hf.co/OWNER/NAME:Q4_K_M`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from handlers.deliver.version import first_that_fits

README = "README.md"
RECORD = "ckptd.json"
"""What ckptd brought, in each version: the only files that it replaces or takes away on `main` later."""
RESERVED = frozenset({README, RECORD, ".gitattributes"})
EXPORT_README = "EXPORT.md"
"""The export's own README.md, since a repository's is its model card."""


def top_variant(variants: Sequence[str], patterns: Sequence[str]) -> str | None:
    """The variant that lies at the top; an adapter only where nothing else fits."""
    whole = [name for name in variants if not name.endswith("-adapter")]
    return first_that_fits(patterns, whole) or first_that_fits(patterns, variants)


def placed(paths: Iterable[str], top: str | None, layout: str) -> dict[str, str]:
    """Path in the export → path in the repository, each of them once. `layout` as in the options."""
    chosen: dict[str, str] = {}
    taken = set(RESERVED)
    waiting = sorted(paths, key=lambda path: (path.split("/")[0] != top, path))
    for path in waiting:
        place = next(place for place in _places(path, top, layout) if place not in taken)
        taken.add(place)
        chosen[path] = place
    return chosen


def _places(path: str, top: str | None, layout: str) -> Iterable[str]:
    """Where it may lie, best first; the last is always free."""
    variant, _, inner = path.partition("/")
    if not inner:
        yield EXPORT_README if path == README else path
    elif layout == "ready":
        if variant == top:
            yield inner
        elif variant.startswith("gguf-") and inner.endswith(".gguf") and "/" not in inner and variant != "gguf-adapter":
            yield _named_by_quantization(inner, variant.removeprefix("gguf-"))
        elif variant.split("-")[0] == "web" and inner.startswith("onnx/"):
            yield inner
    yield path
    yield f"export/{path}"


def _named_by_quantization(name: str, quantization: str) -> str:
    """The name with the quantization in it, by which people ask for the file."""
    if quantization.lower() in name.lower() or name.startswith("mmproj"):
        return name
    return f"{PurePosixPath(name).stem}-{quantization.upper()}.gguf"
