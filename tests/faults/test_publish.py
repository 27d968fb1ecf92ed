"""Publication, sealing and pins on a disk that fails: the old or the new, whole, and the next try ends it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.checkpoints.files import export_files
from daemon.contract.disk.files import sha256_file
from tests.faults.forks import Ending, Forks
from tests.faults.layer import Faults, Rule
from tests.faults.publish_work import NEW, OLD, target_in
from tests.publish.parts import expected, listing, version_of

KINDS = ("write", "fsync", "rename", "link", "symlink", "mkdir", "open", "unlink")
ERRORS = (errno.EIO, errno.ENOSPC, pytest.param(errno.EROFS, marks=pytest.mark.slow))
FOR = {"once": 1, "for good": None}
lasting_or_not = pytest.mark.parametrize("lasting", ["once", pytest.param("for good", marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    with Faults(kinds=KINDS) as layer:
        yield layer


@pytest.fixture(scope="module")
def forks(faults: Faults) -> Forks:
    return Forks(faults, "tests.faults.publish_work")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Path:
    """A home with the old version published. To be copied."""
    home = tmp_path_factory.mktemp("published")
    assert forks.call("publish", str(home), OLD).good
    return home


def is_sentence_to_be(ending: Ending) -> bool:
    """An OSError becomes a sentence where the operation is known; ours is one already."""
    return ending.error is not None and ("OSError" in ending.error["kinds"] or "CkptdError" in ending.error["kinds"])


def fresh(original: Path, copy: Path) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(original, copy, symlinks=True))


@lasting_or_not
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_fails_a_reader_sees_one_whole_version_and_the_next_try_ends_it(
    faults: Faults, forks: Forks, published: Path, tmp_path: Path, kind: str, number: int, lasting: str
) -> None:  # R6.5
    home = fresh(published, tmp_path / "home")
    below = home / "exports"
    assert forks.call("publish", str(home), NEW, rules=(Rule(kind, below=below),)).good
    total = faults.seen
    assert total > 0
    for nth in range(1, total + 1):
        fresh(published, home)
        ending = forks.call("publish", str(home), NEW, rules=(Rule(kind, number, nth=nth, calls=FOR[lasting], below=below),))
        told = f"{kind} {nth} of {total} failed: {faults.failed}, {ending}"
        assert ending.good or is_sentence_to_be(ending), told
        assert listing(target_in(home)) == expected(), told
        version = version_of(target_in(home))
        if "swapped" in ending.told:
            assert version == NEW, told
        assert (below / "run" / "latest").readlink() == Path("step-4"), told
        assert version_of(below / "run" / "latest") == version, told
        publish_again(home, forks)


def publish_again(home: Path, forks: Forks) -> None:
    """In another process, as after a restart."""
    assert forks.call("publish", str(home), NEW).good
    assert version_of(target_in(home)) == NEW
    assert listing(target_in(home)) == expected()
    assert sorted(os.listdir(home / "exports" / "run")) == ["latest", "step-4"], "something was left"
    assert listing(home / "exports" / ".staging") == []


@pytest.mark.parametrize("exchange", ["names are exchanged", "this file system can't exchange names"])
def test_all_is_durable_before_the_name_is_given_and_the_name_before_the_old_export_goes(
    faults: Faults, forks: Forks, published: Path, tmp_path: Path, exchange: str
) -> None:  # R6.5
    """A power cut may lose every name that its folder was not synced for, so the order is what counts."""
    home = fresh(published, tmp_path / "home")
    staged, target = home / "exports" / ".staging" / "job" / "publish", target_in(home)
    rules = tuple(Rule(kind, below=home / "exports") for kind in ("fsync", "rename", "unlink"))
    # The first renaming meets the old export and is refused by the kernel, the second is the exchange.
    refused = () if exchange == "names are exchanged" else (Rule("rename", errno.EINVAL, nth=2, below=target),)
    assert forks.call("publish", str(home), NEW, rules=(*refused, *rules)).good
    assert len(faults.failed) == len(refused) and version_of(target) == NEW
    calls = faults.calls
    tried, *_, named = (at for at, call in enumerate(calls) if call.kind == "rename" and str(target) in call.paths)
    synced = {path for call in calls[:tried] if call.kind == "fsync" for path in call.paths}
    folders = {str(path) for path in (staged, *(staged / name.relative_to(target) for name in target.rglob("*") if name.is_dir()))}
    assert folders <= synced
    assert any("MANIFEST.json" in path for path in synced), synced
    old = str(target.with_name(f".{target.name}")) if refused else str(staged)
    removed = next(at for at, call in enumerate(calls) if at > named and call.kind == "unlink" and call.paths[0].startswith(old))
    assert str(target.parent) in {path for call in calls[named:removed] if call.kind == "fsync" for path in call.paths}


def test_every_new_folder_is_made_durable_in_the_one_that_holds_it(faults: Faults, forks: Forks, tmp_path: Path) -> None:
    rules = tuple(Rule(kind, below=tmp_path) for kind in ("mkdir", "fsync"))
    assert forks.call("folders", str(tmp_path / "a" / "b" / "c"), rules=rules).good
    for made in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"):
        at = next(at for at, call in enumerate(faults.calls) if call.kind == "mkdir" and call.paths == (str(made),))
        assert str(made.parent) in {path for call in faults.calls[at:] if call.kind == "fsync" for path in call.paths}, made
    assert forks.call("folders", str(tmp_path / "a" / "b" / "c"), rules=rules).good
    assert [call for call in faults.calls if call.kind == "fsync"] == [], "what is there already costs nothing"


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", ["fsync", "open"])
def test_what_could_not_be_made_durable_is_not_sealed(faults: Faults, forks: Forks, tmp_path: Path, kind: str, number: int) -> None:
    folder = tmp_path / "output"
    for name in ("a", "sub/b"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(name)
    good = forks.call("seal_folder", str(folder), rules=(Rule(kind, below=folder),))
    assert [entry["path"] for entry in good.told[0]] == ["a", "sub/b"]
    if kind == "fsync":
        assert {call.paths[0] for call in faults.calls} == {str(folder / name) for name in ("", "a", "sub", "sub/b")}
    for nth in range(1, faults.seen + 1):
        ending = forks.call("seal_folder", str(folder), rules=(Rule(kind, number, nth=nth, below=folder),))
        assert is_sentence_to_be(ending), f"{kind} {nth} failed and nobody was told: {faults.failed}"
        assert forks.call("seal_folder", str(folder)).told == good.told


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", ["write", "fsync", "rename", "open"])
def test_an_atomic_write_that_fails_leaves_the_old_content_and_nothing_beside_it(
    faults: Faults, forks: Forks, tmp_path: Path, kind: str, number: int
) -> None:
    file = tmp_path / "folder" / "file"
    file.parent.mkdir()
    assert forks.call("write", str(file), "old", rules=(Rule(kind, below=file.parent),)).good
    for nth in range(1, faults.seen + 1):
        file.write_text("old")
        ending = forks.call("write", str(file), "new", rules=(Rule(kind, number, nth=nth, below=file.parent),))
        assert is_sentence_to_be(ending), f"{kind} {nth} failed and nobody was told"
        assert file.read_text() in ("old", "new")
        assert file.read_text() == "old" or kind in ("fsync", "open"), "after the rename only the folder is left to make durable"
        assert os.listdir(file.parent) == ["file"]


def make_checkpoint(folder: Path) -> Path:
    """Names that an export reads; what is in them does not matter to a pin."""
    (folder / "chat_templates").mkdir(parents=True)
    for name in ("adapter_config.json", "tokenizer.json", "trainer_state.json", "chat_templates/tool.jinja"):
        (folder / name).write_text(name)
    (folder / "adapter_model.safetensors").write_bytes(os.urandom(1 << 18))
    (folder / "optimizer.pt").write_bytes(b"not read")
    return folder


def state_of(folder: Path) -> list[tuple[object, ...]]:
    """All of a training directory that may not change."""
    rows: list[tuple[object, ...]] = []
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.stat()
        content = sha256_file(path) if path.is_file() else None
        rows.append((str(path), status.st_ino, status.st_mtime_ns, status.st_mode, status.st_size, content))
    return rows


@lasting_or_not
@pytest.mark.parametrize("copy_limit", [0, pytest.param(1 << 30, marks=pytest.mark.slow)], ids=["links", "copies"])
@pytest.mark.parametrize("number", [*ERRORS, pytest.param(errno.EMFILE, marks=pytest.mark.slow)], ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", ["write", "fsync", "link", "mkdir", "open", "unlink"])
def test_a_pin_is_whole_or_not_there_and_the_checkpoint_is_never_touched(
    faults: Faults, forks: Forks, tmp_path: Path, kind: str, number: int, copy_limit: int, lasting: str
) -> None:  # R1.1
    checkpoint, target = make_checkpoint(tmp_path / "run" / "checkpoint-4"), tmp_path / "pins" / "job"
    wanted, before = {name: sha256_file(checkpoint / name) for name in export_files(checkpoint)}, state_of(tmp_path / "run")
    call = ("pin", str(checkpoint), str(target), copy_limit)
    assert forks.call(*call, rules=(Rule(kind, below=target.parent),)).good
    total = faults.seen
    if copy_limit == 0 and kind == "link":
        assert total > 0
    for nth in range(1, total + 1):
        shutil.rmtree(target.parent)
        ending = forks.call(*call, rules=(Rule(kind, number, nth=nth, calls=FOR[lasting], below=target.parent),))
        told = f"{kind} {nth} of {total} failed: {faults.failed}, {ending}"
        assert ending.good or is_sentence_to_be(ending), told
        if ending.good:
            assert {name: sha256_file(target / name) for name in export_files(target)} == wanted, told
        elif lasting == "once":  # where nothing at all can be removed any more, the next try removes it
            assert not target.exists(), told
        assert state_of(tmp_path / "run") == before, told
        assert forks.call(*call).good, "the next try"
        assert {name: sha256_file(target / name) for name in export_files(target)} == wanted
        assert sorted(os.listdir(target.parent)) == ["job"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE], ids=errno.errorcode.get)
def test_a_checkpoint_that_can_not_be_read_is_not_pinned_in_part(faults: Faults, forks: Forks, tmp_path: Path, number: int) -> None:
    checkpoint, target = make_checkpoint(tmp_path / "run" / "checkpoint-4"), tmp_path / "pins" / "job"
    before = state_of(tmp_path / "run")
    call = ("pin", str(checkpoint), str(target), 1 << 30)
    assert forks.call(*call, rules=(Rule("open", below=checkpoint),)).good
    for nth in range(1, faults.seen + 1):
        shutil.rmtree(target, ignore_errors=True)
        ending = forks.call(*call, rules=(Rule("open", number, nth=nth, below=checkpoint),))
        assert is_sentence_to_be(ending), f"open {nth} failed and nobody was told"
        assert not target.exists()
        assert state_of(tmp_path / "run") == before


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_of_the_disk_leaves_nothing_whatever_fails(faults: Faults, forks: Forks, tmp_path: Path, kind: str, number: int) -> None:
    """And it says that a disk is full where, and only where, that was refused which a full disk refuses."""
    assert forks.call("tried", str(tmp_path), rules=(Rule(kind, below=tmp_path),)).told == [None]
    total = faults.seen
    assert total > 0
    for nth in range(1, total + 1):
        for lasting in FOR.values() if kind != "unlink" else (1,):  # what can't be removed stays
            ending = forks.call("tried", str(tmp_path), rules=(Rule(kind, number, nth=nth, calls=lasting, below=tmp_path),))
            told = f"{kind} {nth} of {total}, {lasting}: {ending}, failed on {faults.failed}"
            assert ending.good and os.listdir(tmp_path) == [], told
            if kind != "unlink":
                assert ending.told == [number if number == errno.ENOSPC else None], told
