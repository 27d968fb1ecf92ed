"""`ckptd verify --artifact FOLDER --like EXPORT`: what other programs made of the same checkpoint passes, anything else is told apart."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.recheck.conftest import Verify
from tests.recheck.test_deep import by_variant
from tests.validate.artifacts import merge_with_peft

pytestmark = pytest.mark.timeout(600)
Folders = dict[str, Path]


def test_what_peft_merges_passes_as_the_variant_that_its_files_are_of(
    kept_export: Path, folders: Folders, tmp_path: Path, verify: Verify
) -> None:
    """`save_pretrained` of `merge_and_unload`, with a file that only another program would write."""
    folder = tmp_path / "merged"
    shutil.copytree(folders["pytorch"], folder)
    (folder / "training_notes.md").write_text("mine")
    code, answer, _ = verify("--artifact", folder, "--like", kept_export)
    (check,) = answer["checks"]
    assert code == 0 and answer["sound"] and (check["variant"], check["verdict"]) == ("pytorch", "passed")
    assert check["figures"]["agreement"] > 0.97 and check["folder"] == str(folder)
    assert {path.name for path in folder.iterdir()} == {path.name for path in folders["pytorch"].iterdir()} | {"training_notes.md"}


def test_a_graph_that_torch_exports_passes_where_it_is_said_which_limits_count(kept_export: Path, folders: Folders, verify: Verify) -> None:
    renamed = folders["onnx"].parent / "by-hand"
    if not renamed.exists():
        shutil.copytree(folders["onnx"], renamed)
    code, _, said = verify("--artifact", renamed, "--like", kept_export)
    assert code == 2 and "it may be onnx or onnx-int8" in said and "--variant" in said
    code, answer, _ = verify("--artifact", renamed, "--like", kept_export, "--variant", "onnx")
    check = by_variant(answer)["onnx"]
    assert code == 0 and check["verdict"] == "passed" and "another program made it" in check["not_checked"][0]


def test_the_base_is_rejected_as_a_merge_without_its_adapter(kept_export: Path, pico_base: Path, verify: Verify) -> None:
    code, answer, _ = verify("--artifact", pico_base, "--like", kept_export, "--variant", "pytorch")
    check = by_variant(answer)["pytorch"]
    assert code == 1 and check["verdict"] == "failed" and "So it is a merged model without its adapter" in check["reasons"][0]
    assert check["remedy"].startswith("make it again of the same checkpoint") and check["notes"] == []


@pytest.mark.slow
def test_another_checkpoint_of_the_run_is_told_from_this_one(
    kept_export: Path, pico_base: Path, pico_run: Path, tmp_path: Path, verify: Verify
) -> None:
    other = merge_with_peft(pico_base, pico_run / "checkpoint-2", tmp_path / "other")
    code, answer, _ = verify("--artifact", other, "--like", kept_export, "--variant", "pytorch")
    assert code == 1 and "it is of an earlier or another checkpoint" in answer["checks"][0]["reasons"][0]


def test_another_chat_template_is_rejected(kept_export: Path, folders: Folders, tmp_path: Path, verify: Verify) -> None:
    folder = tmp_path / "onnx"
    shutil.copytree(folders["onnx"], folder)
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + "!")
    code, answer, _ = verify("--artifact", folder, "--like", kept_export)
    assert code == 1 and "chat_template.jinja" in " ".join(answer["checks"][0]["reasons"])


@pytest.mark.parametrize(("words", "said"), [
    (("--artifact", "nowhere", "--like", "EXPORT"), "there is no such path"),
    (("--artifact", "EXPORT/report.json", "--like", "EXPORT"), "it is a file"),
    (("--artifact", "EXPORT/pytorch", "--like", "EXPORT/pytorch"), "there is no MANIFEST.json in it"),
    (("--artifact", "EXPORT/answers", "--like", "EXPORT"), "its files are of no format that is known"),
    (("--artifact", "EXPORT/onnx", "--like", "EXPORT", "--variant", "odd"), "there is no variant 'odd'"),
    (("--artifact", "EXPORT/onnx", "--like", "EXPORT", "--variant", "onnx", "--variant", "pytorch"), "an artifact is of one variant"),
])  # fmt: skip
def test_what_can_not_be_meant_is_refused_before_anything_runs(
    kept_export: Path, verify: Verify, words: tuple[str, ...], said: str
) -> None:
    code, answer, stderr = verify(*(word.replace("EXPORT", str(kept_export)) for word in words))
    assert code == 2 and answer is None and said in stderr
