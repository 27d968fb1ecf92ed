"""Who may read an export: nobody who could not read all that it was made of, unless the configuration says so."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.pinning.pins import SourceMode, make_pin, modes_of
from daemon.config.settings import OutputSettings
from daemon.contract.jobs.messages import CheckpointRef
from daemon.journal.rows import JobRow
from daemon.publishing.access import Access, access_of, folder_mode, narrowed
from daemon.publishing.exchange.beneath import held_below
from daemon.publishing.exchange.swap import swap
from daemon.publishing.publication import assemble
from daemon.publishing.verification import verify
from daemon.system.filesystems.private import private_files
from tests.detection.helpers import copy_of
from tests.journal.entries import WORK
from tests.publish.parts import parts, publish, swap_in

BITS = st.integers(0, 0o777).map(lambda mode: mode | 0o400)
MODES = st.sampled_from(["", "0644", "0640", "0660", "0600", "0604", "664"])


def published_modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def job(pico_checkpoint: Path, pico_base: Path, tmp_path: Path) -> JobRow:
    """A pinned job, in a root of its own, with copies of checkpoint and base whose modes the test sets."""
    checkpoint = copy_of(pico_checkpoint, tmp_path / "runs" / "run" / "checkpoint-4")
    base = tmp_path / "base"
    base.mkdir()
    for file in pico_base.iterdir():
        (base / file.name).write_bytes(file.read_bytes())
    for path in (*tmp_path.rglob("*"),):
        path.chmod(0o755 if path.is_dir() else 0o644)
    reference = CheckpointRef(
        root=str(tmp_path / "runs"), run="run", step=4, path=str(checkpoint), layout="trainer-adapter", digest="x", method="LORA"
    )
    return JobRow("job", "running", reference, WORK, tmp_path / "pin", tmp_path / "exports" / "run", base, "2026", None, None)


def pin(job: JobRow) -> None:
    checkpoint = Path(job.checkpoint.path)
    make_pin(checkpoint, job.pin, fingerprint(checkpoint), top=Path(job.checkpoint.root))


def make(job: JobRow, access: Access, home: Path) -> Path:
    """Published as the runner does: everything before is private."""
    with private_files():
        assemble(parts(home / "sources", 1), home / "staging" / "publish", {}, access=access)
        swap_in(home / "staging" / "publish", job.target)
    return job.target


def test_an_export_of_what_all_may_read_is_readable_by_all_whom_the_umask_lets(job: JobRow, tmp_path: Path) -> None:
    pin(job)
    access = access_of(job, OutputSettings())
    assert access.why is None
    folder = make(job, access, tmp_path)
    umask = os.umask(0)
    os.umask(umask)
    assert published_modes(folder) == {0o666 & ~umask}
    assert folder.stat().st_mode & 0o777 == (folder / "pytorch").stat().st_mode & 0o777 == 0o777 & ~umask


SECRETS = {
    "a file of the checkpoint": "runs/run/checkpoint-4/adapter_config.json",
    "the checkpoint's folder": "runs/run/checkpoint-4",
    "the run's folder": "runs/run",
    "the root": "runs",
    "a file of the base": "base/config.json",
    "the base's folder": "base",
}


@pytest.mark.parametrize("secret", SECRETS, ids=lambda name: name.replace(" ", "-"))
def test_an_export_of_what_only_its_owner_may_read_is_its_owners_alone(job: JobRow, tmp_path: Path, secret: str) -> None:
    path = tmp_path / SECRETS[secret]
    path.chmod(0o700 if path.is_dir() else 0o600)
    pin(job)
    access = access_of(job, OutputSettings(mode="0644"))
    folder = make(job, access, tmp_path)
    assert published_modes(folder) == {0o600}
    assert folder.stat().st_mode & 0o777 == (folder / "pytorch").stat().st_mode & 0o777 == 0o700
    assert access.why is not None and "readable by its owner only" in access.why and "wider_than_sources" in access.why
    assert str(path) in access.why


@pytest.mark.parametrize(
    ("others", "folder", "expected"), [(0o644, 0o755, 0o644), (0o640, 0o755, 0o640), (0o600, 0o755, 0o600), (0o644, 0o700, 0o600)]
)
def test_the_mode_that_safetensors_gives_every_file_takes_nothing_away(job: JobRow, others: int, folder: int, expected: int) -> None:
    """The file counts as what was written beside it: who keeps a training private does it by the folder, or by the umask."""
    checkpoint, base = Path(job.checkpoint.path), job.base
    assert base is not None
    for path in (*checkpoint.iterdir(), *base.iterdir()):
        path.chmod(0o600 if path.suffix == ".safetensors" else others)
    checkpoint.chmod(folder)
    pin(job)
    access = access_of(job, OutputSettings(mode="0644"))
    assert access.file == expected and (access.why is None) == (expected == 0o644)
    assert ".safetensors" not in (access.why or "")


def test_weights_alone_count_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    file.chmod(0o600)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "config.json").write_text("{}")
    assert modes_of([file, tmp_path / "sub" / "config.json"], tmp_path)[0].mode == 0o600


@pytest.mark.parametrize("setting", ["prompts", "data"])
@pytest.mark.parametrize("secret", ["texts/train/a.jsonl", "texts/train", "texts"])
def test_an_export_whose_texts_only_their_owner_may_read_is_its_owners_alone(
    job: JobRow, tmp_path: Path, setting: str, secret: str
) -> None:  # the report shows some of them
    file = tmp_path / "texts" / "train" / "a.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"text": "private"}\n')
    for path in (file, file.parent, file.parent.parent):
        path.chmod(0o755 if path.is_dir() else 0o644)
    pin(job)
    validation = job.work.validation.model_copy(update={setting: str(tmp_path / "texts")})
    told = dataclasses.replace(job, options=job.work.model_copy(update={"validation": validation}))
    assert access_of(told, OutputSettings(mode="0644")).why is None
    path = tmp_path / secret
    path.chmod(0o700 if path.is_dir() else 0o600)
    access = access_of(told, OutputSettings(mode="0644"))
    assert access.file == 0o600 and access.why is not None and str(file) in access.why


def test_the_pin_remembers_it_after_rotation_has_taken_the_checkpoint(job: JobRow) -> None:
    checkpoint = Path(job.checkpoint.path)
    (checkpoint / "adapter_model.safetensors").chmod(0o640)
    pin(job)
    for file in checkpoint.iterdir():
        file.unlink()
    checkpoint.rmdir()
    assert access_of(job, OutputSettings(mode="0644")).file in (0o640, 0o600)


def test_a_pin_that_remembers_nothing_is_judged_by_the_checkpoint(job: JobRow) -> None:
    pin(job)
    (job.pin / ".access").unlink()
    (Path(job.checkpoint.path) / "adapter_config.json").chmod(0o600)
    assert access_of(job, OutputSettings(mode="0644")).file == 0o600


def test_the_configuration_may_say_that_it_is_published_in_any_case(job: JobRow, tmp_path: Path) -> None:
    (Path(job.checkpoint.path) / "adapter_config.json").chmod(0o600)
    pin(job)
    access = access_of(job, OutputSettings(mode="0640", wider_than_sources=True))
    assert published_modes(make(job, access, tmp_path)) == {0o640} and access.why is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another group")
def test_a_group_that_is_configured_gets_the_export(job: JobRow, tmp_path: Path) -> None:
    (Path(job.checkpoint.path) / "adapter_model.safetensors").chmod(0o640)
    pin(job)
    access = access_of(job, OutputSettings(mode="0644", group="daemon"))
    folder = make(job, access, tmp_path)
    assert published_modes(folder) == {0o640}
    assert {path.stat().st_gid for path in (folder, *folder.rglob("*"))} == {access.group}


def test_a_copy_onto_another_file_system_keeps_the_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        assemble(parts(tmp_path / "sources", 1), tmp_path / "staging" / "publish", {}, access=Access(0o600))
        with private_files():
            swap_in(tmp_path / "staging" / "publish", shared / "run" / "step-1")
        assert published_modes(shared / "run" / "step-1") == {0o600}
        publish(tmp_path, 2, shared / "run" / "step-1")
        assert published_modes(shared / "run" / "step-1") != {0o600}
    finally:
        shutil.rmtree(shared)


SOURCES = st.lists(st.builds(SourceMode, st.just("/f"), BITS, st.sampled_from([1, 2])), max_size=5)


@given(MODES, st.integers(0, 0o777), SOURCES, st.sampled_from([1, 2]), st.booleans())
@example("0644", 0o022, [SourceMode("/f", 0o600, 1)], 1, False)
@settings(max_examples=500)
def test_no_bit_is_set_that_not_every_source_has(mode: str, umask: int, sources: list[SourceMode], group: int, chosen: bool) -> None:
    most = int(mode, 8) if mode else 0o666 & ~umask
    file, because = narrowed(most, sources, group, chosen=chosen)
    assert file & ~most == 0
    for source in sources:
        assert not file & 0o004 or source.mode & 0o004
        assert not file & 0o040 or source.mode & 0o040
        if source.group != group and not source.mode & 0o004 and not chosen:
            assert not file & 0o070, "another group may read it"
    assert (because is None) == (file == most)
    assert folder_mode(file) & 0o111 == (file & 0o444) >> 2


@pytest.mark.parametrize("mode", ["0755", "0444", "rw", "9", "06640"])
def test_a_mode_that_is_none_is_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="no mode of files"):
        OutputSettings(mode=mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize(("mode", "can"), [(0o644, True), (0o640, False), (0o600, False)])
def test_another_user_can_verify_what_that_user_may_read_and_is_told_what_not(tmp_path: Path, mode: int, can: bool) -> None:
    home = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        home.chmod(0o755)
        with private_files():
            assemble(parts(tmp_path / "sources", 1), home / ".staging" / "publish", {}, access=Access(mode))
            top = home / "exports"
            top.mkdir()
            top.chmod(0o755)
            with held_below(top, top / "run", make=True, access=Access(mode, around=0o755)) as around:
                swap(home / ".staging" / "publish", around.spot("step-1"), top, None)
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                said = "sound" if verify(top / "run" / "step-1").sound else "not sound"
            except OSError as error:
                said = f"{error.strerror}"
            os.write(writer, said.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 1000).decode() == ("sound" if can else "Permission denied")
    finally:
        os.close(reader)
        os.close(writer)
        shutil.rmtree(home)
