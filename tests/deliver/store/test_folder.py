"""A folder as a store, in what the contract does not ask of it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.faults.errors import CkptdError, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.store import folder as module
from handlers.deliver.store.folder import Folder
from handlers.deliver.target import Resume
from handlers.deliver.version import BLOCK, SourceFile
from tests.deliver.contract.bench import Bench, started
from tests.deliver.exports import Export
from tests.deliver.sites.store import SITE


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with started(SITE, tmp_path) as made:
        yield made


def base(bench: Bench) -> Path:
    assert isinstance(bench.site, SITE)
    return bench.site.base


@pytest.mark.parametrize("point", ["deliver.put", "deliver.compared", "deliver.finished", "deliver.before-end", "deliver.after-end"])
def test_a_reader_never_sees_half_of_what_is_killed(bench: Bench, point: str) -> None:
    first, second = bench.export(100), bench.export(200, own=True)
    old = bench.deliver(first).receipt
    with bench.reader(first, second) as seen:
        bench.site.variables["CKPTD_FAULT"] = point
        killed = bench.start(second).wait()
        assert killed.killed
        del bench.site.variables["CKPTD_FAULT"]
        new = bench.deliver(second, resume=killed.notes).receipt
    assert seen[0] == old.version and bench.site.current("run-a") == new.version


def test_a_version_is_kept_apart_from_what_unfinished_attempts_left(bench: Bench) -> None:
    export = bench.export()
    bench.site.variables["CKPTD_FAULT"] = "deliver.compared"
    assert bench.start(export).wait().killed
    del bench.site.variables["CKPTD_FAULT"]
    (row,) = bench.listed("run-a")
    assert not row.whole and not row.current and not bench.site.visible("run-a")
    assert bench.remove(row.version).fault is None
    assert bench.listed() == [] and [path for path in base(bench).rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_contents_of_another_version_are_linked(bench: Bench) -> None:
    versions = [bench.deliver(bench.export(step, seed=1)).receipt.version for step in (100, 200)]
    inodes = {os.stat(base(bench) / version / "pytorch/model.safetensors").st_ino for version in versions}
    assert len(inodes) == 1


def test_a_version_has_the_manifest_of_what_lies_there_and_latest_names_it(bench: Bench) -> None:
    export = bench.export()
    receipt = bench.deliver(export, variants=("onnx",)).receipt
    run = base(bench) / "run-a"
    latest = json.loads((run / "latest.json").read_bytes())
    data = (run / latest["path"] / "MANIFEST.json").read_bytes()
    assert latest["manifest_sha256"] == hashlib.sha256(data).hexdigest() and latest["step"] == 100
    assert receipt.version == f"run-a/{latest['version']}"
    for row in json.loads(data)["files"]:
        contents = (run / latest["path"] / row["path"]).read_bytes()
        assert (len(contents), hashlib.sha256(contents).hexdigest()) == (row["size"], row["sha256"])
    assert {row["path"] for row in json.loads(data)["files"]} == set(bench.site.expected(export, ("onnx",)))


def test_others_may_read_what_they_may_read_of_the_export(bench: Bench) -> None:
    export = bench.export()
    (export.folder / "pytorch/model.safetensors").chmod(0o640)
    version = bench.deliver(export).receipt.version
    assert (base(bench) / version / "pytorch/model.safetensors").stat().st_mode & 0o777 == 0o640


def test_something_else_under_a_versions_name_stays_and_is_said(bench: Bench) -> None:
    export = bench.export()
    version = bench.deliver(export).receipt.version
    manifest = base(bench) / version / "MANIFEST.json"
    theirs = json.dumps({**json.loads(manifest.read_bytes()), "files": []}).encode()
    manifest.write_bytes(theirs)
    end = bench.deliver(export).end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_CONFLICT
    assert manifest.read_bytes() == theirs


def test_a_latest_that_a_person_wrote_stays_unless_it_is_forced(bench: Bench) -> None:
    (base(bench) / "run-a").mkdir()
    latest = base(bench) / "run-a/latest.json"
    latest.write_text("a person's")
    receipt = bench.deliver(bench.export()).receipt
    assert not receipt.moved and "did not write" in receipt.why_not_moved and latest.read_text() == "a person's"
    assert bench.deliver(bench.export(), move="force").receipt.moved


def test_a_folder_that_is_not_there_is_waited_for_and_not_made(bench: Bench) -> None:
    base(bench).rmdir()
    for action in ("deliver", "look", "list"):
        end = bench.deliver(bench.export(), action=action).end
        assert end.fault and not end.permanent and end.fault.code == FaultCode.DELIVERY_FAR_END
    assert not base(bench).exists()


def test_files_of_a_person_in_a_version_that_is_taken_away_stay(bench: Bench) -> None:
    old = bench.deliver(bench.export(100)).receipt.version
    bench.deliver(bench.export(200))
    (base(bench) / old / "notes.txt").write_text("a person's")
    assert bench.remove(old).fault is None
    assert [path.name for path in (base(bench) / old).rglob("*")] == ["notes.txt"]


CHANGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, 1000),
    "other bytes": lambda path: path.write_bytes(b"x" * path.stat().st_size),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_was_damaged_there_is_put_again(bench: Bench, change: str) -> None:
    export = bench.export()
    version = bench.deliver(export).receipt.version
    CHANGES[change](base(bench) / version / "pytorch/model.safetensors")
    again = bench.deliver(export)
    assert again.receipt.version == version and 0 < again.receipt.sent <= 160_000
    bench.assert_whole(export)
    assert any("pytorch/model.safetensors" in text for text in again.warnings) == (change == "other bytes")


def test_damaged_contents_of_another_version_are_not_taken_over(bench: Bench) -> None:
    first, second = bench.export(100), bench.export(200, seed=100)
    version = bench.deliver(first).receipt.version
    CHANGES["other bytes"](base(bench) / version / "pytorch/model.safetensors")
    assert bench.deliver(second).receipt.moved
    (new,) = (seen for seen in bench.site.visible("run-a").values() if seen["report.json"] == second.digests["report.json"])
    assert dict(new) == dict(bench.site.expected(second))


@pytest.mark.parametrize("link", [False, True])
def test_what_has_a_versions_name_stays_and_is_said(bench: Bench, link: bool) -> None:
    first, export = bench.export(100), bench.export(200)
    old = bench.deliver(first).receipt.version
    name = base(bench) / "run-a" / f"run-a-200-{_digest(export)[:8]}"
    name.symlink_to("nowhere") if link else name.write_text("a person's")
    end = bench.deliver(export).end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_CONFLICT and str(name) in end.fault.sentence()
    assert bench.site.current("run-a") == old and os.path.lexists(name) and not name.is_dir()
    name.unlink()
    receipt = bench.deliver(export).receipt
    assert receipt.sent == 0 and receipt.moved
    bench.assert_whole(first, export)


def _digest(export: Export) -> str:
    lines = [f"{digest} {(export.folder / path).stat().st_size} {path}\n" for path, digest in sorted(export.digests.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def large(tmp_path: Path) -> SourceFile:
    data = random.Random(1).randbytes(5 * BLOCK + 10)
    (tmp_path / "source").write_bytes(data)
    return SourceFile("onnx/model.onnx", tmp_path / "source", len(data), hashlib.sha256(data).hexdigest())


class Cut(Exception):
    pass


def test_a_file_goes_on_from_what_was_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", BLOCK)
    file, notes, blocks = large(tmp_path), dict[str, Any](), list[int]()
    store = Folder(str(tmp_path / "far"), Resume(notes))
    (tmp_path / "far").mkdir()

    def cut(count: int) -> None:
        blocks.append(count)
        if len(blocks) == 4:
            raise Cut

    with pytest.raises(Cut):
        store.send("run/run-1-00000000/onnx/model.onnx", file, cut)
    sent = list[int]()
    assert Folder(str(tmp_path / "far"), Resume(notes)).send("run/run-1-00000000/onnx/model.onnx", file, sent.append) == 3 * BLOCK
    assert sum(sent) == file.size - 3 * BLOCK
    assert b"".join(store.stream("run/run-1-00000000/onnx/model.onnx")) == file.source.read_bytes()


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = large(tmp_path)
    (tmp_path / "far").mkdir()

    def full(*words: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CkptdError) as raised:
        Folder(str(tmp_path / "far"), Resume()).send("run/run-1-00000000/onnx/model.onnx", file, lambda count: None)
    assert isinstance(raised.value, Retryable) and raised.value.fault.code == FaultCode.DELIVERY_FULL


def test_a_block_that_was_written_in_part_is_written_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, pwrite = large(tmp_path), os.pwrite
    (tmp_path / "far").mkdir()
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: pwrite(handle, memoryview(data)[: max(1, len(data) // 2)], at))
    store = Folder(str(tmp_path / "far"), Resume())
    store.send("run/run-1-00000000/onnx/model.onnx", file, lambda count: None)
    assert b"".join(store.stream("run/run-1-00000000/onnx/model.onnx")) == file.source.read_bytes()
