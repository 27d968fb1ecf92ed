"""What an interrupted merge left is taken over only where it is whole and was made for exactly this merge."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.disk.files import sha256_file
from daemon.contract.faults.errors import Permanent, Retryable
from handlers.merge import MergeOptions, merge_adapter
from handlers.merge.engine import resume_ledger, streaming
from tests.merge import helpers
from tests.merge.interrupted import Case, Stop, digests, marks, noted, one_worker


def flip(path: Path) -> None:
    """Another byte at the same size and the same times."""
    times = path.stat()
    with open(path, "r+b") as stream:
        stream.seek(-5, os.SEEK_END)
        byte = stream.read(1)[0]
        stream.seek(-5, os.SEEK_END)
        stream.write(bytes([byte ^ 0x10]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def into_link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "missing": Path.unlink,
    "link": into_link,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_finished_file_that_was_damaged_since_is_made_again_and_no_other(case: Case, tmp_path: Path, damage: str) -> None:  # R1.5
    output = case.interrupted(tmp_path / "out", 3)
    first, second, third = noted(output)
    before = marks(output, [first, third])
    DAMAGES[damage](output / second)
    assert case.merge(output).figures.resumed_files == 2
    assert digests(output) == case.digests
    assert marks(output, [first, third]) == before
    assert not (output / second).is_symlink()


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


LEDGERS: dict[str, Callable[[Path], None]] = {
    "torn": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "garbage": lambda path: path.write_bytes(bytes(range(256))) and None,
    "a list": lambda path: path.write_text("[1, 2]") and None,
    "newer": lambda path: edit(path, lambda value: value.update(version=value["version"] + 1)),
    "other engine": lambda path: edit(path, lambda value: value["made_for"].update(engine=0)),
    "other adapter": lambda path: edit(path, lambda value: value["made_for"]["adapters"][0].update({"adapter_config.json": "0"})),
    "wrong entry": lambda path: edit(path, lambda value: value["files"].update({"x.safetensors": 5})),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("kind", LEDGERS)
def test_a_ledger_that_does_not_belong_here_makes_the_merge_begin_again(case: Case, tmp_path: Path, kind: str) -> None:
    output = case.interrupted(tmp_path / "out", 2)
    LEDGERS[kind](output / resume_ledger.LEDGER)
    assert case.merge(output).figures.resumed_files == 0
    assert digests(output) == case.digests


def test_a_ledger_cannot_name_files_outside_of_the_merge(case: Case, tmp_path: Path) -> None:
    output = case.interrupted(tmp_path / "out", 1)
    outside = tmp_path / "outside"
    outside.write_text("mine")
    entry = {"size": 4, "sha256": sha256_file(outside)}
    edit(output / resume_ledger.LEDGER, lambda value: value["files"].update({"../outside": entry, "notes": entry}))
    (output / "notes").write_text("mine")
    assert case.merge(output).figures.resumed_files == 1
    assert digests(output) == case.digests
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("what", ["base", "adapter", "adapter's scale"])
def test_another_base_or_adapter_makes_the_merge_begin_again(case: Case, tmp_path: Path, what: str) -> None:
    base, adapter = shutil.copytree(case.base, tmp_path / "base"), shutil.copytree(case.adapter, tmp_path / "adapter")
    mine = Case(base, adapter, case.digests, case.seconds)
    output = mine.interrupted(tmp_path / "out", len(case.shards) - 1)
    if what == "base":
        flip_back = (base / case.shards[-1]).stat()
        helpers.rewrite(base / case.shards[-1], lambda table: [tensor.mul_(2) for tensor in table.values()])
        assert (base / case.shards[-1]).stat().st_size == flip_back.st_size
    elif what == "adapter":
        helpers.rewrite(adapter / "adapter_model.safetensors", lambda table: [tensor.mul_(2) for tensor in table.values()])
    else:
        helpers.edit_config(adapter, lora_alpha=5)
    report = mine.merge(output)
    assert report.figures.resumed_files == 0
    (tmp_path / "fresh").mkdir()
    merge_adapter(adapter, base, tmp_path / "fresh")
    assert digests(output) == digests(tmp_path / "fresh") != case.digests


def test_another_dtype_of_the_output_makes_the_merge_begin_again(case: Case, tmp_path: Path) -> None:
    output = case.interrupted(tmp_path / "out", 2)
    assert case.merge(output, dtype="float32").figures.resumed_files == 0
    (tmp_path / "fresh").mkdir()
    merge_adapter(case.adapter, case.base, tmp_path / "fresh", MergeOptions(dtype="float32"))
    assert digests(output) == digests(tmp_path / "fresh") != case.digests


def test_a_merge_into_files_of_another_size_goes_on_where_it_stopped(case: Case, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()

    def stop(fraction: float, message: str) -> None:
        if len(noted(output)) == 2:
            raise Stop

    with one_worker(), pytest.raises(Stop):
        case.merge(output, progress=stop, max_shard_size=65_536)
    assert case.merge(output, max_shard_size=65_536).figures.resumed_files == 2
    (tmp_path / "fresh").mkdir()
    merge_adapter(case.adapter, case.base, tmp_path / "fresh", *helpers.settings(max_shard_size=65_536))
    assert digests(output) == digests(tmp_path / "fresh")


def test_a_base_that_changes_while_it_is_merged_is_noticed_and_nothing_of_it_is_kept(case: Case, tmp_path: Path) -> None:
    base, output = shutil.copytree(case.base, tmp_path / "base"), tmp_path / "out"
    output.mkdir()
    mine = Case(base, case.adapter, case.digests, case.seconds)

    def disturb(fraction: float, message: str) -> None:
        if len(noted(output)) == 2:
            os.utime(base / case.shards[2])

    with one_worker(), pytest.raises(Retryable, match="changed while it was read") as caught:
        mine.merge(output, progress=disturb)
    assert caught.value.fault.code == "base-changed"
    assert mine.merge(output).figures.resumed_files == 0
    assert digests(output) == case.digests


def test_whatever_else_lies_in_the_folder_is_removed(case: Case, tmp_path: Path) -> None:
    output = case.interrupted(tmp_path / "out", 2)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("stays")
    (output / f".{resume_ledger.LEDGER}.4711.tmp").write_text("{")
    (output / "tokenizer.json").write_text("{}")
    (output / "folder/deeper").mkdir(parents=True)
    (output / "folder/deeper/file").write_text("x")
    (output / "link").symlink_to(precious)
    assert case.merge(output).figures.resumed_files == 2
    assert digests(output) == case.digests
    assert sorted(path.name for path in output.iterdir()) == sorted(case.digests)
    assert (precious / "file").read_text() == "stays"


def test_without_resume_a_folder_that_is_not_empty_is_refused_and_left_alone(case: Case, tmp_path: Path) -> None:
    output = case.interrupted(tmp_path / "out", 2)
    before = digests(output)
    with pytest.raises(Permanent, match="the output folder is not empty") as caught:
        merge_adapter(case.adapter, case.base, output)
    assert caught.value.fault.code == "not-empty"
    assert digests(output) == before


def test_a_kept_file_that_does_not_hold_base_and_adapter_is_found_though_it_has_its_digest(case: Case, tmp_path: Path) -> None:
    output = case.interrupted(tmp_path / "out", 3)
    wrong = output / noted(output)[1]
    flip(wrong)
    edit(output / resume_ledger.LEDGER, lambda value: value["files"][wrong.name].update(sha256=sha256_file(wrong)))
    with pytest.raises(Permanent, match=r"is not base|should be the base's") as caught:
        case.merge(output, verify="full")
    assert caught.value.fault.code == "merge-not-exact"


@pytest.mark.parametrize("what", ["base", "adapter"])
def test_a_file_that_was_written_wrong_is_not_recorded_as_finished(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A bit that flips on its way to the disk, or a factor that was read wrong: the next attempt writes the file again."""
    output = tmp_path / "out"
    output.mkdir()
    if what == "base":
        write = streaming.write_from

        def flipped(descriptor: int, view: memoryview, offset: int) -> None:
            write(descriptor, view, offset)
            if len(view) > 64:
                write(descriptor, memoryview(bytes([view[1] ^ 4])), offset + 1)

        monkeypatch.setattr(streaming, "write_from", flipped)
    else:
        prepare = streaming.prepare
        monkeypatch.setattr(streaming, "prepare", lambda operation, read: prepare(operation, lambda key: read(key).roll(1, 0)))
    with pytest.raises(Permanent) as caught:
        case.merge(output)
    assert caught.value.fault.code == "merge-not-exact"
    for name in noted(output):
        assert sha256_file(output / name) == case.digests[name]
    monkeypatch.undo()
    case.merge(output)
    assert digests(output) == case.digests
