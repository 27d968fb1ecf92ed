"""The name of a base comes from the trainer's files: it is found where base.search says, and leads nowhere else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daemon.checkpoints.models.base_models import find_base
from daemon.contract.faults.errors import Permanent


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")
    return folder


@pytest.fixture
def bases(tmp_path: Path) -> Path:
    """A folder with bases, beside one that is nobody's business."""
    model(tmp_path / "secretbase" / "m")
    model(tmp_path / "bases" / "org" / "good")
    return tmp_path / "bases"


@pytest.mark.parametrize("name", ["../secretbase/m", "org/../../secretbase/m", "./../secretbase/m", "../secretbase/m/", ".."])
def test_a_name_with_dots_does_not_lead_out_of_the_folders_that_are_searched(bases: Path, name: str) -> None:
    with pytest.raises(Permanent) as caught:
        find_base(name, None, [bases], {})
    assert "base.map" in caught.value.fault.remedy


@pytest.mark.parametrize("name", ["org/good", "good", "./org/good", "../models/good", "other/good/", "org//good"])
def test_the_last_part_of_a_trainers_path_is_still_found_by_its_name(bases: Path, name: str) -> None:
    if name != "org/good":
        model(bases / "good")
    assert find_base(name, None, [bases], {}) in (bases / "org" / "good", bases / "good")


@pytest.mark.parametrize("name", ["models/org/good", "./models/org/good", "../models/org/good", "/elsewhere/models/org/good/"])
def test_the_last_two_parts_of_a_trainers_path_are_found_as_folder_org_name(bases: Path, name: str) -> None:
    model(bases / "good")
    assert find_base(name, None, [bases], {}) == bases / "org" / "good"


def test_a_model_in_modelscopes_cache_is_found_by_its_path_there_and_by_the_end_of_it(tmp_path: Path) -> None:
    older = model(tmp_path / "hub" / "models" / "Qwen" / "Qwen2___5-0___5B-Instruct")
    newer = model(tmp_path / "models" / "Qwen--Qwen3-0.6B" / "snapshots" / "master")
    assert find_base(str(older), None, [], {}) == older and find_base(str(newer), None, [], {}) == newer
    assert find_base("/root/.cache/modelscope/hub/models/Qwen/Qwen2___5-0___5B-Instruct", None, [tmp_path / "hub" / "models"], {}) == older


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen2.5-0.5B-Instruct", "/root/.cache/modelscope/models/Qwen--Qwen2.5-0.5B-Instruct/snapshots/master"]
)
def test_a_model_in_modelscopes_cache_is_found_by_its_name_on_the_hub_and_by_another_machines_path(tmp_path: Path, name: str) -> None:
    newer = model(tmp_path / "models" / "Qwen--Qwen2.5-0.5B-Instruct" / "snapshots" / "master")
    model(tmp_path / "models" / "Qwen--Qwen2.5-0.5B-Instruct" / "snapshots" / "v1.0.0")
    assert find_base(name, None, [tmp_path / "models"], {}) == newer


def test_a_name_on_the_hub_is_found_in_modelscopes_caches_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path))
    snapshots = tmp_path / "models" / "org--m.5" / "snapshots"
    (only,) = (model(snapshots / "v1"),)
    older = model(tmp_path / "hub" / "models" / "org" / "old___5")
    assert (find_base("org/m.5", None, [], {}), find_base("org/old.5", None, [], {})) == (only, older)
    model(snapshots / "v2")
    assert find_base("org/m.5", "v2", [], {}) == snapshots / "v2"
    for name, revision in (("org/m.5", None), ("org/m.5", "../../../elsewhere"), ("../m.5", None)):
        with pytest.raises(Permanent):
            find_base(name, revision, [], {})


def test_what_the_configuration_maps_may_lie_anywhere(bases: Path) -> None:
    secret = bases.parent / "secretbase" / "m"
    assert find_base("../secretbase/m", None, [bases], {"../secretbase/m": secret}) == secret


def test_a_revision_does_not_lead_out_of_the_cache(bases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = bases.parent / "hub"
    good = model(hub / "models--org--m" / "snapshots" / "abc")
    (hub / "models--org--m" / "refs").mkdir()
    (hub / "models--org--m" / "refs" / "main").write_text("abc")
    (hub / "models--org--m" / "refs" / "evil").write_text("../../../secretbase/m")
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    assert find_base("org/m", None, [], {}) == find_base("org/m", "abc", [], {}) == good
    for revision in ("../../../secretbase/m", "/".join([".."] * 30) + str(bases.parent / "secretbase/m"), "evil", "a\0b"):
        with pytest.raises(Permanent):
            find_base("org/m", revision, [], {})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's link")
def test_a_link_of_another_user_leads_nowhere_and_one_of_the_owner_where_it_says(bases: Path) -> None:
    outside = bases.parent / "secretbase" / "m"
    (bases / "mine").symlink_to(outside)
    (bases / "theirs").symlink_to(outside)
    os.lchown(bases / "theirs", 12345, 12345)
    assert find_base("mine", None, [bases], {}) == bases / "mine"
    with pytest.raises(Permanent, match=r"leads out of base\.search through a link"):
        find_base("theirs", None, [bases], {})


PARTS = st.sampled_from(["..", ".", "", "~", "~root", "m", "secretbase", "bases", "org", "good", "out", "$HOME", "a\0b", "\\..", "x" * 300])


@settings(deadline=None)  # other programs run on the machine too
@given(st.lists(PARTS, min_size=1, max_size=6).map("/".join), st.booleans())
@example("../secretbase/m", False)
@example("out/m", False)
def test_no_name_leads_out(name: str, absolute: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        secret = model(home / "secretbase" / "m")
        bases = home / "bases"
        model(bases / "org" / "good")
        (bases / "out").symlink_to(home / "secretbase")
        trusted = os.geteuid() != 0
        if not trusted:
            os.lchown(bases / "out", 12345, 12345)
        asked = f"{bases}/{name}" if absolute else name
        try:
            found = find_base(asked, None, [bases], {})
        except Permanent:
            return
        inside = Path(os.path.normpath(found)).resolve()
        named = os.path.isabs(asked) and os.path.normpath(asked) == str(secret)  # as closed as its base
        assert bases.resolve() in inside.parents or named or (trusted and "out" in found.parts)
