"""Whether an artifact in integers holds any: a quantization that was left out gives right answers, so that no comparison shows it.

Called by the stages `check-VARIANT`. Of a transformers folder the types of its tensors say it; of other formats the size beside that of the
form that it was made of.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.declaration import Variant
from handlers.models.folder import ModelFolder
from handlers.validate.files import stray
from handlers.validate.folders.configs import FLOATS

FLOAT_LEVELS = (None, "fp16", "bf16")


def fault(variant: Variant, folder: Path, source: Path | None) -> str | None:
    """Say why nothing in a variant's folder is quantized, as a clause; None where something is, or where nothing should be. `source`: the
    folder of the form that it was made of, where there is one."""
    if variant.level in FLOAT_LEVELS:
        return None
    if any(folder.glob("*.safetensors")):
        stored = {tensor.dtype for tensor in ModelFolder(folder).headers.values()}
        types = ", ".join(sorted(FLOATS[name] for name in stored & FLOATS.keys()))
        return None if stored - FLOATS.keys() else f"its weights are not quantized: all of them are stored in {types}"
    if source is None or variant.form_of is None or (mine := _size(folder, variant.name)) < (theirs := _size(source, variant.form_of)):
        return None
    return (
        f"its weights are not quantized: its files of weights have {mine:,} bytes, and those of {variant.form_of}, its larger form,"
        f" {theirs:,}"
    )


def _size(folder: Path, variant: str) -> int:
    """Give the bytes of its weights and graphs."""
    patterns, files = catalog().files.get(variant, {}), [path for path in folder.rglob("*") if path.is_file()]
    names = {path: stray.pattern_of(path.relative_to(folder).as_posix(), patterns) for path in files}
    return sum(path.stat().st_size for path, pattern in names.items() if pattern and patterns[pattern] in ("weights", "graphs"))
