"""Bad input ends in one clear sentence with the remedy, harms nothing, and has the documented exit code."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests import models
from tests.detection.helpers import plain_adapter
from tests.sampling import some
from tests.service import Service, listing
from tests.verbs import COMMAND, run_verb


def ckptd(
    folder: Path, *arguments: str | Path, prefix: Sequence[str] = (), stdin: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run the command with a state of its own below `folder`. `prefix`: the words of a command that runs it. `stdin`: what it reads."""
    names = {key: value for key, value in os.environ.items() if not key.startswith(("CKPTD_", "EXPORT_"))}
    names |= {
        "XDG_STATE_HOME": str(folder / "xdg"),
        "HF_HUB_OFFLINE": "1",
        "CKPTD_LIMITS__PRIORITY": "normal",
        **environment,
    }
    if not prefix:
        return run_verb([*map(str, arguments)], folder, names, timeout=240, stdin=stdin)
    return subprocess.run(
        [*prefix, *COMMAND, *map(str, arguments)], capture_output=True, text=True, errors="replace", cwd=folder, env=names, timeout=240,
        check=False,
    )  # fmt: skip


def export(folder: Path, checkpoint: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`ckptd export` of the pytorch variant alone, with little validation."""
    quick = {"CKPTD_EXPORT__VARIANTS": "pytorch", "CKPTD_VALIDATE__SAMPLES": "2", "CKPTD_VALIDATE__NEW_TOKENS": "4",
             "CKPTD_VALIDATE__SPEED_TOKENS": "0", "CKPTD_LIMITS__THREADS": "1"}  # fmt: skip
    return ckptd(folder, "export", checkpoint, "--output", folder / "out", *arguments, **{**quick, **environment})


def one_sentence(answer: subprocess.CompletedProcess[str]) -> str:
    """The error line on stderr; there is no traceback beside it."""
    assert "Traceback" not in answer.stderr
    lines = [line for line in answer.stderr.splitlines() if line.startswith("ckptd: ")]
    assert len(lines) == 1, answer.stderr
    assert "Fix: " in answer.stderr
    return lines[0]


def test_a_path_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    answer = export(tmp_path, tmp_path / "nowhere" / "checkpoint-5")
    assert answer.returncode == 2
    assert "there is no such directory" in one_sentence(answer)
    assert not (tmp_path / "out").exists()


def test_a_run_directory_is_answered_with_its_newest_checkpoint(tmp_path: Path, pico_run: Path) -> None:  # R1.1
    answer = export(tmp_path, pico_run)
    assert answer.returncode == 2
    assert (
        f"it is not a checkpoint; it contains checkpoint-4, checkpoint-2. Fix: give the one that you want; for the latest: "
        f"`ckptd export {pico_run / 'checkpoint-4'}`" in one_sentence(answer)
    )


@pytest.mark.slow
def test_a_directory_of_runs_is_answered_with_the_latest_of_each(tmp_path: Path, pico_run: Path) -> None:
    for run in ("a", "b"):
        shutil.copytree(pico_run / "checkpoint-4", tmp_path / "runs" / run / "checkpoint-4")
    plain_adapter(pico_run / "checkpoint-4", tmp_path / "runs" / "b" / "final")
    answer = export(tmp_path, tmp_path / "runs")
    assert answer.returncode == 2
    sentence = one_sentence(answer)
    assert "it contains 3 checkpoints of 2 runs" in sentence
    assert all(f"`ckptd export {tmp_path}/runs/{latest}`" in sentence for latest in ("a/checkpoint-4", "b/final"))


@pytest.mark.parametrize("inside", some(["adapter_model.safetensors", "adapter_config.json", "global_step4", "global_step4/x.pt"], of=4))
def test_what_lies_inside_of_a_checkpoint_is_answered_with_the_directory_to_give(
    tmp_path: Path, pico_checkpoint: Path, inside: str
) -> None:
    for name in ("checkpoint-4", "lora_model"):
        folder = tmp_path / "run" / name
        shutil.copytree(pico_checkpoint, folder)
        (folder / "global_step4").mkdir()
        (folder / "global_step4" / "x.pt").write_bytes(b"x")
        answer = export(tmp_path, folder / inside)
        assert answer.returncode == 2
        assert f"inside the checkpoint {folder}. Fix: give that directory: `ckptd export {folder}`" in one_sentence(answer)


@pytest.mark.slow
def test_a_lightning_file_goes_the_way_of_the_directory_in_which_the_daemon_finds_it(tmp_path: Path) -> None:
    folder = tmp_path / "lightning_logs" / "version_0" / "checkpoints"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "epoch=0-step=6.ckpt", "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    by_file, by_folder = (export(tmp_path, path) for path in (folder / "epoch=0-step=6.ckpt", folder))
    assert by_file.returncode == by_folder.returncode == 1
    assert one_sentence(by_file) == one_sentence(by_folder)
    other = tmp_path / "notes.ckpt"
    other.write_text("no checkpoint beside it is known")
    assert one_sentence(export(tmp_path, other)) != one_sentence(by_file)


def test_a_truncated_adapter_is_refused_with_figures_before_anything_starts(tmp_path: Path, pico_checkpoint: Path) -> None:  # R1.5
    broken = tmp_path / "run" / "checkpoint-4"
    shutil.copytree(pico_checkpoint, broken)
    weights = broken / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    before = listing(broken)
    answer = export(tmp_path, broken)
    assert answer.returncode == 1
    sentence = one_sentence(answer)
    assert f"the file has {weights.stat().st_size:,} bytes, but its header describes {weights.stat().st_size + 100:,}" in sentence
    assert "then run the same command again" in sentence and "automatically" not in sentence
    assert answer.stdout == "" and answer.stderr.count("\n") == 1
    assert listing(broken) == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run"]


@pytest.mark.slow
def test_an_adapter_that_peft_itself_refuses_is_not_published(tmp_path: Path, pico_checkpoint: Path) -> None:  # R1.5 R4.5
    odd = shutil.copytree(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    config = json.loads((odd / "adapter_config.json").read_text())
    (odd / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ["no_such_projection"]}))
    answer = export(tmp_path, odd)
    assert answer.returncode == 1
    failed = tmp_path / "out" / "run" / "step-4.failed"
    assert not (failed / "pytorch").exists() and not (failed.parent / "latest").exists()
    report = json.loads((failed / "report.json").read_bytes())
    assert [(one["verdict"], one["published"]) for one in report["artifacts"]] == [("unverified", False)]
    assert "PEFT itself can't put this adapter on its base" in report["verdict"]
    assert "give the base that it was trained on" in report["failures"][0]["remedy"]
    allowed = export(tmp_path, odd, "--force", CKPTD_VALIDATE__PUBLISH_UNVERIFIED="pytorch")
    assert allowed.returncode == 3, allowed.stderr
    assert (failed.parent / "step-4" / "pytorch" / "model.safetensors").is_file() and not (failed.parent / "latest").exists()


def test_a_base_that_cannot_be_found_says_where_it_looked_and_which_key_maps_it(tmp_path: Path, pico_checkpoint: Path) -> None:  # R1.5
    orphan = tmp_path / "run" / "checkpoint-4"
    shutil.copytree(pico_checkpoint, orphan)
    config = models.read_json(orphan / "adapter_config.json")
    (orphan / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "acme/absent-7b"}))
    answer = export(tmp_path, orphan, CKPTD_BASE__SEARCH=str(tmp_path / "models"))
    assert answer.returncode == 1
    assert "acme/absent-7b" in answer.stderr
    assert str(tmp_path / "models" / "acme" / "absent-7b") in answer.stderr
    assert 'base.map."acme/absent-7b"' in answer.stderr
    assert "Traceback" not in answer.stderr
    report = json.loads((tmp_path / "out" / "run" / "step-4.failed" / "report.json").read_bytes())
    assert any("acme/absent-7b" in failure["sentence"] for failure in report["failures"])


def test_an_adapter_for_another_base_names_the_module_and_both_shapes(
    tmp_path: Path, pico_checkpoint: Path, pico_base: Path
) -> None:  # R1.5
    foreign = tmp_path / "run" / "checkpoint-4"
    shutil.copytree(pico_checkpoint, foreign)
    weights = load_file(foreign / "adapter_model.safetensors")
    wider = {name: (value.repeat(1, 2) if "lora_A" in name else value).contiguous() for name, value in weights.items()}
    save_file(wider, foreign / "adapter_model.safetensors")
    answer = export(tmp_path, foreign)
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert "q_proj" in answer.stderr or "o_proj" in answer.stderr or "down_proj" in answer.stderr or "v_proj" in answer.stderr
    assert "64" in answer.stderr and "128" in answer.stderr


@pytest.mark.slow
def test_an_output_that_cannot_be_written_names_the_key(tmp_path: Path, pico_checkpoint: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for output, said in (("file/below", f"{tmp_path}/file is a file, not a directory"), ("file", "it is a file, not a directory")):
        answer = ckptd(tmp_path, "export", pico_checkpoint, "--output", output)
        assert answer.returncode == 2
        assert f"Could not use --output ({tmp_path}/{output}): {said}. Fix: give a directory" in one_sentence(answer)
    answer = ckptd(tmp_path, "export", pico_checkpoint, CKPTD_OUTPUT__DIRECTORY=str(tmp_path / "file"))
    assert answer.returncode == 2
    assert "file is a file, not a directory. Fix: set output.directory to a directory" in one_sentence(answer)


def test_check_names_a_folder_that_cannot_be_written_and_makes_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    configuration = tmp_path / "config.toml"
    for output, code in ((tmp_path / "file" / "below", 2), (tmp_path / "new" / "exports", 0)):
        configuration.write_text(f'[output]\ndirectory = "{output}"\n[state]\ndirectory = "{tmp_path}/state"\n')
        answer = ckptd(tmp_path, "check", "--config", configuration)
        assert answer.returncode == code, answer.stdout + answer.stderr
        assert ("write to output.directory" in answer.stdout + answer.stderr) == (code == 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "file"]


def test_output_inside_the_checkpoint_is_refused(tmp_path: Path, pico_checkpoint: Path) -> None:
    before = listing(pico_checkpoint)
    answer = ckptd(tmp_path, "export", pico_checkpoint, "--output", pico_checkpoint / "out")
    assert answer.returncode == 2
    assert "only the trainer may write" in one_sentence(answer)
    assert listing(pico_checkpoint) == before


def test_output_inside_a_watched_root_is_refused(tmp_path: Path, pico_checkpoint: Path) -> None:
    root, before = pico_checkpoint.parents[1], listing(pico_checkpoint.parent)
    (tmp_path / "root").symlink_to(root)
    for folder in (root / "exports", tmp_path / "root" / "exports", root / "none" / ".." / "exports"):
        answer = ckptd(tmp_path, "export", pico_checkpoint, "--output", folder, CKPTD_WATCH__ROOTS=json.dumps([str(root)]))
        assert answer.returncode == 2 and f"inside the watched root {root}, where only trainers may write" in one_sentence(answer)
    assert listing(pico_checkpoint.parent) == before and not (root / "exports").exists()


def test_output_inside_another_export_is_refused(tmp_path: Path, pico_checkpoint: Path) -> None:
    exported = tmp_path / "out" / "run" / "step-2"
    exported.mkdir(parents=True)
    (exported / "MANIFEST.json").write_text("{}")
    for folder in (exported, exported / "deeper"):
        answer = ckptd(tmp_path, "export", pico_checkpoint, "--output", folder)
        assert answer.returncode == 2 and f"inside the export {exported}, and go when that is replaced" in one_sentence(answer)
    assert [path.name for path in exported.iterdir()] == ["MANIFEST.json"]


def test_no_disk_space_is_temporary_and_says_how_much_is_missing(tmp_path: Path, pico_checkpoint: Path) -> None:  # R6.2
    answer = export(tmp_path, pico_checkpoint, CKPTD_LIMITS__DISK_RESERVE="900TiB")
    assert answer.returncode == 75
    assert "limits.disk_reserve reserves 900 TiB" in one_sentence(answer)
    assert not (tmp_path / "out" / "pico-run").exists()


def test_too_little_memory_for_a_stage_fails_it_with_the_figures(tmp_path: Path, pico_checkpoint: Path) -> None:  # R1.5
    answer = export(tmp_path, pico_checkpoint, CKPTD_LIMITS__MEMORY_FRACTION="0.001")
    assert answer.returncode == 1
    assert "512 MiB of memory" in answer.stderr and "limits.memory_fraction" in answer.stderr
    assert "512 MiB of memory" in (tmp_path / "out" / "pico-run" / "step-4.failed" / "report.html").read_text()


def test_a_toolchain_that_is_missing_is_told_before_anything_starts(tmp_path: Path, pico_checkpoint: Path) -> None:  # R5.4
    words = [*COMMAND, "export", str(pico_checkpoint), "--to", "pytorch", "--to", "gguf-q8_0", "--output", str(tmp_path / "out")]
    told = "gguf-q8_0 can't be made: the toolchain gguf is not installed; run `ckptd toolchain install gguf`."
    with subprocess.Popen(words, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        before = list(itertools.takewhile(lambda line: "merge: running" not in line, process.stderr))
        process.kill()
    assert told in "".join(before) and process.returncode == -signal.SIGKILL


def test_a_second_daemon_on_the_same_journal_is_refused_and_the_first_goes_on(make_service: Callable[..., Service]) -> None:
    service = make_service()
    service.start()
    service.wait_for(lambda v: v["daemon"]["running"] and v["daemon"]["pid"])
    second = ckptd(service.folder, "run", "--config", service.config)
    assert second.returncode == 75
    assert f"another ckptd (pid {service.process.pid})" in one_sentence(second)
    assert service.process.poll() is None
    assert service.stop() == 0


def test_run_without_a_root_says_what_to_set(tmp_path: Path) -> None:  # R5.4
    answer = ckptd(tmp_path, "run")
    assert answer.returncode == 2
    assert "Could not find a configuration" in answer.stderr and "`ckptd init`" in answer.stderr
    config = tmp_path / "config.toml"
    config.write_text("[limits]\njobs = 1\n")
    answer = ckptd(tmp_path, "run", "--config", config)
    assert answer.returncode == 2
    assert "watch.roots" in answer.stderr


@pytest.mark.parametrize("verb", [["run"], ["check"], ["status"]])
def test_a_wrong_configuration_is_told_in_full_before_anything_starts(tmp_path: Path, verb: list[str]) -> None:  # R5.4 R5.5
    config = tmp_path / "config.toml"
    config.write_text('[wach]\nx = 1\n[limits]\njobs = "many"\n[export]\nvariants = ["onx"]\n')
    answer = ckptd(tmp_path, *verb, "--config", config)
    assert answer.returncode == 2
    for part in ("wach: is not a known key; did you mean 'watch'?", "limits.jobs", "did you mean 'onnx'?"):
        assert part in answer.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml"]
