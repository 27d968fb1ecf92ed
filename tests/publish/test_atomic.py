"""A reader sees the old export or the new one, whole, whatever happens to the publisher."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from daemon.publish import MANIFEST, assemble, manifest_of, same_files, swap_in
from tests.publish.parts import expected, listing, parts, publish, version_of

POINTS = ("publish.assembled", "publish.manifest", "publish.exchanged", "publish.renamed")
PROGRAM = "import sys; from pathlib import Path; from tests.publish.parts import publish; publish(Path(sys.argv[1]), 2, Path(sys.argv[2]))"


def publish_and_die(home: Path, target: Path, point: str) -> None:
    """Publish version 2 in a process of its own that is killed at the point."""
    environment = {**os.environ, "CKPTD_FAULT": point}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(home), str(target)], env=environment, check=False, cwd=Path(__file__).parents[2],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "exports" / "run" / "step-4"


def test_a_new_export_holds_exactly_its_files_and_a_manifest_that_fits(tmp_path: Path, target: Path) -> None:
    publish(tmp_path, 1, target, run="run", step=4)
    assert listing(target) == expected()
    assert version_of(target) == 1
    assert (manifest_of(target)["run"], manifest_of(target)["step"], manifest_of(target)["manifest_version"]) == ("run", 4, 1)
    assert not (tmp_path / "staging").exists()


def test_the_files_can_be_read_by_everyone_whom_the_umask_lets(tmp_path: Path, target: Path) -> None:
    publish(tmp_path, 1, target)
    umask = os.umask(0)
    os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in target.rglob("*") if path.is_file()} == {0o666 & ~umask}


def test_a_replaced_export_holds_nothing_of_the_old_one(tmp_path: Path, target: Path) -> None:
    publish(tmp_path, 1, target, {"pytorch": ["old.bin"], "onnx": ["model.onnx"], "": ["report.json"]})
    publish(tmp_path, 2, target)
    assert listing(target) == expected()
    assert version_of(target) == 2
    assert os.listdir(target.parent) == ["step-4"]
    assert not (tmp_path / "staging").exists()


def put_in_the_way(target: Path, kind: str) -> None:
    target.parent.mkdir(parents=True)
    if kind == "file":
        target.write_text("in the way")
    elif kind == "link":
        (target.parent.parent / "kept").mkdir()
        target.symlink_to(target.parent.parent / "kept")
    else:
        target.mkdir()


@pytest.mark.parametrize("kind", ["file", "link", "empty folder"])
def test_whatever_is_in_the_way_gives_way(tmp_path: Path, target: Path, kind: str) -> None:
    put_in_the_way(target, kind)
    publish(tmp_path, 1, target)
    assert listing(target) == expected()
    assert not target.is_symlink()
    assert not (tmp_path / "staging").exists()


@pytest.mark.parametrize("before", ["nothing", "an export", "file", "link"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_a_reader_sees_one_whole_version_and_the_next_try_ends_it(
    tmp_path: Path, target: Path, point: str, before: str
) -> None:  # R6.5
    if before == "an export":
        publish(tmp_path, 1, target)
    elif before != "nothing":
        put_in_the_way(target, before)
    if before == "nothing" and point == "publish.exchanged":
        pytest.skip("nothing is exchanged where nothing was")
    publish_and_die(tmp_path, target, point)
    if (target / MANIFEST).exists():
        assert version_of(target) == (2 if point in ("publish.exchanged", "publish.renamed") else 1)
    else:
        assert before != "an export"
        assert point in ("publish.assembled", "publish.manifest")
    publish(tmp_path, 2, target)
    assert listing(target) == expected()
    assert version_of(target) == 2
    assert os.listdir(target.parent) == ["step-4"]
    assert not (tmp_path / "staging").exists()


def read_through_one_handle(target: Path) -> int:
    """The version of an export all of whose files are read through one open directory, so that no exchange comes between."""
    folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:

        def content(path: str) -> bytes:
            with open(os.open(path, os.O_RDONLY, dir_fd=folder), "rb") as stream:
                return stream.read()

        manifest = json.loads(content(MANIFEST))
        for entry in manifest["files"]:
            assert hashlib.sha256(content(entry["path"])).hexdigest() == entry["sha256"]
        return int(manifest["version"])
    finally:
        os.close(folder)


def test_a_reader_never_misses_the_export_nor_sees_a_mixed_one_while_it_is_replaced(tmp_path: Path, target: Path) -> None:
    """The path itself is always there; a version that is removed while it is read ends with ENOENT, never with wrong content."""
    publish(tmp_path, 0, target)
    versions: list[int] = []
    problems: list[BaseException] = []
    removed: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            assert target.is_dir()
            try:
                versions.append(read_through_one_handle(target))
            except FileNotFoundError as error:
                if error.filename == str(target):
                    raise
                removed.append(str(error.filename))

    def guarded() -> None:
        try:
            read()
        except BaseException as error:
            problems.append(error)

    reader = threading.Thread(target=guarded)
    reader.start()
    for version in range(1, 51):
        publish(tmp_path, version, target)
        assert manifest_of(target)["version"] == version
    stop.set()
    reader.join()
    assert problems == []
    assert versions == sorted(versions)
    assert len(set(versions)) > 5


def test_the_output_of_a_stage_that_lost_or_changed_a_file_is_not_the_same(tmp_path: Path) -> None:  # R6.5
    (part, _) = parts(tmp_path, 1)
    assert same_files(part.source, part.files)
    (part.source / "config.json").write_text("cut")
    assert not same_files(part.source, part.files)
    (part.source / "config.json").unlink()
    assert not same_files(part.source, part.files)


def test_the_sources_stay_for_another_try(tmp_path: Path, target: Path) -> None:
    made = parts(tmp_path / "sources", 1)
    for _ in range(2):
        assemble(made, tmp_path / "staging", {"version": 1})
        swap_in(tmp_path / "staging", target)
        assert version_of(target) == 1
    assert all(same_files(part.source, part.files) for part in made)


def test_a_folder_without_a_sound_manifest_has_none(tmp_path: Path) -> None:
    assert manifest_of(tmp_path) == {}
    for text in ("", "{", "[]", "\x00"):
        (tmp_path / MANIFEST).write_text(text)
        assert manifest_of(tmp_path) == {}
