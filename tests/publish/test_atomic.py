"""A reader sees the old export or the new one, whole, whatever happens to the publisher."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.contract.disk.export_layout import MANIFEST, manifest_of
from daemon.contract.faults.errors import Retryable
from daemon.publishing.exchange.swap import start_afresh
from daemon.publishing.lending import same_files
from daemon.publishing.publication import assemble
from tests.publish.parts import expected, listing, parts, publish, put_in_the_way, set_aside, swap_in, version_of


def test_a_new_export_holds_exactly_its_files_and_a_manifest_that_fits(tmp_path: Path, target: Path) -> None:
    publish(tmp_path, 1, target, run="run", step=4)
    assert listing(target) == expected()
    assert version_of(target) == 1
    assert (manifest_of(target)["run"], manifest_of(target)["step"], manifest_of(target)["manifest_version"]) == ("run", 4, 1)
    assert os.listdir(tmp_path / "staging") == []


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
    assert os.listdir(tmp_path / "staging") == []


@pytest.mark.parametrize("before", ["a file", "a link", "a folder of a person"])
def test_what_is_no_export_is_set_aside_and_stays_whole(tmp_path: Path, target: Path, before: str) -> None:
    put_in_the_way(tmp_path, target, before)
    publish(tmp_path, 1, target)
    assert listing(target) == expected()
    assert not target.is_symlink()
    assert set_aside(target) == ["in the way"]
    publish(tmp_path, 2, target)
    assert len(os.listdir(target.parent)) == 2, "an export of ours is replaced, not set aside"


def test_two_things_set_aside_in_the_same_second_both_stay(tmp_path: Path, target: Path) -> None:
    for version in (1, 2):
        if target.exists():
            (target / MANIFEST).unlink()
            (target / "precious").write_text("damaged export")
        else:
            put_in_the_way(tmp_path, target, "a folder of a person")
        publish(tmp_path, version, target)
    assert sorted(set_aside(target)) == ["damaged export", "in the way"]


OTHER_DISK = """
set -eu
mkdir -p "$HOME_FOLDER/exports/run"
mount -t tmpfs -o size=1m tmpfs "$HOME_FOLDER/exports/run"
"$PYTHON" -c "
from pathlib import Path
from tests.publish.parts import publish, version_of
home = Path('$HOME_FOLDER')
for version in (1, 2):
    publish(home, version, home / 'exports/run/step-4')
print('versions:', version_of(home / 'exports/run/step-4'))
"
ls -A "$HOME_FOLDER/exports/run" "$HOME_FOLDER/staging"
mount -o remount,ro "$HOME_FOLDER/exports/run"
"$PYTHON" -c "
from pathlib import Path
from tests.publish.parts import publish, version_of
home = Path('$HOME_FOLDER')
try:
    publish(home, 3, home / 'exports/run/step-4')
except OSError as error:
    print('refused:', error.strerror)
print('still:', version_of(home / 'exports/run/step-4'))
"
"""


def test_a_run_folder_on_another_disk_gets_its_export_too_and_keeps_it_when_it_turns_read_only(tmp_path: Path) -> None:
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    answer = subprocess.run(
        [*unshare, "bash", "-c", OTHER_DISK], env={**os.environ, "HOME_FOLDER": str(tmp_path), "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    said = answer.stdout + answer.stderr
    assert "versions: 2" in said, said
    listed = answer.stdout.split("exports/run:\n")[1].split("refused:")[0].split()
    assert listed == ["step-4", f"{tmp_path}/staging:"], said
    assert "refused: Read-only file system" in said
    assert "still: 2" in said


def test_folders_above_the_target_that_were_removed_are_made_again_through_links_too(tmp_path: Path, target: Path) -> None:
    real = tmp_path / "large-disk"
    real.mkdir()
    (tmp_path / "exports").symlink_to(real)
    publish(tmp_path, 1, target)
    shutil.rmtree(real / "run")
    publish(tmp_path, 2, target)
    assert version_of(real / "run" / "step-4") == 2
    assert (tmp_path / "exports").is_symlink()


def test_the_output_of_a_stage_that_is_gone_can_be_made_again(tmp_path: Path) -> None:
    made = parts(tmp_path / "sources", 1)
    (made[0].source / "config.json").unlink()
    with pytest.raises(Retryable, match=r"no longer exists"):
        assemble(made, tmp_path / "staging", {"version": 1})


READER = """
import hashlib, json, os, sys

target, stop = sys.argv[1:]

def content(folder, path):
    with open(os.open(path, os.O_RDONLY, dir_fd=folder), "rb") as stream:
        return stream.read()

versions, removed, mixed = [], 0, 0
while not os.path.exists(stop):
    folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        manifest = json.loads(content(folder, "MANIFEST.json"))
        read = [(content(folder, entry["path"]), entry) for entry in manifest["files"]]
        mixed += sum(hashlib.sha256(data).hexdigest() != entry["sha256"] for data, entry in read)
        versions.append(manifest["version"])
    except FileNotFoundError:
        removed += 1  # this version went while it was read; the name itself was there
    finally:
        os.close(folder)
print(json.dumps({"versions": versions, "removed": removed, "mixed": mixed}))
"""


def test_a_reader_never_misses_the_export_nor_sees_a_mixed_one_while_it_is_replaced(tmp_path: Path, target: Path) -> None:
    """The path itself is always there; a version that is removed while it is read ends with ENOENT, never with wrong content."""
    publish(tmp_path, 0, target)
    stop = tmp_path / "stop"
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(target), str(stop)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    version, deadline = 0, time.monotonic() + 60
    while reader.poll() is None and version < 60 and time.monotonic() < deadline:
        version += 1
        publish(tmp_path, version, target)
        assert manifest_of(target)["version"] == version
    stop.touch()
    said, errors = reader.communicate(timeout=60)
    assert reader.returncode == 0, errors
    answer = json.loads(said)
    assert answer["mixed"] == 0
    assert answer["versions"] == sorted(answer["versions"])
    assert len(set(answer["versions"])) > 5


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
        start_afresh(tmp_path / "staging" / "publish")
        assemble(made, tmp_path / "staging" / "publish", {"version": 1})
        swap_in(tmp_path / "staging" / "publish", target)
        assert version_of(target) == 1
    assert all(same_files(part.source, part.files) for part in made)


def test_a_folder_without_a_sound_manifest_has_none(tmp_path: Path) -> None:
    assert manifest_of(tmp_path) == {}
    for text in ("", "{", "[]", "\x00"):
        (tmp_path / MANIFEST).write_text(text)
        assert manifest_of(tmp_path) == {}
