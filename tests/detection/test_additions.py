"""Adapters that are pinned beside a checkpoint's own, and what they make of its identity."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.inspection import inspect
from daemon.checkpoints.pinning.additions import changed, name_of, pin_additions, pin_again
from daemon.checkpoints.pinning.pins import identify, make_pin
from daemon.config.settings import AddedAdapter, BaseModelSettings, MergeSettings
from daemon.contract.faults.errors import Retryable
from daemon.contract.jobs.messages import ADDITIONS, Addition, CheckpointRef
from daemon.contract.values import digest_of
from tests.detection.helpers import change_weights, copy_of


@pytest.fixture
def adapter(pico_checkpoint: Path, tmp_path: Path) -> Path:
    return copy_of(pico_checkpoint, tmp_path / "other" / "checkpoint-4")


def pinned(checkpoint: Path, adapter: Path, pin: Path, reserve: int = 0) -> tuple[Addition, ...]:
    make_pin(checkpoint, pin, fingerprint(checkpoint))
    wanted = MergeSettings(add=(AddedAdapter(path=adapter, weight=0.5),))
    return pin_additions(wanted, inspect(checkpoint), BaseModelSettings(), pin, reserve).additions


def test_an_addition_lies_in_the_pin_and_is_no_part_of_the_checkpoint_s_own_content(
    pico_checkpoint: Path, adapter: Path, tmp_path: Path
) -> None:
    pin = tmp_path / "pin"
    (one,) = pinned(pico_checkpoint, adapter, pin)
    assert one == Addition(name="other/checkpoint-4", path=str(adapter), weight=0.5, digest=identify(adapter))
    assert identify(pin) == identify(pico_checkpoint) and inspect(pin / ADDITIONS / "0").complete
    change_weights(adapter, 0.5)
    assert changed((one,), pin, deep=True) is None, "it is a copy"
    change_weights(pin / ADDITIONS / "0", 0.5)
    assert changed((one,), pin, deep=False) is None
    assert changed((one,), pin, deep=True) == "other/checkpoint-4"
    shutil.rmtree(pin / ADDITIONS)
    assert changed((one,), pin, deep=False) == "other/checkpoint-4"


def test_a_retry_takes_the_addition_only_as_it_was(pico_checkpoint: Path, adapter: Path, tmp_path: Path) -> None:
    additions = pinned(pico_checkpoint, adapter, tmp_path / "pin")
    shutil.rmtree(tmp_path / "pin" / ADDITIONS)
    assert pin_again(additions, tmp_path / "pin")
    assert changed(additions, tmp_path / "pin", deep=True) is None
    change_weights(adapter, 0.5)
    assert not pin_again(additions, tmp_path / "pin")


def test_an_addition_waits_where_its_copy_has_no_room(
    pico_checkpoint: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.checkpoints.pinning.pins.clone", lambda source, target: False)  # a file system without reflinks
    with pytest.raises(Retryable, match="disk_reserve"):
        pinned(pico_checkpoint, adapter, tmp_path / "pin", reserve=1 << 60)


def test_an_adapter_is_called_by_its_folder(tmp_path: Path) -> None:
    assert (name_of(tmp_path / "style"), name_of(tmp_path / "run/checkpoint-40")) == ("style", "run/checkpoint-40")


def test_what_is_merged_with_which_factor_makes_the_identity_and_its_place_does_not() -> None:
    plain = CheckpointRef(root="/r", run="run", step=4, path="/r/run/checkpoint-4", layout="l", digest="d", method="LORA")
    assert plain.identity == digest_of(["/r", "run", 4, "d"]), "identities of earlier exports stay what they are"

    def mixed(path: str = "/a/style", weight: float = 1.0, digest: str = "s", own: float = 1.0) -> CheckpointRef:
        one = Addition(name="style", path=path, weight=weight, digest=digest)
        return plain.model_copy(update={"weight": own, "additions": (one,)})

    different = [plain, mixed(), mixed(weight=0.5), mixed(digest="t"), mixed(own=0.5), plain.model_copy(update={"weight": 0.5})]
    assert len({one.identity for one in different}) == len(different)
    assert mixed(path="/elsewhere").identity == mixed().identity
    published = {"checkpoint": plain.path, "identity": plain.identity}
    assert plain.other_than(published) is None and mixed().other_than(published) == plain.path
    assert mixed().other_than({**published, "identity": "old content", "mixture": mixed().mixture}) is None, "written again at its path"
