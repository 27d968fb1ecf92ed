"""Resume keys: the digest of everything that determines a stage's output.

Called by the runner before a stage starts. Two stages with the same key give the same output, so that a finished one need not be repeated
after a restart, an upgrade, a retry or a change of the configuration that does not touch it. The machine is part of it, of this box its
processor: libraries choose their kernels by it, so that sums differ in the last bit, choices by measurement may differ, and a check holds
for the processor that it ran on. State that is moved to another kind of machine is made again. Which machine a scheduler will choose nobody
knows, and the stages of one export may run on several: all of them count as alike, and as none of this box.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from daemon.contract import cpu
from daemon.contract.disk import data_files
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.plan import spec_of
from daemon.contract.values import digest_of
from daemon.journal.rows import JobRow, StageRow
from daemon.toolchains.registry import digest_for

RULES = 2
"""Raised where outputs under the keys of before may not be what their keys say: under 1, a base could change while a job ran."""
ELSEWHERE = "elsewhere"
"""In the place of a processor, for stages that a scheduler places."""
TEXTS = ("validation.prompts", "validation.data")
"""Settings that name files with texts."""


@functools.cache
def library_version(name: str) -> str:
    """Version of an installed distribution, "" where it is not installed; nothing is imported."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


_BESIDE = re.compile(r"\.|events\.out\.tfevents|.*\.(log|lock|out|err|pid|tmp)$")
"""Names of files in a model's folder that belong to no model: a trainer may still write them."""


def stamp(folder: Path | None) -> list[tuple[str, int, int]]:
    """Name, size and mtime in ns of every file of a model's folder: a base of 16 GB is not read to see that it is the same."""
    if folder is None:
        return []
    with os.scandir(folder) as entries:
        files = ((entry.name, entry.stat()) for entry in entries if entry.is_file() and not _BESIDE.match(entry.name))
        return sorted((name, status.st_size, status.st_mtime_ns) for name, status in files)


Stamp = Callable[[str], list[list[str | int]]]
"""What the files that a setting names are stamped with."""
Sources = dict[str, list[Any]]
"""Where each thing lies that stages are made of beside the checkpoint ("base", or a setting that names files) → its stamp."""


def texts_of(job: JobRow, stages: Iterable[str]) -> dict[str, str]:
    """Setting → its value, of the settings with texts that stages depend on and that name something."""
    names = {path for name in stages for path in TEXTS if path in spec_of(name).settings}
    return {path: value for path in sorted(names) if (value := job.work.setting(path))}


def sources_of(job: JobRow, stages: Iterable[str], stamp_of: Stamp = data_files.stamp) -> Sources:
    """Of a job's base, and of the files that settings of its `stages` name. Raises OSError where the base can't be looked at."""
    texts = {path: stamp_of(value) for path, value in texts_of(job, stages).items()}
    return {"base": stamp(job.base), **{path: stamps for path, stamps in texts.items() if stamps}}


def stage_key(
    spec: StageSpec, job: JobRow, inputs: Mapping[str, str | None], base: object, device: str, stamp_of: Stamp = data_files.stamp,
    machine: object = None,
) -> str:  # fmt: skip
    """The key of one stage. `inputs`: the key of each stage before it, None for one that gave no output; `base`: its stamp; `machine`:
    which makes it, None for this box."""
    return digest_of({
        "rules": RULES,
        "stage": spec.name,
        "version": spec.version,
        "checkpoint": job.checkpoint.digest,
        **({"mixture": job.checkpoint.mixture} if job.checkpoint.mixture else {}),
        "base": base,
        "settings": {path: job.work.setting(path) for path in spec.settings},
        "libraries": {name: library_version(name) for name in spec.libraries},
        "cpu": machine or cpu.here().key,
        **({"texts": texts} if (texts := _stamps_of_texts(spec, job, stamp_of)) else {}),
        **({"toolchain": digest_for(spec.toolchain)} if spec.toolchain else {}),
        "device": spec.device(device),
        "inputs": dict(inputs),
    })  # fmt: skip


def _stamps_of_texts(spec: StageSpec, job: JobRow, stamp_of: Stamp) -> dict[str, list[list[str | int]]]:
    """Setting → stamp of the files that it names, of the settings with texts that a stage depends on: files change under their names."""
    stamps = {path: stamp_of(job.work.setting(path)) for path in TEXTS if path in spec.settings}
    return {path: stamp for path, stamp in stamps.items() if stamp}


def keys_of(
    job: JobRow, stages: Mapping[str, StageRow], device: str, sources: Sources, machine_of: Callable[[StageSpec], object]
) -> dict[str, str]:
    """Stage → key, for the stages of a job as they stand. `sources`: of these stages; `machine_of`: which makes a stage's output."""
    texts = {job.work.setting(path): stamps for path, stamps in sources.items() if path in TEXTS}
    keys: dict[str, str] = {}
    for name in stages:
        spec = spec_of(name)
        before = [other for other in (*spec.needs, *spec.after) if other in stages]
        inputs = {other: keys.get(other) if stages[other].state not in ("failed", "skipped") else None for other in before}
        keys[name] = stage_key(spec, job, inputs, sources["base"], device, lambda files: texts.get(files, []), machine_of(spec))
    return keys
