"""A model folder for transformers 4 inside a toolchain: the weights of another one, and a config.json that it can read.

What the names are: `handlers.models.releases.older_readers`, which published folders are written with too. Imports the standard
library and light modules of ours alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from handlers.models.releases.older_readers import UntranslatableError, older_names, translated

_WEIGHTS = (".safetensors", ".bin", ".index.json")


def readable_copy(source: Path, target: Path) -> Path:
    """A model folder at the new path `target` whose weights are links to those of `source`, with a translated config.json.

    Tokenizers stay behind: nothing reads them there. Raises UntranslatableError.
    """
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name.endswith(_WEIGHTS) or path.name == "generation_config.json":
            os.symlink(os.path.realpath(path), target / path.name)
    config = translated(json.loads((source / "config.json").read_text(encoding="utf-8")))
    (target / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return target


def check_read_back(wanted: dict[str, Any], get: Callable[[str], Any]) -> None:
    """Compare the config that the older library made of the translated one (`get` gives an attribute). Raises UntranslatableError."""
    for key, value in older_names(wanted).items() if wanted.get("rope_parameters") else ():
        read = get(key)
        if key != "rope_scaling" and read is not None and read != value:
            raise UntranslatableError(f"{key} was read as {read} and is {value}")
