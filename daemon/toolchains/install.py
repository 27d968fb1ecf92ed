"""Installs, checks and removes toolchains: they are built under another name and renamed when complete.

Called by `ckptd toolchain`, and by `daemon.toolchains.unattended`. Whatever ends it, kill -9 included, nothing half is ever taken for
installed: what was left is swept by the next install or removal, an install goes on with the wheels that were fetched, and the lock goes
with the last process that installs. One install of a toolchain at a time; one in which a process runs is neither removed nor replaced.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from daemon.config.places.paths import StatePaths
from daemon.contract import units
from daemon.contract.disk import failpoints
from daemon.contract.disk.files import files_below, fsync_directory, make_folders, remove_tree
from daemon.contract.faults.errors import FULL_DISK, CkptdError, Permanent, Retryable, UsageError, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.system.box import free_disk
from daemon.toolchains import records
from daemon.toolchains.build import make, packages, probe
from daemon.toolchains.installers.attempt import Build, Say
from daemon.toolchains.installers.downloads import of as downloads_of
from daemon.toolchains.installers.downloads import size_of
from daemon.toolchains.registry import DAMAGED, IN_USE, OFFERED, Definition, Installed, Toolchains

SWEEPS = 10


def install(chains: Toolchains, name: str, say: Say, *, reserve: int = 0, again: bool = False) -> Installed:
    """Install a toolchain, or (`again`) make it anew; one that is there and sound is given as it is.

    `say` is told of every step; `reserve` bytes of the disk are left alone. Raises CkptdError with what to do.
    """
    definition = chains.definition(name)
    operation = f"install the toolchain {name}"
    try:
        make_folders(chains.home)
        with _only_one(chains.home, name, operation) as lock:
            known = chains.get(name)
            if known is not None and not again:
                _forget_downloads(chains.home, name)  # of an installation that was killed right at its end
                return known
            _sweep(chains.home, name)
            _check_disk(definition, chains.home, reserve, say)
            folder = chains.home / f".{name}.building.{os.getpid()}"
            build = Build(definition, folder, chains.home / f"{name}.log", lock, say)
            try:
                make(build)
                _put_in_place(build, chains)
                _forget_downloads(chains.home, name)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        if error.errno in FULL_DISK:
            remedy = "free space there; what was fetched so far is kept"
            raise Retryable(FaultCode.DISK_FULL, operation, "the disk is full", remedy, path=chains.home) from error
        raise from_oserror(error, operation, str(chains.home)) from error
    made = chains.get(name)
    assert made is not None
    return made


def remove(chains: Toolchains, name: str) -> int:
    """Remove all that is there of a toolchain; gives the bytes that were freed. Raises UsageError where there is nothing."""
    operation = f"remove the toolchain {name}"
    definition = chains.definition(name)
    if not chains.home.is_dir():
        raise _nothing_there(operation)
    try:
        with _only_one(chains.home, name, operation):
            swept, versions = _sweep(chains.home, name), chains.versions(definition.name)
            remains, fetched = chains.remains(name), size_of(chains.home, name)
            freed = sum(version.manifest.size for version in versions) + sum(map(_size, remains)) + fetched
            if not (versions or swept or remains or downloads_of(chains.home, name)):
                raise _nothing_there(operation)
            (StatePaths(chains.home.parent).cache / OFFERED / name).unlink(missing_ok=True)  # first: it is removed, and not away
            for folder in (*(version.folder for version in versions), *remains):
                _take_away(folder, chains.home / f".{name}.removing", operation)
            _forget_downloads(chains.home, name)
            (chains.home / f"{name}.log").unlink(missing_ok=True)
            return freed
    except OSError as error:
        raise from_oserror(error, operation, str(chains.home)) from error


def _nothing_there(operation: str) -> UsageError:
    remedy = "there is nothing to remove; `ckptd toolchain list` shows what is installed"
    return UsageError(FaultCode.NOT_INSTALLED, operation, "it is not installed", remedy)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in files_below(folder))


def _forget_downloads(home: Path, name: str) -> None:
    """Remove what was fetched for a toolchain: it is there, or nobody wants it."""
    for folder in downloads_of(home, name):
        remove_tree(folder)


def check(chains: Toolchains, name: str) -> Installed:
    """Look at every file of an installed toolchain, and probe it.

    Raises UsageError where it is not installed, Permanent where it is damaged or does not work any more.
    """
    operation = f"check the toolchain {name}"
    chains.definition(name)
    fault = chains.lacking(name, operation)
    if fault is not None:
        kind = Permanent if chains.state(name).startswith(DAMAGED) else UsageError
        raise kind(**fault.model_copy(update={"cause": f"it is {chains.state(name)}"}).model_dump())
    known = chains.get(name)
    assert known is not None
    remedy = f"run `ckptd toolchain install {name} --again`"
    differing = sorted(set(known.manifest.packages.items()) ^ set(packages(known.folder).items()))
    if differing:
        cause = f"its packages are not the ones that were installed ({', '.join(dict.fromkeys(package for package, _ in differing))})"
        raise Permanent(FaultCode.TOOLCHAIN_CHANGED, operation, cause, remedy, path=known.folder)
    changed = {path: wrong for path, wrong in records.differing(known.folder).items() if known.manifest.unlike.get(path) != wrong}
    if changed:
        cause = f"its files are not the ones that were installed: {records.summarize(changed)}"
        raise Permanent(FaultCode.TOOLCHAIN_CHANGED, operation, cause, remedy, path=known.folder, details="\n".join(changed))
    probe(chains.definition(name), known.folder, operation, remedy)
    return known


@dataclass(frozen=True)
class Examined:
    """An installed toolchain after its test. The names are stable for programs."""

    name: str
    works: bool
    """Whether its packages and their files are those that were installed, and its probe succeeds."""
    error: str | None
    """Why it does not work, with what to do; null if it works."""
    folder: str | None
    """Its folder; null if it does not work."""


def examine_all(chains: Toolchains) -> list[Examined]:
    """`check` for every toolchain of which something is there, one that an earlier version of ckptd installed included."""
    examined = []
    for name in chains.known:
        if not chains.versions(name) and not chains.remains(name):
            continue
        try:
            examined.append(Examined(name, True, None, str(check(chains, name).folder)))
        except CkptdError as error:
            examined.append(Examined(name, False, str(error), None))
    return examined


@contextmanager
def _only_one(home: Path, name: str, operation: str) -> Iterator[int]:
    """Hold the toolchain's lock; its descriptor is given to pip, so that a pip which outlives us still holds it."""
    descriptor = os.open(home / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            cause = "another process is installing or removing it"
            raise Retryable(FaultCode.TOOLCHAIN_BUSY, operation, cause, "wait until that has finished", path=home) from None
        yield descriptor
    finally:
        os.close(descriptor)


def _sweep(home: Path, name: str) -> bool:
    """Remove what a killed installation or removal left; whether there was anything. The lock must be held."""
    left = [*home.glob(f".{name}.building*"), *home.glob(f".{name}.removing")]
    for path in left:
        for again in reversed(range(SWEEPS)):
            try:
                remove_tree(path)
                break
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not again:
                    raise
                time.sleep(0.5)  # a grandchild of a killed installation still writes there: it fails now that its folders are gone
    return bool(left)


def _check_disk(definition: Definition, home: Path, reserve: int, say: Say) -> None:
    free, need, there = free_disk(home), int(definition.disk), size_of(home, definition.name)
    say(
        f"{definition.name} needs up to {units.size(need)} in {home}, where {units.size(free)} are free, and about"
        f" {definition.seconds:.0f} s with a fast index; it downloads about {units.size(definition.fetched)}"
        + (f", of which {units.size(there)} are there from an earlier attempt" if there else "")
    )
    need -= min(need, there)
    if free - reserve < need:
        cause = f"it needs up to {units.size(need)}, {units.size(free)} are free and limits.disk_reserve reserves {units.size(reserve)}"
        remedy = "free space there, or set state.directory to a larger disk"
        raise Retryable(FaultCode.DISK_NOW, f"install the toolchain {definition.name}", cause, remedy, path=home)


def _put_in_place(build: Build, chains: Toolchains) -> None:
    """Rename what is whole to its name; a damaged one there and those of earlier requirements go, unless they are in use."""
    target = chains.folder(build.definition.name)
    aside = chains.home / f".{build.definition.name}.removing"
    if target.exists():
        _take_away(target, aside, build.operation)
    os.rename(build.folder, target)
    fsync_directory(chains.home)
    failpoints.point("toolchain.placed")
    for installed in chains.versions(build.definition.name):
        if not installed.current:
            try:
                _take_away(installed.folder, aside, build.operation)
            except Retryable:
                build.say(f"{installed.folder} is still in use; `ckptd toolchain remove` removes it later")


def _take_away(folder: Path, aside: Path, operation: str) -> None:
    """Remove a toolchain's folder; Retryable where a process runs in it. `aside`: the name that it has meanwhile."""
    remove_tree(aside)
    try:
        descriptor = os.open(folder / IN_USE, os.O_RDONLY)
    except FileNotFoundError:
        descriptor = None
    try:
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(folder, aside)
    except BlockingIOError:
        cause = "an export or a validation runs in it now"
        raise Retryable(FaultCode.TOOLCHAIN_IN_USE, operation, cause, "wait until that has finished", path=folder) from None
    finally:
        if descriptor is not None:
            os.close(descriptor)
    remove_tree(aside)
