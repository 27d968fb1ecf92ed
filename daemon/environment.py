"""What this box can do: for `ckptd check` and `ckptd formats`. Looks at what is installed without importing it."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

from daemon.base import is_model
from daemon.errors import CkptdError
from daemon.paths import prepare
from daemon.resources import free_disk, human, memory
from daemon.scan import file_system_type, is_remote
from daemon.settings import Settings
from handlers.plan import STAGES

NEEDED = {
    "merge": ("torch", "safetensors", "peft", "transformers"),
    "pytorch": ("safetensors",),
    "onnx": ("torch", "transformers", "onnx", "onnxscript", "onnxruntime"),
    "onnx-int8": ("onnx", "onnxruntime"),
    "validate": ("torch", "transformers", "peft", "onnxruntime", "tokenizers"),
}
"""Stage → the distributions it imports."""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def formats_here() -> dict[str, Any]:
    """Every variant with whether it can be made here and which packages are missing."""
    rows = {}
    for spec in STAGES:
        if spec.artifact:
            missing = [name for name in (*NEEDED["merge"], *NEEDED.get(spec.name, ())) if _version(name) is None]
            rows[spec.name] = {"available": not missing, "missing": sorted(set(missing)), "about": spec.about}
    return {"variants": rows}


def examine(settings: Settings) -> dict[str, Any]:
    """Facts, problems (the daemon would not start or every export would fail) and warnings."""
    problems: list[str] = []
    warnings: list[str] = []
    try:
        prepare(settings.state_directory, settings.output.directory)
    except CkptdError as error:
        problems.append(str(error))
    here = formats_here()["variants"]
    problems += [
        f"export.variants: {name} needs the packages {', '.join(here[name]['missing'])}; install them or leave it out"
        for name in settings.variants if not here[name]["available"]
    ]  # fmt: skip
    if not settings.watch.roots:
        warnings.append("watch.roots is empty: `ckptd run` would refuse to start, `ckptd export` works")
    for root in settings.watch.roots:
        if not root.is_dir():
            warnings.append(f"the root {root} does not exist yet")
        elif not os.access(root, os.R_OK | os.X_OK):
            problems.append(f"watch.roots: {root} can't be read by this user; give it access")
        elif is_remote(file_system_type(root)) and settings.watch.backend == "inotify":
            warnings.append(f'the root {root} is a network file system, which gives no events; use watch.backend = "auto"')
    warnings += [f"base.map: {name!r} → {folder} holds no model now" for name, folder in settings.base.map.items() if not is_model(folder)]
    warnings += [f"base.search: {folder} does not exist" for folder in settings.base.search if not folder.is_dir()]
    cores = len(os.sched_getaffinity(0))
    if settings.limits.jobs * settings.limits.effective_threads > cores:
        better = max(1, cores // settings.limits.jobs)
        warnings.append(f"limits.jobs × limits.threads is more than the {cores} cores of this box; try limits.threads = {better}")
    total, available = memory()
    facts = {
        "roots": ", ".join(map(str, settings.watch.roots)) or "none",
        "output": f"{settings.output.directory} ({human(free_disk(settings.output.directory))} free)",
        "state": f"{settings.state_directory} ({human(free_disk(settings.state_directory))} free)",
        "variants": ", ".join(settings.variants),
        "memory": f"{human(available)} of {human(total)} free",
        "cores": f"{cores}, {settings.limits.effective_threads} for each child",
        **{name: _version(name) or "missing" for name in ("torch", "transformers", "peft", "onnx", "onnxruntime")},
    }
    return {"facts": facts, "problems": problems, "warnings": warnings}
