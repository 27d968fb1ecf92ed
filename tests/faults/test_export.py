"""A whole export on a disk that fails: a documented exit code and a sentence, and the same command ends it afterwards."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemon.contract.disk.files import files_below, sha256_file
from tests.faults.forks import REPOSITORY
from tests.faults.layer import Faults, Rule
from tests.service import listing

KINDS = ("write", "fsync", "rename", "link", "mkdir", "open-to-write", "unlink")
DOCUMENTED = (0, 1, 2, 3, 75)
"""2: a folder of the configuration that can't be written, which is found out before anything is begun."""


@dataclass(frozen=True)
class Undisturbed:
    """An export without faults: its files' digests, all its names, how many calls of each kind it made."""

    digests: dict[str, str]
    names: list[str]
    kept: dict[str, set[str]]
    calls: dict[str, int]


def export(faults: Faults, checkpoint: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """`ckptd export` with state and output below `home`."""
    environment = {
        **os.environ, "XDG_STATE_HOME": str(home / "state"), "CKPTD_EXPORT__VARIANTS": "pytorch", "CKPTD_VALIDATE__SAMPLES": "2",
        "CKPTD_VALIDATE__NEW_TOKENS": "6", "CKPTD_VALIDATE__SPEED_TOKENS": "0", "CKPTD_LIMITS__DISK_RESERVE": "0",
        "CKPTD_LIMITS__RETRY_SECONDS": "0.2",
    }  # fmt: skip
    command = [sys.executable, "-m", "daemon", "export", str(checkpoint), "--output", str(home / "out")]
    return faults.run(command, env=environment, cwd=REPOSITORY, timeout=240)


def digests(home: Path) -> dict[str, str]:
    folder = home / "out" / "pico-run" / "step-4"
    return {path.relative_to(folder).as_posix(): digest(path) for path in files_below(folder / "pytorch")}


def digest(path: Path) -> str:
    """Of a file's content; of a README without the time at which it was finished."""
    if path.name != "README.md":
        return sha256_file(path)
    return "".join(line for line in path.read_text().splitlines(True) if not line.startswith("| Finished |"))


def names(home: Path) -> list[str]:
    """All that an export leaves, but for the name that stands for the state directory, and where links begin."""
    found = [name.replace(f"{home}/", "") for name in listing(home / "out") if not name.startswith(".staging/")]
    return [re.sub(r"^\.kept/\w+", ".kept/state", name) for name in found]


def kept(name: str) -> bool:
    return name.startswith(".kept/state/")


def kept_files(home: Path) -> dict[str, set[str]]:
    """Kept output → names of the files in it, through links: whether a folder or its files are linked is all the same to who reads. A
    folder that is linked has the export's README too."""
    return {
        entry.name: {f"{Path(folder).relative_to(entry)}/{name}" for folder, _, files in os.walk(entry, followlinks=True) for name in files
                     if Path(folder, name).is_file() and name != "README.md"}
        for entry in (home / "out" / ".kept").glob("*/*")
    }  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, pico_checkpoint: Path) -> Undisturbed:
    home = tmp_path_factory.mktemp("undisturbed")
    with Faults(*(Rule(kind, below=home) for kind in KINDS)) as faults:
        done = export(faults, pico_checkpoint, home)
        assert done.returncode == 0, done.stdout + done.stderr
        kinds = [call.kind for call in faults.calls]
    counts = {kind: kinds.count(kind.removesuffix("-to-write")) for kind in KINDS}
    assert all(counts.values()), counts
    found = digests(home)
    assert "pytorch/model.safetensors" in found
    return Undisturbed(found, names(home), kept_files(home), counts)


def disturb(undisturbed: Undisturbed, checkpoint: Path, home: Path, rule: Rule) -> None:
    """One export with the fault, then the same command without."""
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in [checkpoint, *checkpoint.iterdir()]}
    with Faults(rule) as faults:
        done = export(faults, checkpoint, home)
        said = f"{rule}: {faults.failed}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr, said
        assert done.returncode in DOCUMENTED, said
        if done.returncode:
            assert "ckptd: Could not" in done.stderr or "Could not" in done.stdout + done.stderr, said
        if done.returncode in (0, 3):
            assert faults.calls, "the rule's place was never reached"
        faults.set()
        again = export(faults, checkpoint, home)
    said += f"\n----- again: {again.returncode}\n{again.stdout}\n{again.stderr}"
    assert again.returncode == 0, said
    assert digests(home) == undisturbed.digests, said
    # What is kept for later jobs is a cache: an output may be missing there, but none may lie there in part.
    found = names(home)
    assert [name for name in found if not kept(name)] == [name for name in undisturbed.names if not kept(name)], said
    left = kept_files(home)
    assert left == {entry: undisturbed.kept[entry] for entry in left}, said
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in before} == before, "the training directory was touched"


FEW = [pytest.param(*case, marks=pytest.mark.slow) for case in (("fsync", errno.EIO, 0.5), ("write", errno.ENOSPC, 0.3))]
NUMBERS = (errno.EIO, errno.ENOSPC, errno.EROFS)
PLACES = (0.02, 0.35, 0.65, 0.98)
MANY = [(kind, NUMBERS[(row + column) % 3], at) for row, kind in enumerate(KINDS) for column, at in enumerate(PLACES)]
"""Every kind at every place; each place and most kinds meet all three errors."""


@pytest.mark.parametrize(("kind", "number", "at"), FEW)
def test_an_export_met_by_a_fault_ends_in_order_and_the_same_command_ends_it(
    undisturbed: Undisturbed, pico_checkpoint: Path, tmp_path: Path, kind: str, number: int, at: float
) -> None:  # R6.2 R6.5
    disturb(undisturbed, pico_checkpoint, tmp_path, Rule(kind, number, nth=1 + int(undisturbed.calls[kind] * at), below=tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("calls", [1, None], ids=["once", "for good"])
@pytest.mark.parametrize(("kind", "number", "at"), MANY)
def test_the_same_all_over_the_run_and_for_faults_that_last(
    undisturbed: Undisturbed, pico_checkpoint: Path, tmp_path: Path, kind: str, number: int, at: float, calls: int | None
) -> None:  # R6.2 R6.5
    nth = 1 + int(undisturbed.calls[kind] * at)
    disturb(undisturbed, pico_checkpoint, tmp_path, Rule(kind, number, nth=nth, calls=calls, below=tmp_path))
