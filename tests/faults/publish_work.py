"""A publication, a sealed folder, an atomic write, a pin and a probe of the disk, each in a process that the fault layer watches."""

from __future__ import annotations

from pathlib import Path

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.pinning.pins import PinRules, make_pin
from daemon.contract.disk.files import make_folders, seal, write_atomic
from daemon.publishing.exchange.swap import start_afresh
from daemon.publishing.publication import assemble
from daemon.system.filesystems.disks import probe
from tests.faults.forks import tell
from tests.publish.parts import link, parts, swap_in

OLD, NEW = 1, 2


def target_in(home: Path) -> Path:
    return home / "exports" / "run" / "step-4"


def publish(home: str, version: int) -> None:
    """From the sealed outputs of stages, which lie beside the output, to the target and its link."""
    folder = Path(home)
    made = parts(folder / "sources", version)
    tell("sealed")
    staging = folder / "exports" / ".staging" / "job" / "publish"
    start_afresh(staging)
    assemble(made, staging, {"version": version})
    tell("assembled")
    swap_in(staging, target_in(folder))
    tell("swapped")
    link(target_in(folder).with_name("latest"), target_in(folder))
    tell("linked")


def seal_folder(folder: str) -> None:
    tell([entry.model_dump() for entry in seal(Path(folder))])


def folders(path: str) -> None:
    make_folders(Path(path))


def write(file: str, text: str) -> None:
    write_atomic(Path(file), text)


def pin(checkpoint: str, target: str, copy_limit: int) -> None:
    """`copy_limit`: 0 links what can't be reflinked."""
    make_pin(Path(checkpoint), Path(target), fingerprint(Path(checkpoint)), PinRules(copy_limit=copy_limit))


def tried(folder: str) -> None:
    """Whether the disk takes writes."""
    error = probe(Path(folder))
    tell(None if error is None else error.errno)
