"""Whatever somebody plants in the places below an output that ckptd makes: it stays as it was, where it leads nothing is written, and the
export is published or refused by the name of what is in the way.

The generator: every place × every kind of thing, before the first start, between two publications, and while an export is published.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.config.places.output_owners import record_of
from daemon.config.settings import RetentionSettings
from daemon.contract.disk.export_layout import MANIFEST, manifest_of
from daemon.contract.disk.files import sha256_file
from daemon.contract.faults.errors import UsageError
from daemon.publishing.exchange import ours
from daemon.publishing.retention import prune
from daemon.publishing.verification import verify
from daemon.running.recovery import tidy_up
from tests.publish.two import Daemon, bytes_below
from tests.sampling import some

ROOT, RUN = "/runs", "run"
PRECIOUS = "precious, and of somebody"


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "notes").mkdir()
    (path / "notes" / "precious").write_text(PRECIOUS)
    (path / "empty").mkdir()


def _manifest(path: Path, change: Callable[[dict[str, Any], Path], object], *, true: bool = False) -> None:
    """A folder with a true manifest of its one file of ours, but for a change. `true`: it stays so, and is ours, as is what it names."""
    _folder(path)
    (path / "model").write_text("model")
    entry = {"path": "model", "size": 5, "sha256": sha256_file(path / "model")}
    value: dict[str, Any] = {"manifest_version": 1, "export_id": "x", "status": "succeeded", "files": [entry]}
    if not true:
        value["note"] = PRECIOUS
    change(value, path)
    (path / MANIFEST).write_text(json.dumps(value))


def _spoil(path: Path) -> None:
    (path / "model").write_text("model " + PRECIOUS)


KINDS: dict[str, Callable[[Path, Path], object]] = {
    "a link to a folder": lambda path, victim: path.symlink_to(victim),
    "a link to a file": lambda path, victim: path.symlink_to(victim / "file"),
    "a link to nowhere": lambda path, victim: path.symlink_to(victim / "nothing"),
    "a link to itself": lambda path, victim: path.symlink_to(path.name),
    "a file": lambda path, victim: path.write_text(PRECIOUS),
    "a pipe": lambda path, victim: os.mkfifo(path),
    "a socket": lambda path, victim: _socket(path),
    "an empty folder": lambda path, victim: path.mkdir(),
    "a folder": lambda path, victim: _folder(path),
    "a manifest of nothing": lambda path, victim: _manifest(path, lambda value, _: value.update(files=[])),
    "a manifest and more": lambda path, victim: _manifest(path, lambda value, _: None, true=True),
    "a manifest of another size": lambda path, victim: _manifest(path, lambda value, _: value["files"][0].update(size=6)),
    "a manifest of other bytes": lambda path, victim: _manifest(path, lambda value, _: value["files"][0].update(sha256="0" * 64)),
    "a manifest of a changed file": lambda path, victim: _manifest(path, lambda value, at: _spoil(at)),
    "a manifest of a file outside": lambda path, victim: _manifest(path, lambda value, _: value["files"][0].update(path="../x")),
    "a newer manifest": lambda path, victim: _manifest(path, lambda value, _: value.update(manifest_version=99)),
    "a manifest of links": lambda path, victim: _manifest(path, lambda value, at: (at / "link").symlink_to(victim), true=True),
    "a manifest that is a link": lambda path, victim: (_folder(path), (path / MANIFEST).symlink_to(victim / MANIFEST)),
}


def _socket(path: Path) -> None:
    at = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(at)


PLACES = [
    ".staging", ".staging/{instance}", ".kept", ".kept/{instance}", RUN, f"{RUN}/step-2", f"{RUN}/step-2.failed", f"{RUN}/latest",
    f"{RUN}/best", f"{RUN}/{record_of(RUN)}", f"{RUN}/.step-2.ckptd-new", f"{RUN}/.step-2.ckptd-old", f"{RUN}/.step-2.ckptd-gone",
    f"{RUN}/.latest.999999999.tmp", f"{RUN}/.latest.{{pid}}.tmp",
]  # fmt: skip
INSIDE = ["step-2/extra", "step-2/pytorch/extra", "step-2/rejected", "step-2/.hidden", "step-2/pytorch/.latest.999999999.tmp"]
CASES = list(itertools.product(PLACES, KINDS))
LATER = list(itertools.product(INSIDE, KINDS))


def precious_below(folder: Path) -> int:
    """How many plain files with the precious words there are; links are not followed."""
    return sum(PRECIOUS in value for value in bytes_below(folder).values())


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    _folder(folder)
    (folder / "file").write_text("of the victim")
    (folder / MANIFEST).write_text(json.dumps({"manifest_version": 1, "files": []}))
    (folder / "step-2").mkdir()
    return folder


def publish(daemon: Daemon, content: str) -> str | None:
    """An export, and its removal by retention's rules; gives why it was refused."""
    job = daemon.publish(RUN, 2, root=ROOT, content=content)
    if job.state != "succeeded":
        return str(job.reason)
    assert verify(job.target).sound and manifest_of(job.target)["export_id"] == job.id
    tidy_up(daemon.journal, daemon.paths, daemon.paths.pins, ())
    rules = RetentionSettings(keep_last=1)
    prune([job.target.parent], None, rules, staging=daemon.paths.staging, owner=daemon.paths.owner, records=daemon.paths.published)
    return None


