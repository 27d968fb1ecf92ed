"""The pin and the identity: a snapshot that rotation cannot reach, and a digest of content alone."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from daemon.checkpoints.files import export_files, fingerprint
from daemon.checkpoints.inspection import inspect
from daemon.checkpoints.pinning.pins import ACCESS, LEFT_OUT, Moved, identify, make_pin, rewritten
from daemon.contract.disk.files import sha256_file
from daemon.contract.jobs.messages import BESIDE
from handlers.models import left_out
from handlers.models.files import PROCESSORS, TEMPLATES, TOKENIZER
from tests.detection.conftest import OtherUser
from tests.detection.helpers import change_weights, copy_of, set_state


@pytest.fixture
def checkpoint(pico_checkpoint: Path, tmp_path: Path) -> Path:
    return copy_of(pico_checkpoint, tmp_path / "run" / "checkpoint-4")


def test_a_pin_holds_exactly_what_an_export_reads_and_survives_rotation(checkpoint: Path, tmp_path: Path) -> None:  # R1.1
    expected = {name: sha256_file(checkpoint / name) for name in export_files(checkpoint)}
    make_pin(checkpoint, tmp_path / "pin", fingerprint(checkpoint))
    shutil.rmtree(checkpoint.parent)
    pinned = {path.name: sha256_file(path) for path in (tmp_path / "pin").iterdir() if path.name not in (ACCESS, LEFT_OUT)}
    assert pinned == expected
    assert "adapter_model.safetensors" in expected
    assert "optimizer.pt" not in expected
    assert inspect(tmp_path / "pin").complete
    assert (tmp_path / "pin").stat().st_mode & 0o777 == 0o700


def test_a_pin_holds_every_file_of_a_tokenizer_that_an_export_copies(checkpoint: Path, tmp_path: Path) -> None:
    names = [pattern.replace("*", "spiece") for pattern in (*TOKENIZER, *TEMPLATES, *PROCESSORS) if "." in pattern]
    assert "source.spm" in names and "spiece.model" in names
    for name in names:
        (checkpoint / name).write_text("{}")
    folders = [name for name in TEMPLATES if "." not in name]
    for name in folders:
        (checkpoint / name).mkdir()
        (checkpoint / name / "tool.jinja").write_text("{}")
    make_pin(checkpoint, tmp_path / "pin", fingerprint(checkpoint))
    pinned = {str(path.relative_to(tmp_path / "pin")) for path in (tmp_path / "pin").rglob("*")}
    assert {*names, *(f"{name}/tool.jinja" for name in folders)} <= pinned


def test_weights_of_a_whole_model_beside_an_adapter_are_pinned_without_a_copy_and_are_no_part_of_the_identity(
    checkpoint: Path, tmp_path: Path
) -> None:
    digest, before = identify(checkpoint), fingerprint(checkpoint)
    (checkpoint / "model.safetensors").write_bytes(b"merged")
    assert fingerprint(checkpoint) != before, "it is not taken while they are written"
    make_pin(checkpoint, tmp_path / "pin", fingerprint(checkpoint))
    assert (tmp_path / "pin" / BESIDE / "model.safetensors").read_bytes() == b"merged"
    assert identify(tmp_path / "pin") == identify(checkpoint) == digest
    (checkpoint / "model.safetensors").write_bytes(b"merged again")
    assert rewritten(tmp_path / "pin") is None, "its export goes on"


def test_a_pin_lists_what_was_left_behind_and_the_list_is_no_part_of_the_identity(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "notes.md").write_text("mine")
    (checkpoint / "runs").mkdir()
    digest = identify(checkpoint)
    make_pin(checkpoint, tmp_path / "pin", fingerprint(checkpoint))
    left = json.loads((tmp_path / "pin" / LEFT_OUT).read_text())
    assert {"notes.md", "runs/", "optimizer.pt"} <= set(left)
    assert not set(left) & set(export_files(checkpoint))
    assert LEFT_OUT == left_out.PIN_LIST
    assert identify(tmp_path / "pin") == digest


def test_a_pin_holds_the_modules_of_sentence_transformers_and_no_other_numbered_folder(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "2_Dense/notes.md", "3 more/config.json"):
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_text("{}")
    assert not [name for name in export_files(checkpoint) if "/" in name], "without modules.json they are anybody's"
    (checkpoint / "modules.json").write_text("[]")
    modules = {"modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"}
    assert {name for name in export_files(checkpoint) if "/" in name} == modules - {"modules.json"}
    make_pin(checkpoint, tmp_path / "pin", fingerprint(checkpoint))
    assert all((tmp_path / "pin" / name).is_file() for name in modules)
    before = identify(checkpoint)
    (checkpoint / "1_Pooling/config.json").write_text('{"pooling_mode": "cls"}')
    assert identify(checkpoint) != before, "another pooling is another model"


def test_python_files_count_beside_a_model_s_own_code_alone(checkpoint: Path) -> None:
    (checkpoint / "train.py").write_text("")
    (checkpoint / "attention.py").write_text("")
    assert not [name for name in export_files(checkpoint) if name.endswith(".py")]
    (checkpoint / "modeling_own.py").write_text("from .attention import Attention")
    assert {"modeling_own.py", "attention.py"} <= set(export_files(checkpoint))


def test_rewriting_the_checkpoint_in_place_does_not_reach_the_pin(checkpoint: Path, tmp_path: Path) -> None:
    make_pin(checkpoint, tmp_path / "pin", fingerprint(checkpoint))
    digest = identify(tmp_path / "pin")
    with open(checkpoint / "adapter_model.safetensors", "r+b") as stream:
        stream.write(bytes(1000))
    assert identify(tmp_path / "pin") == digest


def test_the_checkpoint_itself_is_left_as_it_was(checkpoint: Path, tmp_path: Path) -> None:
    def listing() -> list[tuple[str, int, int, int]]:
        return [(path.name, *(getattr(path.stat(), key) for key in ("st_ino", "st_mtime_ns", "st_nlink"))) for path in checkpoint.iterdir()]

    before, mtime = listing(), checkpoint.stat().st_mtime_ns
    make_pin(checkpoint, tmp_path / "pin", fingerprint(checkpoint))
    assert (listing(), checkpoint.stat().st_mtime_ns) == (before, mtime)


def test_a_checkpoint_that_moved_since_it_was_seen_is_not_pinned(checkpoint: Path, tmp_path: Path) -> None:  # R1.5
    stale = fingerprint(checkpoint)
    change_weights(checkpoint, 0.5)
    with pytest.raises(Moved):
        make_pin(checkpoint, tmp_path / "pin", stale)
    assert not (tmp_path / "pin").exists()


def test_a_checkpoint_that_vanished_is_not_pinned(checkpoint: Path, tmp_path: Path) -> None:
    seen = fingerprint(checkpoint)
    shutil.rmtree(checkpoint)
    with pytest.raises(Moved):
        make_pin(checkpoint, tmp_path / "pin", seen)
    assert not (tmp_path / "pin").exists()


def test_a_pin_is_whole_or_refused_when_a_trainer_begins_to_rewrite_meanwhile(checkpoint: Path, tmp_path: Path) -> None:  # R1.5
    file = checkpoint / "adapter_model.safetensors"
    size = file.stat().st_size

    def write(version: int, delay: float) -> None:
        time.sleep(delay)
        with open(file, "r+b", buffering=0) as stream:
            for _ in range(0, size, 512):
                stream.write(bytes([version]) * min(512, size - stream.tell()))

    outcomes = []
    for number in range(1, 81):
        content, seen, target = file.read_bytes(), fingerprint(checkpoint), tmp_path / f"pin-{number}"
        writer = threading.Thread(target=write, args=(number, number % 20 / 10_000))
        writer.start()
        try:
            make_pin(checkpoint, target, seen)
        except Moved:
            outcomes.append("moved")
            assert not target.exists()
        else:
            outcomes.append("pinned")
            assert (target / file.name).read_bytes() == content
        writer.join()
        time.sleep(0.01)  # longer than the clock of the file system's times needs for a step
    assert "moved" in outcomes


def test_a_checkpoint_that_may_not_be_read_leaves_no_pin_behind(checkpoint: Path, other_user: OtherUser) -> None:
    source = copy_of(checkpoint, other_user.folder / "checkpoint-4")
    (source / "adapter_model.safetensors").chmod(0o600)
    said = other_user.run(
        "from daemon.checkpoints.files import fingerprint; from daemon.checkpoints.pinning.pins import make_pin",
        "try: make_pin(folder / 'checkpoint-4', folder / 'pin', fingerprint(folder / 'checkpoint-4'))\n"
        "except PermissionError as error: print(error.filename, (folder / 'pin').exists())",
    )
    assert said == [f"{source}/adapter_model.safetensors False"]


def test_the_same_content_at_another_time_has_the_same_digest(checkpoint: Path, tmp_path: Path) -> None:
    digest = identify(checkpoint)
    for path in checkpoint.iterdir():
        os.utime(path, ns=(1, 1))
    assert identify(checkpoint) == digest
    assert identify(copy_of(checkpoint, tmp_path / "copy")) == digest


def test_what_training_logged_is_no_part_of_the_digest_but_every_weight_is(checkpoint: Path) -> None:
    digest = identify(checkpoint)
    set_state(checkpoint, best_metric=0.1, log_history=[])
    (checkpoint / "optimizer.pt").write_bytes(b"other")
    assert identify(checkpoint) == digest
    change_weights(checkpoint, 1e-3)
    assert identify(checkpoint) != digest


@pytest.mark.parametrize("name", ["adapter_config.json", "chat_template.jinja", "tokenizer.json"])
def test_every_file_that_an_export_reads_is_part_of_the_digest(checkpoint: Path, name: str) -> None:
    digest = identify(checkpoint)
    with open(checkpoint / name, "a") as stream:
        stream.write(" ")
    assert identify(checkpoint) != digest
