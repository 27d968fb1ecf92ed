"""The folders of ckptd below an output are reached through no link, also by a stage that gets a path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daemon.config.places.paths import prepare
from daemon.contract.disk import own_folders
from daemon.contract.disk.own_folders import is_still, own
from daemon.contract.faults.errors import Permanent, Retryable, UsageError
from daemon.contract.jobs.processes.elsewhere import ORDERS
from daemon.publishing.kept import OutputCache
from daemon.running.attempts.result_file import examine
from handlers.__main__ import _refuse_another_folder
from tests.workers.helpers import make_context


def test_what_is_done_in_a_folder_of_ours_is_done_there_whatever_becomes_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    with own(tmp_path, tmp_path / ".staging" / "ab12", make=True) as folder:
        (tmp_path / ".staging").rename(tmp_path / "moved")
        (tmp_path / ".staging").symlink_to(tmp_path / "victim")
        (folder / "model").write_text("weights")
    assert (tmp_path / "moved" / "ab12" / "model").read_text() == "weights"
    assert os.listdir(tmp_path / "victim") == []
    with pytest.raises(Permanent, match=r"\.staging\): it is a link"), own(tmp_path, tmp_path / ".staging" / "ab12", make=True):
        pass


def test_a_folder_of_another_user_is_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / ".staging" / "ab12"
    theirs.mkdir(parents=True)
    monkeypatch.setattr(own_folders, "_is_ours", lambda status, path: False)
    with pytest.raises(Permanent, match="belongs to another user"), own(tmp_path, theirs):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_whose_a_folder_is_is_asked_of_the_disk(tmp_path: Path) -> None:
    theirs = tmp_path / ".staging" / "ab12"
    theirs.mkdir(parents=True)
    os.chown(theirs, 12345, 12345)
    with own(tmp_path, theirs):
        pass  # root works in the daemon's
    theirs.chmod(0o777)
    with pytest.raises(Permanent, match="belongs to another user"), own(tmp_path, theirs):
        pass


@pytest.mark.parametrize("name", [".staging", ".kept"])
def test_a_start_refuses_a_link_in_their_place_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / "victim")
    with pytest.raises(UsageError, match="it is a link") as caught:
        prepare(tmp_path / "state", tmp_path / "out")
    assert (caught.value.fault.code, caught.value.fault.path) == ("not-ours", str(tmp_path / "out" / name))
    assert os.listdir(tmp_path / "victim") == []


def test_a_kept_output_is_neither_taken_from_nor_put_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "victim" / "ab12").mkdir(parents=True)
    (tmp_path / ".kept").symlink_to(tmp_path / "victim")
    cache = OutputCache(tmp_path / ".kept" / "ab12")
    for action in (lambda: cache.find("key"), lambda: cache.drop("key")):
        with pytest.raises(Permanent, match="it is a link"):
            action()
    assert os.listdir(tmp_path / "victim" / "ab12") == []


def test_a_stage_neither_begins_nor_is_believed_where_its_folder_was_replaced(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    staging = Path(context.staging)
    staging.mkdir(parents=True, exist_ok=True)
    context = context.model_copy(update={"staging_inode": staging.stat().st_ino})
    _refuse_another_folder(context)
    Path(context.result).parent.mkdir(parents=True, exist_ok=True)
    Path(context.result).write_text('{"outcome": "succeeded"}')
    assert examine(context)[0] is not None
    staging.rename(tmp_path / "moved")
    staging.symlink_to(tmp_path / "moved")
    assert not is_still(staging, context.staging_inode)
    with pytest.raises(Retryable, match="was replaced by another folder"):
        _refuse_another_folder(context)
    (Path(context.result).parent / ORDERS).write_text("{}")  # on another machine the mount is at fault, and nothing is to be moved away
    with pytest.raises(Retryable, match="does not have the folder that the daemon's machine made") as there:
        _refuse_another_folder(context)
    assert "mount the file system" in there.value.fault.remedy and "mv" not in there.value.fault.remedy
    result, wrong = examine(context)
    assert result is None and "was replaced by another one" in wrong
