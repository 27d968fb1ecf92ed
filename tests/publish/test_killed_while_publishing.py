"""A publisher that is killed at any of its steps leaves one whole version, and the next try or the next start ends its work."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from daemon.publishing.exchange.swap import complete_swaps
from tests.publish.parts import expected, listing, publish, put_in_the_way, set_aside, version_of
from tests.sampling import some
from tests.verbs import run_program

BEGINNING = ["publish.part", "publish.part", "publish.assembled", "publish.manifest"]

RENAMED = ["publish.renamed", "publish.parent-durable"]
REMOVED = ["publish.retired", "publish.old-removed"]

SEQUENCES = {
    "nothing": [*BEGINNING, "publish.before-rename", *RENAMED],
    "empty folder": [*BEGINNING, "publish.before-rename", *RENAMED],
    "an export": [*BEGINNING, "publish.before-rename", "publish.swap-recorded", "publish.exchanged", *RENAMED, *REMOVED],
    "an export, no exchange": [
        *BEGINNING, "publish.before-rename", "publish.swap-recorded", "publish.moved-away", *RENAMED, *REMOVED,
    ],
    "an export, other file system": [
        *BEGINNING, "publish.before-rename", "publish.copied", "publish.swap-recorded", "publish.exchanged", *RENAMED, *REMOVED,
    ],
    "a file": [*BEGINNING, "publish.set-aside", "publish.before-rename", *RENAMED],
    "a link": [*BEGINNING, "publish.set-aside", "publish.before-rename", *RENAMED],
    "a folder of a person": [*BEGINNING, "publish.set-aside", "publish.before-rename", *RENAMED],
}  # fmt: skip
"""What lies at the target → the named points that a publication passes then, in order."""

TELLING = ("publish.swap-recorded", "publish.moved-away", "publish.copied", "publish.renamed")
"""Of the rarer ways, the points that are tried in the quick set too."""


RARE = ("no exchange", "other file system", "a file", "a link", "a folder of a person", "empty folder")


def _case(before: str, point: str) -> Any:
    rare = before.endswith(RARE) and point not in TELLING
    return pytest.param(before, point, marks=pytest.mark.slow) if rare else (before, point)


CASES = [_case(before, point) for before, points in SEQUENCES.items() for point in dict.fromkeys(points)]

PROGRAM = """
import errno, os, sys
from pathlib import Path
import daemon.publishing.exchange.swap
from tests.publish.parts import publish

home, target, before = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def refuse(first, second):
    raise OSError(errno.EINVAL, "Invalid argument")

def rename(first, second, genuine=os.rename):
    if Path(first).parent != Path(second).parent:
        raise OSError(errno.EXDEV, "Invalid cross-device link")
    genuine(first, second)

if before.endswith("no exchange"):
    daemon.publishing.exchange.swap.exchange = refuse
if before.endswith("other file system"):
    os.rename = rename
publish(home, 2, target)
"""


def publish_elsewhere(home: Path, target: Path, before: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Publish version 2 in a process of its own."""
    return run_program(PROGRAM, home, target, before, **environment)


@pytest.mark.parametrize("before", some(SEQUENCES, of=2))
def test_every_step_of_a_publication_has_its_named_point(tmp_path: Path, target: Path, before: str) -> None:
    put_in_the_way(tmp_path, target, before)
    done = publish_elsewhere(tmp_path, target, before, CKPTD_FAULT_TRACE=str(tmp_path / "trace"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trace").read_text().split() == SEQUENCES[before]


@pytest.mark.parametrize(("before", "point"), some(CASES, of=2))
def test_killed_anywhere_a_reader_sees_one_whole_version_and_the_next_try_ends_it(
    tmp_path: Path, target: Path, point: str, before: str
) -> None:  # R6.5
    put_in_the_way(tmp_path, target, before)
    done = publish_elsewhere(tmp_path, target, before, CKPTD_FAULT=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    renamed = point in ("publish.exchanged", *RENAMED, *REMOVED)
    if renamed or (before.startswith("an export") and point != "publish.moved-away"):
        assert version_of(target) == (2 if renamed else 1)
    assert before not in ("a file", "a link", "a folder of a person") or target.exists() or set_aside(target) == ["in the way"]
    publish(tmp_path, 2, target)
    assert listing(target) == expected()
    assert version_of(target) == 2
    assert [name for name in os.listdir(target.parent) if ".before-ckptd-" not in name] == ["step-4"]
    assert set_aside(target) == (["in the way"] if before in ("a file", "a link", "a folder of a person") else [])
    assert os.listdir(tmp_path / "staging") == []


@pytest.mark.parametrize("point", ["publish.swap-recorded", "publish.moved-away", "publish.renamed", "publish.old-removed"])
def test_a_start_mends_what_was_cut_off_between_two_renames_even_if_the_job_never_goes_on(
    tmp_path: Path, target: Path, point: str
) -> None:  # R6.5
    before = "an export, no exchange"
    put_in_the_way(tmp_path, target, before)
    assert publish_elsewhere(tmp_path, target, before, CKPTD_FAULT=point).returncode == -signal.SIGKILL
    complete_swaps(tmp_path)
    assert version_of(target) == (2 if point in ("publish.renamed", "publish.old-removed") else 1)
    assert os.listdir(target.parent) == ["step-4"]
    assert list((tmp_path / "staging").glob("*.swap")) == []


def test_a_copy_that_was_cut_off_beside_the_target_goes_at_the_next_start(tmp_path: Path, target: Path) -> None:
    before = "an export, other file system"
    put_in_the_way(tmp_path, target, before)
    assert publish_elsewhere(tmp_path, target, before, CKPTD_FAULT="publish.copied").returncode == -signal.SIGKILL
    hidden, plain = sorted(os.listdir(target.parent))
    assert hidden.startswith(".step-4.") and hidden.endswith(".ckptd-new") and plain == "step-4"
    complete_swaps(tmp_path)
    assert os.listdir(target.parent) == ["step-4"]
    assert version_of(target) == 1
