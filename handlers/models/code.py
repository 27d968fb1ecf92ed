"""The Python files of a model with code of its own: copied when trusted, and never executed.

Called by the stages that write a model folder. Whoever loads that folder with `trust_remote_code` runs these files, so that they
come along only where the configuration says so.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.models.files import read_json

MAX_FILE = 4 << 20
"""Bytes of one Python file."""
MAX_FILES = 200
NAMING = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""Files whose auto_map may name classes of the folder's own code."""


def _wants_code(config: Any) -> bool:
    """Return whether a configuration names classes of its own folder: "module.Class", and not "owner/model--module.Class"."""
    named = config.get("auto_map") if isinstance(config, dict) else None
    values = named.values() if isinstance(named, dict) else ()
    flat = [name for value in values for name in (value if isinstance(value, (list, tuple)) else [value])]
    return any(isinstance(name, str) and "--" not in name for name in flat)


def copy_code(source: Path, target: Path, *, trusted: bool) -> list[str]:
    """Copy the Python files at the top of `source` into `target` if they are `trusted`; gives warnings about what was left out.

    A folder whose model, tokenizer and processor have no code of their own gives none, and none of its Python files is taken. Permanent
    when the files are more, or larger, than a model's code can be.
    """
    present = (name for name in NAMING if (source / name).is_file())
    naming = next((name for name in present if _wants_code(read_json(source / name, "read the model's configuration"))), None)
    if naming is None:
        return []
    files = sorted(path for path in source.glob("*.py") if path.is_file())
    if not files:
        return [f"{naming} names code of its own (auto_map), but there is no Python file in {source}"]
    if not trusted:
        return [f"the model has code of its own ({files[0].name}…), which was not copied: set merge.trust_remote_code to copy it"]
    if len(files) > MAX_FILES or any(path.stat().st_size > MAX_FILE for path in files):
        raise Permanent(
            FaultCode.TOO_MUCH_CODE,
            "copy the model's own code",
            f"there are {len(files)} Python files, some perhaps of more than {MAX_FILE >> 20} MiB",
            "leave only the model's own modules in its folder, or set merge.trust_remote_code to false",
            path=source,
        )
    for path in files:
        shutil.copyfile(path, target / path.name)
    return []
