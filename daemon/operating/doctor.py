"""What this box can do: for `ckptd check` and `ckptd formats`. Looks at what is installed without importing it."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Any

from daemon.checkpoints.base_models import is_model
from daemon.config.paths import not_writable
from daemon.config.settings import Settings
from daemon.contract import cpu
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.plan import all_specs, check_of, spec_of
from daemon.system.box import free_disk, human, memory
from daemon.system.mounts import file_system_type, is_remote
from daemon.toolchains.registry import Toolchains, describe


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def formats_here(state: Path) -> dict[str, Any]:
    """Every variant with whether it can be made and checked here, and what is missing with what brings it; every toolchain likewise; the
    processor, and what a check on it leaves open."""
    chains, rows, here = Toolchains(state), {}, cpu.here()
    for spec in all_specs():
        if spec.artifact:
            missing = sorted({name for name in (*spec_of("merge").libraries, *spec.libraries) if _version(name) is None})
            lacking = chains.lacking(spec.toolchain, f"make {spec.name}")
            check = check_of(spec.name)
            unchecked = chains.lacking(check.toolchain, f"check {spec.name}") if check else None
            rows[spec.name] = {
                "available": not missing and lacking is None, "missing": missing, "about": spec.about, "toolchain": spec.toolchain or None,
                "lacks": missing + ([f"the toolchain {spec.toolchain}"] if lacking else []),
                "needs": ([f"the packages {', '.join(missing)}; install them"] if missing else [])
                + ([f"the toolchain {spec.toolchain}, which is {chains.state(spec.toolchain)}; {lacking.remedy}"] if lacking else []),
                "check_needs": [f"{unchecked.cause}; {unchecked.remedy}"] if unchecked else [],
            }  # fmt: skip
    return {
        "variants": rows,
        "problems": list(catalog().problems),
        **describe(chains),
        "processor": {**here.facts, "not_run": list(cpu.not_run_on(here)), "doubts": _doubts(here)},
    }


def _doubts(here: cpu.Cpu) -> dict[str, str]:
    """Variant → what a check on this box's processor can't say about other ones."""
    return {spec.name: found for spec in all_specs() if spec.artifact and (found := cpu.doubt(spec.arithmetic, here))}


def _unwritable(key: str, folder: Path) -> list[str]:
    """The problem with a folder that could not be made or written to; nothing is made to find out."""
    there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    if not there.is_dir():
        cause = f"{there} is not a directory"
    elif not os.access(there, os.W_OK | os.X_OK):
        cause = f"{there} can't be written by this user"
    else:
        return []
    return [str(not_writable(key, folder, cause))]


def examine(settings: Settings) -> dict[str, Any]:
    """Facts, problems (the daemon would not start or every export would fail) and warnings."""
    problems: list[str] = []
    warnings: list[str] = []
    for key, folder in (("state.directory", settings.state_directory), ("output.directory", settings.output.directory)):
        problems += _unwritable(key, folder)
    here = formats_here(settings.state_directory)
    problems += [
        f"export.variants: {name} needs {need}, or leave it out" for name in settings.variants for need in here["variants"][name]["needs"]
    ]
    warnings += [
        f"export.variants: {name} can't be checked here and would be published unverified: {need}"
        for name in settings.variants for need in here["variants"][name]["check_needs"]
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
    warnings += catalog().problems
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
        "toolchains": "; ".join(
            f"{name} is {row['state']}" + ("" if row["installed"] else f" (`{row['command']}`)") for name, row in here["toolchains"].items()
        ),
        "memory": f"{human(available)} of {human(total)} free",
        "cores": f"{cores}, {settings.limits.effective_threads} for each child",
        **{name: _version(name) or "missing" for name in ("torch", "transformers", "peft", "onnx", "onnxruntime")},
    }
    return {"facts": facts, "problems": problems, "warnings": warnings}