@pytest.mark.parametrize(("place", "kind"), some(CASES, of=11))
def test_what_is_planted_before_the_first_start_stays_and_leads_nowhere(tmp_path: Path, victim: Path, place: str, kind: str) -> None:
    before = bytes_below(victim)
    output = tmp_path / "out"
    state = tmp_path / "home" / "state"
    state.mkdir(parents=True, mode=0o700)
    (state / "instance").write_text("0123abcd")
    path = output / place.format(instance="0123abcd", pid=os.getpid())
    path.parent.mkdir(parents=True)
    KINDS[kind](path, victim)
    count = precious_below(output)
    try:
        daemon = Daemon(tmp_path / "home", output)
    except UsageError as error:
        assert str(path) in str(error)
    else:
        refused = [publish(daemon, content) for content in ("first", "again")]
        daemon.journal.close()
        assert all(why is None or str(path) in why for why in refused), refused
    assert bytes_below(victim) == before
    private = place == ".staging/{instance}"  # nobody else may enter it, and all in it that belongs to no open job goes at a start
    assert private or precious_below(output) == count


@pytest.mark.parametrize(("place", "kind"), some(LATER, of=11))
@pytest.mark.parametrize("known", [True, False])
def test_what_is_put_into_an_export_stays_when_another_one_takes_its_place(
    tmp_path: Path, victim: Path, place: str, kind: str, known: bool
) -> None:
    """`known`: the state remembers what it published; else digests say it."""
    before = bytes_below(victim)
    daemon = Daemon(tmp_path / "home", tmp_path / "out")
    assert publish(daemon, "first") is None
    path = tmp_path / "out" / RUN / place
    path.parent.mkdir(exist_ok=True)
    KINDS[kind](path, victim)
    count = precious_below(tmp_path / "out")
    for record in () if known else list(daemon.paths.published.iterdir()):
        record.unlink()
    why = publish(daemon, "again")
    daemon.journal.close()
    assert why is None or str(path.parents[len(Path(place).parts) - 2]) in why
    assert bytes_below(victim) == before
    assert precious_below(tmp_path / "out") == count


@pytest.mark.parametrize("known", [True, False])
def test_a_file_of_an_export_that_somebody_wrote_into_is_set_aside(tmp_path: Path, known: bool) -> None:
    daemon = Daemon(tmp_path / "home", tmp_path / "out")
    assert publish(daemon, "first") is None
    export = tmp_path / "out" / RUN / "step-2"
    (export / "pytorch" / "file").write_text(PRECIOUS)
    for record in () if known else list(daemon.paths.published.iterdir()):
        record.unlink()
    assert publish(daemon, "again") is None
    daemon.journal.close()
    (aside,) = export.parent.glob("step-2.before-ckptd-*")
    assert (aside / "pytorch" / "file").read_text() == PRECIOUS
    assert sorted(bytes_below(aside)) == ["pytorch", "pytorch/file"] if known else (aside / MANIFEST).is_file()


def test_no_digest_is_taken_of_an_export_that_the_state_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(tmp_path / "home", tmp_path / "out")
    assert publish(daemon, "first") is None
    monkeypatch.setattr(ours, "verify", lambda place: pytest.fail(f"{place} was read"))
    assert publish(daemon, "again") is None
    daemon.journal.close()
    assert not list((tmp_path / "out" / RUN).glob("*.before-ckptd-*"))


@pytest.mark.parametrize("name", [".staging", ".kept"])
def test_a_link_that_takes_the_place_of_a_folder_of_ours_while_an_export_is_published_leads_it_nowhere(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = bytes_below(victim)
    daemon = Daemon(tmp_path / "home", tmp_path / "out")
    job = daemon.take(RUN, 2, root=ROOT)
    daemon.make(job)
    done = []

    def attack(point: str) -> None:
        if point == "publish.assembled" and not done:
            done.append(point)
            (tmp_path / "out" / name).rename(tmp_path / "moved")
            (tmp_path / "out" / name).symlink_to(victim)

    monkeypatch.setattr("daemon.contract.disk.failpoints.point", attack)
    ended = daemon.end(job)
    daemon.journal.close()
    assert done and ended.state == "succeeded" and verify(ended.target).sound
    assert bytes_below(victim) == before
