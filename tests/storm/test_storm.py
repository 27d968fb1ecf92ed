"""kill -9 by the hundred, two daemons and one output: each checkpoint is published by its owner or refused with the reason, and whole.

`STORM_SEED=N` chooses as an earlier storm did, `STORM_KILLS=N` how long the long one is, `STORM_JSON=FILE` writes its figures down.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from daemon.checkpoints.pinning.pins import identify
from daemon.config.places.output_owners import owner_of
from daemon.contract.disk.export_layout import manifest_of
from daemon.contract.disk.files import files_below
from daemon.operating.integrity.fsck import examine
from daemon.publishing.verification import exports_below
from tests.runner.conftest import artifacts
from tests.service import stray_handlers
from tests.storm.world import NAMES, SHARED, Sharing, Storm, at_rest

SEED = int(os.environ.get("STORM_SEED", random.randrange(10**6)))
KILLS = int(os.environ.get("STORM_KILLS", "100"))


@pytest.fixture
def storm(tmp_path: Path, pico_checkpoint: Path, pico_base: Path) -> Iterator[Storm]:
    print(f"seed {SEED}")
    made = Storm(tmp_path, pico_checkpoint, pico_base, SEED)
    yield made
    made.kill_all()


def export_of(toy: Sharing, checkpoint: Path, problems: list[str]) -> Path | None:
    """Where a daemon published a checkpoint as it is; None where it was refused, with the reason, or where a problem was noted."""
    digest = identify(checkpoint)
    jobs = [job for job in toy.jobs() if (job.checkpoint.path, job.checkpoint.digest) == (str(checkpoint), digest)]
    if len(jobs) != 1:
        problems.append(f"{checkpoint} was taken {len(jobs)} times by {toy.folder.name}")
    elif jobs[0].state == "failed" and "another ckptd publishes the run both there" in str(jobs[0].reason):
        pass
    elif jobs[0].state != "succeeded":
        problems.append(f"{checkpoint} of {toy.folder.name} ended as {jobs[0].state}: {jobs[0].reason}")
    else:
        return jobs[0].target
    return None


def exports_of_owners(storm: Storm) -> dict[Path, Path]:
    """Checkpoint → its one export, which lies in a folder of the daemon that made it. Notes what is otherwise."""
    found: dict[Path, Path] = {}
    for root, checkpoints in storm.checkpoints.items():
        watching = [storm.toys[name] for name in NAMES if root in (SHARED, name)]
        for checkpoint in checkpoints:
            exports = [(toy, export) for toy in watching if (export := export_of(toy, checkpoint, storm.problems)) is not None]
            if len(exports) != 1:
                storm.problems.append(f"{checkpoint} was published by {[toy.folder.name for toy, _ in exports]}")
                continue
            ((toy, export),) = exports
            owner, manifest = owner_of(export.parent, checkpoint.parent.name), manifest_of(export)
            if owner is None or owner.state != str(toy.state):
                storm.problems.append(f"{export} of {toy.folder.name} lies in a folder of {owner}")
            if (manifest.get("checkpoint"), manifest.get("root")) != (str(checkpoint), str(storm.roots[root])):
                storm.problems.append(f"{export} of {checkpoint} holds that of {manifest.get('checkpoint')}")
            found[checkpoint] = export
    if len(set(found.values())) != len(found):
        storm.problems.append("two checkpoints have one export")
    return found


def check_what_is_left(storm: Storm) -> None:
    """Both journals and all on disk are sound, and nothing is left behind."""
    for name, toy in storm.toys.items():
        storm.problems += [f"fsck of {name}: {finding}" for finding in examine(toy.state, toy.exports, quiescent=True, deep=True).findings]
        if "Traceback" in toy.log():
            storm.problems.append(f"a traceback in the log of {name}: {toy.log().split('Traceback', 1)[1][:1500]}")
    if storm.toys[NAMES[0]].run_verb("verify") != 0:
        storm.problems.append(f"ckptd verify: {storm.toys[NAMES[0]].said}")
    instances = {(toy.state / "instance").read_text().strip() for toy in storm.toys.values()}
    for folder in (storm.output / ".staging", storm.output / ".kept"):
        storm.problems += [f"{path} is nobody's" for path in folder.iterdir() if path.name not in instances]
    storm.problems += [f"{path} is left" for path in (storm.output / ".staging").glob("*/*")]
    storm.problems += [f"{path} was set aside" for path in storm.output.rglob("*.before-ckptd-*")]
    published = [path for export in exports_below(storm.output) for path in files_below(export)]
    storm.problems += [f"{path} has several links" for path in published if path.stat().st_nlink != 1]
    lines = [(process.pid, " ".join(process.info["cmdline"] or [])) for process in psutil.process_iter(["cmdline"])]
    storm.problems += [f"process {number} is left: {line}" for number, line in lines if str(storm.folder) in line]
    storm.problems += [f"a child is left: {number}" for number in stray_handlers(storm.folder)]


def check_bytes(storm: Storm, exports: dict[Path, Path]) -> None:
    """What was published is what a daemon publishes that nothing disturbs."""
    calm = storm.calm
    calm.start()
    calm.wait_for(lambda _: at_rest(calm, {str(path): identify(path) for path in exports}), 300)
    assert calm.stop() == 0
    for checkpoint, export in exports.items():
        undisturbed = export_of(calm, checkpoint, storm.problems)
        if undisturbed is not None and artifacts(export) != artifacts(undisturbed):
            storm.problems.append(f"{export} differs from {undisturbed}, which nothing disturbed")


def weather(storm: Storm, kills: int, *, every: int, longest: float) -> None:
    """Let it blow, and look at what is left."""
    storm.blow(kills, every, longest)
    exports = exports_of_owners(storm)
    check_what_is_left(storm)
    check_bytes(storm, exports)
    storm.counts["published"] = len(exports)
    storm.counts["exports on disk"] = len([*exports_below(storm.output)])
    for toy in storm.toys.values():
        storm.counts.update(f"jobs: {job.state}" for job in toy.jobs())
    figures = json.dumps({"seed": SEED, **dict(sorted(storm.counts.items())), "problems": storm.problems}, indent=1)
    print(figures)
    if file := os.environ.get("STORM_JSON"):
        Path(file).write_text(figures + "\n")
    assert storm.problems == [], "\n".join(storm.problems)[:8000]
    assert exports


@pytest.mark.slow
def test_a_few_kills_of_two_daemons_with_one_output_lose_nothing_and_replace_nothing(storm: Storm) -> None:  # R6.5
    weather(storm, 4, every=3, longest=0.5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_storm_of_a_hundred_kills_of_two_daemons_with_one_output_loses_nothing_and_replaces_nothing(storm: Storm) -> None:  # R6.5
    weather(storm, KILLS, every=10, longest=3.0)
