"""`ckptd verify EXPORT --deep`: the whole check again where neither base nor checkpoint nor state is, and nothing in the export changes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon.contract.disk.files import files_below, sha256_file
from tests.recheck.conftest import Verify, environment, published
from tests.service import stray_handlers
from tests.validate.artifacts import damage_weight

pytestmark = pytest.mark.timeout(600)


def by_variant(answer: Any) -> dict[str, Any]:
    return {check["variant"]: check for check in answer["checks"]}


def seal(export: Path) -> None:
    """Write the manifest anew, as somebody would who changes a file on purpose."""
    manifest = json.loads((export / "MANIFEST.json").read_text())
    rows = [path for path in files_below(export) if path.name != "MANIFEST.json"]
    manifest["files"] = [
        {"path": path.relative_to(export).as_posix(), "size": path.stat().st_size, "sha256": sha256_file(path)} for path in rows
    ]
    (export / "MANIFEST.json").write_text(json.dumps(manifest))


def test_an_export_that_was_moved_passes_again_with_the_figures_of_its_report(kept_export: Path, tmp_path: Path, verify: Verify) -> None:
    before = {path: path.stat().st_mtime_ns for path in kept_export.rglob("*")}
    code, answer, said = verify(kept_export, "--deep")
    checks = by_variant(answer)
    assert code == 0 and answer["sound"] and said == "" and [*checks] == ["pytorch", "onnx", "onnx-int8"]
    report = json.loads((kept_export / "report.json").read_text())
    for artifact in report["artifacts"]:
        first, again = artifact["figures"], checks[artifact["variant"]]["figures"]
        assert checks[artifact["variant"]]["verdict"] == "passed" == artifact["verdict"]
        assert again["positions"] == first["positions"] and again["agreement"] == first["agreement"]
        assert again["kl"] == pytest.approx(first["kl"], rel=0.05, abs=1e-6) and again["error_max"] == pytest.approx(
            first["error_max"], rel=0.02, abs=1e-3
        )
        assert again["greedy_identical"] == first["greedy_identical"]
    # The published merge stands for the merge: the graph is compared with it, and the smaller one with the model that its weights give.
    assert checks["onnx"]["not_checked"] == checks["onnx-int8"]["not_checked"] == []
    assert checks["onnx"]["figures"]["merged_error_max_absolute"] is not None and checks["onnx-int8"]["figures"]["twin_error"] is not None
    assert {path: path.stat().st_mtime_ns for path in kept_export.rglob("*")} == before
    assert not [path for path in (tmp_path / "xdg").rglob("*") if "bench-" in path.name] and stray_handlers(tmp_path) == []


def test_the_answers_are_published_once_beside_the_variants_and_can_be_read_by_nobody_else_than_the_report(kept_export: Path) -> None:
    listed = [row["path"] for row in json.loads((kept_export / "MANIFEST.json").read_text())["files"]]
    assert [path for path in listed if path.startswith("answers/")] == ["answers/answers.zip"]
    place = kept_export / "answers" / "answers.zip"
    assert place.stat().st_mode == (kept_export / "report.json").stat().st_mode and place.stat().st_nlink == 1


def test_a_weight_that_was_changed_together_with_the_manifest_is_caught(copied: Path, verify: Verify) -> None:
    damage_weight(copied / "onnx", 0.5)
    seal(copied)
    code, answer, _ = verify(copied)
    assert code == 0 and answer["sound"], "the digests say nothing of it"
    code, answer, _ = verify(copied, "--deep", "--variant", "onnx")
    check = by_variant(answer)["onnx"]
    assert code == 1 and not answer["sound"] and [*by_variant(answer)] == ["onnx"] and check["verdict"] == "failed"
    assert any("divergence" in reason or "logit error" in reason for reason in check["reasons"])
    assert check["remedy"] == "export the checkpoint again"


@pytest.mark.slow
def test_a_merge_that_was_changed_is_blamed_itself_and_nothing_is_compared_with_it(copied: Path, verify: Verify) -> None:

    path = copied / "pytorch" / "model.safetensors"
    import torch
    from safetensors.torch import load_file as load
    from safetensors.torch import save_file as save

    path = copied / "pytorch" / "model.safetensors"
    tensors = load(path)
    name = max(tensors, key=lambda key: tensors[key].numel())
    tensors[name] = tensors[name] + torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(0)).to(tensors[name].dtype)
    save(tensors, path, {"format": "pt"})
    seal(copied)
    code, answer, _ = verify(copied, "--deep")
    checks = by_variant(answer)
    assert (
        code == 1 and checks["pytorch"]["verdict"] == "failed" and checks["onnx"]["verdict"] == checks["onnx-int8"]["verdict"] == "passed"
    )
    assert "did not pass its own check" in " ".join(checks["onnx"]["not_checked"])


@pytest.mark.slow
def test_without_the_published_merge_what_was_not_compared_is_named(copied: Path, verify: Verify) -> None:
    shutil.rmtree(copied / "pytorch")
    seal(copied)
    code, answer, _ = verify(copied, "--deep")
    checks = by_variant(answer)
    assert code == 0 and [*checks] == ["onnx", "onnx-int8"]
    for check in checks.values():
        assert check["not_checked"] == [
            "It was not compared with the merged model and its weights: the merged model is not in the export (variant pytorch)."
        ]
    code, answer, _ = verify(copied, "--deep", "--variant", "onnx-int8")
    assert code == 0 and answer["checks"][0]["not_checked"][1].startswith("Its weights were not compared with those of onnx, which was not")


def test_an_export_without_answers_says_so_in_one_sentence(copied: Path, verify: Verify) -> None:
    shutil.rmtree(copied / "answers")
    seal(copied)
    code, answer, said = verify(copied, "--deep")
    assert code == 2 and answer is None and said.count("\n") == 1
    assert "it keeps no answers of the live model" in said and "Fix: export the checkpoint again" in said
    assert verify(copied)[0] == 0


def test_of_several_exports_those_without_answers_are_named_and_the_others_checked(copied: Path, tmp_path: Path, verify: Verify) -> None:
    run = tmp_path / "run"
    run.mkdir()
    old = copied.rename(run / "step-8")
    shutil.copytree(old, run / "step-4")
    shutil.rmtree(run / "step-4" / "answers")
    seal(run / "step-4")
    code, answer, _ = verify(run, "--deep", "--variant", "onnx")
    assert code == 3 and [(check["folder"], check["verdict"]) for check in answer["checks"]] == [
        (str(run / "step-4" / "onnx"), "unverified"), (str(old / "onnx"), "passed"),
    ]  # fmt: skip
    assert "it keeps no answers of the live model" in answer["checks"][0]["reasons"][0]


def test_by_damaged_answers_nothing_is_judged(copied: Path, verify: Verify) -> None:
    with open(copied / "answers" / "answers.zip", "r+b") as stream:
        stream.seek(2000)
        stream.write(b"damage")
    code, answer, _ = verify(copied, "--deep")
    assert code == 1 and answer["checks"] == []
    assert [problem["path"] for export in answer["exports"] for problem in export["problems"]] == ["answers/answers.zip"]
    seal(copied)  # and where the manifest fits them
    code, answer, _ = verify(copied, "--deep", "--variant", "onnx")
    (check,) = answer["checks"]
    assert code == 3 and check["verdict"] == "unverified" and check["reasons"][0].startswith("it could not be checked here: ")


def test_a_variant_that_is_not_there_and_a_format_that_nobody_has(copied: Path, verify: Verify) -> None:
    code, _, said = verify(copied, "--deep", "--variant", "gguf-f16")
    assert code == 2 and "the export has no variant 'gguf-f16'" in said and "pytorch, onnx, onnx-int8" in said
    (copied / "onnx").rename(copied / "vendor-npz")
    seal(copied)
    code, answer, _ = verify(copied, "--deep", "--variant", "vendor-npz")
    assert code == 3 and answer["checks"][0]["reasons"] == ["no format that is installed here declares vendor-npz"]


def test_ctrl_c_ends_it_and_leaves_nothing(kept_export: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "daemon", "verify", str(kept_export), "--deep"]
    process = subprocess.Popen(
        command, env=environment(tmp_path / "xdg"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 120
    while time.monotonic() < end and not psutil.Process(process.pid).children(recursive=True):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 130 and "interrupted" in said and "Traceback" not in said
    assert not [path for path in (tmp_path / "xdg").rglob("*") if "bench-" in path.name] and stray_handlers(tmp_path) == []


@pytest.mark.slow
def test_who_does_not_want_the_prompts_in_the_export_keeps_none(pico_checkpoint: Path, tmp_path: Path) -> None:
    export = published(pico_checkpoint, tmp_path, "pytorch", CKPTD_VALIDATE__KEEP_ANSWERS="false")
    assert not (export / "answers").exists() and "answers/" not in (export / "MANIFEST.json").read_text()
