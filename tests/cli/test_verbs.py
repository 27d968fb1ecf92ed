"""The verbs as a user types them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.cli.main import app
from daemon.config.places.paths import StatePaths, prepare
from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.faults.errors import UsageError
from daemon.contract.version import __version__
from daemon.journal.journal import Journal
from tests.cli.test_bad_input import ckptd
from tests.journal.entries import enter, reference
from tests.runner.conftest import Toy
from tests.service import listing

HEAVY = {"torch", "transformers", "peft", "onnx", "onnxruntime", "numpy", "jinja2", "safetensors"}


def test_help_and_the_daemon_load_nothing_heavy() -> None:
    code = "import sys, daemon.cli, daemon.operating.service, daemon.cli.views.tables; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    assert not loaded & HEAVY


def test_help_names_every_verb(tmp_path: Path) -> None:
    answer = ckptd(tmp_path, "--help")
    assert answer.returncode == 0
    for verb in ("run", "export", "status", "list", "show", "queue", "logs", "check", "formats", "demo"):
        assert f" {verb} " in answer.stdout
    assert ckptd(tmp_path, "--version").stdout.strip() == f"ckptd {__version__}"


@pytest.mark.slow
def test_an_export_takes_the_short_environment_names_shows_verdicts_answers_in_json_and_is_not_repeated(  # R5.6 R6.1 R6.5
    tmp_path: Path, pico_checkpoint: Path
) -> None:
    """And a failed one, made by force, never takes its place: one export serves both, since it takes a quarter of a minute."""
    short = {
        "EXPORT_CHECKPOINT_PATH": str(pico_checkpoint), "EXPORT_OUTPUT_DIR": str(tmp_path / "mine"), "EXPORT_ENABLE_ONNX": "false",
        "CKPTD_VALIDATE__SAMPLES": "1", "CKPTD_VALIDATE__NEW_TOKENS": "4", "CKPTD_VALIDATE__SPEED_TOKENS": "0",
    }  # fmt: skip
    first = ckptd(tmp_path, "export", **short)
    assert first.returncode == 0, first.stderr
    assert "passed" in first.stdout and "pytorch" in first.stdout
    target = tmp_path / "mine" / "pico-run" / "step-4"
    assert str(target) in first.stdout
    again = ckptd(tmp_path, "export", **short)
    assert again.returncode == 0 and "already" in again.stderr
    chosen = ckptd(tmp_path, "export", "--to", "pytorch", **{name: value for name, value in short.items() if name != "EXPORT_ENABLE_ONNX"})
    assert chosen.returncode == 0 and "already" in chosen.stderr, "the same variants, named on the command line"
    nowhere = ckptd(tmp_path, "export", "--deploy", "mars", **short)
    assert nowhere.returncode == 2 and "'android'" in nowhere.stderr and "'mars'" in nowhere.stderr
    wrong = ckptd(tmp_path, "export", "--to", "android", **short).stderr
    assert "--to (command line) for export.variants: there is no variant 'android'; it is a target: name it in export.deploy" in wrong
    elsewhere = json.loads(ckptd(tmp_path, "export", "--json", "--output", str(tmp_path / "other"), **short).stdout)
    assert elsewhere["target"] == str(tmp_path / "other" / "pico-run" / "step-4") and (Path(elsewhere["target"]) / "pytorch").is_dir()
    assert ckptd(tmp_path, "export", **short).returncode == 0
    inode = target.stat().st_ino  # another output was asked for since, so it was made again
    value = json.loads(ckptd(tmp_path, "export", "--json", **short).stdout)
    assert target.stat().st_ino == inode
    assert value["artifacts"] == {"pytorch": "passed"}
    assert value["target"] == str(target)
    assert value["report"]["status"] == "succeeded"
    good = listing(target)
    unreachable = {"CKPTD_VALIDATE__THRESHOLDS": '{"pytorch": {"kl": 0.0, "error": 0.0, "agreement": 1.0}}'}
    assert ckptd(tmp_path, "export", "--force", **short, **unreachable).returncode == 1
    assert listing(target) == good
    assert (target.parent / "latest").resolve() == target
    assert (target.parent / "step-4.failed" / "report.json").is_file()


def test_an_export_takes_no_variant_away_that_another_one_made(tmp_path: Path, pico_checkpoint: Path) -> None:
    target = tmp_path / "out" / "pico-run" / "step-4"
    target.mkdir(parents=True)
    files = [{"path": path} for path in ("README.md", "onnx/model.onnx", "onnx-int8/model.onnx", "pytorch/model.safetensors")]
    files.append({"path": "rejected/onnx-int4/model.onnx"})  # which nobody was to use
    manifest = {"export_id": "another", "identity": "by another root", "checkpoint": str(pico_checkpoint), "files": files}
    (target / MANIFEST).write_text(json.dumps(manifest))
    before = listing(target)
    refused = ckptd(tmp_path, "export", str(pico_checkpoint), "--output", str(tmp_path / "out"), "--to", "onnx")
    assert refused.returncode == 2 and listing(target) == before
    assert "it holds onnx-int8, pytorch of this checkpoint, which would be gone" in refused.stderr
    assert (
        "ask for all with --to onnx --to onnx-int8 --to pytorch, give another folder with --output, or replace it with --force"
        in refused.stderr
    )


def test_status_list_show_and_logs_tell_of_a_job(make_toy: Callable[..., Toy], pico_checkpoint: Path) -> None:  # R1.1 R6.1
    service = make_toy()
    service.add(pico_checkpoint)
    service.start()
    (job,) = service.wait_ended()
    config = ("--config", service.config)
    status = json.loads(ckptd(service.folder, "status", "--json", *config).stdout)
    assert status["daemon"]["running"] and status["daemon"]["healthy"]
    assert status["roots"] == [{"path": str(service.root), "backend": "inotify", "exists": True, "silent_seconds": None}]
    text = ckptd(service.folder, "status", *config).stdout
    assert "running" in text and "pytorch:passed" in text and job["id"] in text
    assert job["id"] in ckptd(service.folder, "list", *config).stdout
    shown = ckptd(service.folder, "show", job["id"][:8], *config).stdout
    assert "reference" in shown and job["target"] in shown
    logs = ckptd(service.folder, "logs", *config).stdout
    assert "checkpoint taken" in logs and "export finished" in logs
    assert service.stop() == 0
    records = [json.loads(line) for line in (service.state / "ckptd.log").read_text().splitlines()]
    started = [record for record in records if record["event"] == "stage.started"]
    assert [record["stage"] for record in started] == ["merge", "pytorch", "reference", "merged", "report"]
    assert all(
        record["job"] == job["id"] and record["run"] == "run" and record["step"] == 4 and record["attempt"] == 1 for record in started
    )
    assert not json.loads(ckptd(service.folder, "status", "--json", *config).stdout)["daemon"]["running"]


def test_status_says_why_an_artifact_was_rejected(make_toy: Callable[..., Toy], pico_checkpoint: Path) -> None:  # R6.1
    service = make_toy()
    service.environment["TOY_REJECT"] = "its answers differ by 0.5 σ"
    service.add(pico_checkpoint)
    service.start()
    (job,) = service.wait_ended()
    assert service.stop() == 0
    assert (job["state"], job["artifacts"]) == ("failed", {"pytorch": "failed"})
    assert job["error"] == "Could not publish pytorch: its answers differ by 0.5 σ."


@pytest.mark.slow
def test_a_failed_job_is_put_back_by_retry_once_its_cause_is_mended(  # R1.5
    make_toy: Callable[..., Toy], pico_checkpoint: Path, pico_base: Path
) -> None:
    service = make_toy()
    checkpoint = service.add(pico_checkpoint)
    config = json.loads((checkpoint / "adapter_config.json").read_bytes())
    (checkpoint / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "acme/late"}))
    service.start()
    (job,) = service.wait_ended()
    assert job["state"] == "failed" and "acme/late" in job["error"]
    assert service.stop() == 0
    with service.config.open("a") as stream:
        stream.write(f'[base]\nmap = {{ "acme/late" = "{pico_base}" }}\n')
    service.start()
    answer = ckptd(service.folder, "queue", "retry", "--failed", "--config", service.config)
    assert answer.returncode == 0 and answer.stdout == f"{job['id']} is back in the queue.\n", answer.stderr
    service.wait_for(lambda v: v["jobs"][0]["state"] == "succeeded")
    answer = ckptd(service.folder, "queue", "retry", "--failed", "--config", service.config)
    assert (answer.returncode, answer.stdout) == (0, "No export has failed.\n")
    answer = ckptd(service.folder, "queue", "retry", "--config", service.config)
    assert answer.returncode == 2 and "name a job, or give --failed for all exports that failed" in answer.stderr
    same = {"CKPTD_ONNX__OPTIMIZE": os.environ["CKPTD_ONNX__OPTIMIZE"]}  # as the daemon has it, which made the export
    answer = ckptd(service.folder, "queue", "retry", job["id"], job["id"], "--config", service.config, **same)
    assert answer.returncode == 2 and answer.stderr.count("it has succeeded") == 1, "one job is tried once"
    assert service.stop() == 0
    assert not (service.exports / "run" / "step-4.failed").exists()


@pytest.mark.slow
def test_formats_and_check_tell_what_can_be_made_here(tmp_path: Path) -> None:  # R5.4
    value = json.loads(ckptd(tmp_path, "formats", "--json").stdout)
    assert all(value["variants"][name]["available"] for name in ("pytorch", "onnx", "onnx-int8"))
    processor = value["processor"]
    assert processor["architecture"] == platform.machine() and set(processor["doubts"]) <= set(value["variants"])
    assert "onnx-int8" not in processor["doubts"], "its sums are bounded for every processor"
    assert "ARM64" in " ".join(processor["not_run"]) or platform.machine() == "aarch64"
    told = ckptd(tmp_path, "formats", "--all").stdout
    doubted = next(
        line for line in told.splitlines() if "checked only for processors like this one: " in line and "round activations" in line
    )
    for name in ("onnx-int8-weight", "onnx-int4", "onnx-int4-fine", "onnx-mixed", "onnx-genai-int4", "openvino-int4"):
        assert f" {name}," in doubted or f" {name}:" in doubted
    answer = ckptd(tmp_path, "check", CKPTD_WATCH__ROOTS=str(tmp_path / "runs"))
    assert answer.returncode == 0
    assert "does not exist yet" in answer.stdout and "The configuration is valid" in answer.stdout


def test_every_verb_says_the_same_of_a_job_that_is_not_there_and_of_an_empty_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = prepare(tmp_path / "state", tmp_path / "out").state
    journal = Journal(StatePaths(state).journal)
    enter(journal, "run-1-abcdef10", reference(1))
    journal.jobs.start("run-1-abcdef10", None)
    journal.jobs.finish("run-1-abcdef10", "succeeded", None)
    journal.close()
    StatePaths(state).log.write_text('{"event": "e", "job": "older-2-1234567", "timestamp": "2026-05-01T12:34:56Z"}\n')
    monkeypatch.setenv("CKPTD_STATE__DIRECTORY", str(state))
    monkeypatch.setenv("CKPTD_OUTPUT__DIRECTORY", str(tmp_path / "out"))
    for words in (
        ["show"],
        ["logs", "--json", "--job"],
        ["logs", "--job"],
        *(["queue", verb] for verb in ("pause", "resume", "retry", "cancel", "first")),
    ):
        for wanted, said in (("nope", "no job's id begins or ends with 'nope'"), ("", "the id is empty. Fix: give the id of a job")):
            with pytest.raises(UsageError, match=said):
                app([*words, wanted], standalone_mode=False)
    assert capsys.readouterr().out == ""
    for words, said in (
        (["--job", "run"], "the stages of run-1-abcdef10 are merge, .*give the export with `--job`, and its stage"),
        ([], "no export is named"),
    ):
        with pytest.raises(UsageError, match=said):
            app(["logs", "--stage", "nope", *words], standalone_mode=False)
    app(["logs", "--job", "older"], standalone_mode=False)
    assert "12:34:56" in capsys.readouterr().out, "a job that the journal has no more"
    for verb, said in (
        ("first", r"Could not put first run-1-abcdef10: it has succeeded\. Fix: use `ckptd queue first` only for an export that waits\."),
        ("retry", "it has succeeded"),
        ("cancel", "it has succeeded"),
    ):
        with pytest.raises(UsageError, match=said):
            app(["queue", verb, "run"], standalone_mode=False)


def test_several_jobs_are_cancelled_or_put_first_at_once_and_a_refusal_keeps_nothing_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = prepare(tmp_path / "state", tmp_path / "out").state
    journal = Journal(StatePaths(state).journal)
    for step in range(1, 5):
        enter(journal, f"run-{step}-abcdef10", reference(step))
    journal.jobs.start("run-1-abcdef10", None)
    journal.jobs.finish("run-1-abcdef10", "succeeded", None)
    journal.close()
    monkeypatch.setenv("CKPTD_STATE__DIRECTORY", str(state))
    monkeypatch.setenv("CKPTD_OUTPUT__DIRECTORY", str(tmp_path / "out"))

    def jobs() -> tuple[list[str], str | None]:
        """The states of all, and the one that goes before all others."""
        journal = Journal(StatePaths(state).journal)
        states = [row.state for step in range(1, 5) if (row := journal.jobs.get(f"run-{step}-abcdef10")) is not None]
        first = journal.jobs.preferred()
        journal.close()
        return states, first.id if first else None

    with pytest.raises(UsageError, match="no job's id"):
        app(["queue", "cancel", "run-3", "nope"], standalone_mode=False)
    assert jobs()[0] == ["succeeded", "pending", "pending", "pending"], "one is not there: none is cancelled"
    app(["queue", "first", "run-4", "run-3"], standalone_mode=False)
    assert jobs()[1] == "run-4-abcdef10"
    with pytest.raises(UsageError, match="Could not cancel run-1-abcdef10"):
        app(["queue", "cancel", "run-2", "run-1", "run-3"], standalone_mode=False)
    assert jobs()[0] == ["succeeded", "cancelled", "cancelled", "pending"]
    assert capsys.readouterr().out.count("is cancelled") == 2
    journal = Journal(StatePaths(state).journal)
    journal.jobs.start("run-4-abcdef10", None)
    journal.close()
    app(["queue", "pause", "run-4"], standalone_mode=False)
    with pytest.raises(UsageError, match="it has begun, and is paused"):
        app(["queue", "first", "run-4"], standalone_mode=False)
