"""Exports in TensorBoard, MLflow and W&B, written by their libraries, and read back by them: each export once, however often it is told."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.config.notify import NotifySettings
from tests.notify.conftest import Notify, deliver
from tests.service import Service
from tests.trackers.conftest import Exports, MlflowServer, read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
Again = Callable[[], None]
NOON = 1772366400.0
"""The reports' time at step 0."""


def settings(library: Path, **table: Any) -> NotifySettings:
    return NotifySettings(targets=[{"name": "it", "python": str(library), **table}]).with_file()  # type: ignore[arg-type]


def test_each_artifact_is_a_run_of_tensorboard_with_a_point_for_each_step(
    library: Path, tmp_path: Path, exports: Exports, notifier_of: Notify, again: Again
) -> None:
    notifier = notifier_of(settings(library, tensorboard=str(tmp_path / "events")))
    exports.ends(4, rejected=("onnx-int8",), state="partial")
    exports.ends(2)
    deliver(notifier)
    first = read(library, "tensorboard", tmp_path / "events")
    again()
    deliver(notifier)
    assert [row[0] for row in exports.waiting()] == ["delivered"] * 2
    seen = read(library, "tensorboard", tmp_path / "events")
    assert seen == first, "a second delivery changes nothing"
    assert seen["llama/onnx-int8"]["ckptd/passed"] == [[2, NOON + 120, 1], [4, NOON + 240, 0]]
    assert [round(point[2], 6) for point in seen["llama/onnx"]["ckptd/perplexity_ratio"]] == [1.01, 1.01]
    assert set(seen["llama/onnx"]) == {
        f"ckptd/{name}" for name in ("passed", "size_bytes", "size_ratio", "kl", "agreement", "perplexity", "perplexity_ratio", "accuracy")
    }, "what was not measured is not there"


def test_mlflow_gets_one_version_of_an_export_though_it_was_away_and_the_message_comes_twice(
    library: Path, exports: Exports, notifier_of: Notify, server: MlflowServer, again: Again
) -> None:
    server.stop()
    notifier = notifier_of(settings(library, mlflow=server.url, model="{run}", alias="champion"))
    job = exports.ends(4, run="away")
    deliver(notifier)
    assert exports.waiting() == [("pending", 1, "the server does not answer: Connection refused")]
    server.start()
    for _ in range(2):
        again()
        exports.journal.outbox.hasten()
        deliver(notifier)
    assert exports.waiting() == [("delivered", 3, None)]
    seen = server.has("away")
    (run,), (version,) = seen["runs"], seen["versions"]
    assert run["name"] == "away" and run["status"] == "FINISHED" and run["files"] == {"step-4": ["report.html", "report.json"]}
    assert run["metrics"]["onnx/kl"] == [[4, int(1000 * (NOON + 240)), 0.02]] and run["metrics"]["onnx-int8/passed"][0][2] == 1
    assert version["source"] == f"runs:/{run['id']}/step-4" and version["run"] == run["id"]
    tags = version["tags"]
    assert (tags["ckptd.job"], tags["ckptd.step"], tags["ckptd.verdict"]) == (job, "4", "succeeded")
    assert tags["ckptd.folder"] == str(exports.folder / "away" / "step-4") and tags["ckptd.checkpoint"] == "/runs/away/checkpoint-4"
    assert seen["aliases"] == {"champion": 1}


def test_the_alias_goes_to_what_passed_alone_and_never_back(
    library: Path, exports: Exports, notifier_of: Notify, server: MlflowServer
) -> None:
    server.start()
    notifier = notifier_of(settings(library, mlflow=server.url, model="{run}", alias="champion"))
    expected = []
    for step, state, holder in ((4, "succeeded", 4), (2, "succeeded", 4), (6, "partial", 4), (8, "succeeded", 8)):
        exports.ends(step, state, run="forward", rejected=("onnx-int8",) if state == "partial" else ())
        deliver(notifier)
        seen = server.has("forward")
        steps = {version["number"]: int(version["tags"]["ckptd.step"]) for version in seen["versions"]}
        assert steps[seen["aliases"]["champion"]] == holder, (step, seen)
        expected.append(step)
        assert sorted(steps.values()) == sorted(expected)
    assert len(seen["runs"]) == 1 and [point[0] for point in seen["runs"][0]["metrics"]["onnx/kl"]] == [2, 4, 6, 8]


def test_a_version_of_a_variant_goes_by_its_verdict_and_a_store_without_a_server_gets_its_folder(
    library: Path, tmp_path: Path, exports: Exports, notifier_of: Notify
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    notifier = notifier_of(settings(library, mlflow=store, model="{run}-onnx", alias="best", variant="onnx"))
    exports.ends(4, "partial", run="a/b", rejected=("onnx-int8",))
    deliver(notifier)
    exports.ends(6, "partial", run="a/b", rejected=("onnx",))
    exports.ends(8, "partial", run="a/b", rejected=("onnx-int8",))
    deliver(notifier)
    seen = read(library, "mlflow", store, "a-b-onnx")
    assert [version["source"] for version in seen["versions"]] == [f"{exports.folder}/a/b/step-{step}/onnx" for step in (4, 8)]
    assert [version["tags"]["ckptd.verdict"] for version in seen["versions"]] == ["passed", "passed"] and seen["aliases"] == {"best": 2}


def test_a_kill_between_the_version_and_its_alias_leaves_one_version_which_gets_it(
    library: Path, tmp_path: Path, exports: Exports, notifier_of: Notify, server: MlflowServer
) -> None:
    server.start()
    mortal = tmp_path / "python"
    mortal.write_text(
        f'#!/bin/sh\n[ "$2" = look ] || [ -e {tmp_path}/died ] && exec {library} "$@"\ntouch {tmp_path}/died\n'
        f"exec {library} -c 'import os, runpy, sys; from mlflow import MlflowClient as client\n"
        "client.set_registered_model_alias = lambda *_: os.kill(os.getpid(), 9)\n"
        'sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")\' "$@"\n'
    )
    mortal.chmod(0o755)
    notifier = notifier_of(settings(mortal, mlflow=server.url, model="{run}", alias="champion"))
    exports.ends(4, run="killed")
    deliver(notifier)
    assert exports.waiting() == [("pending", 1, "the command ended with signal 9")]
    assert (lambda seen: (len(seen["versions"]), seen["aliases"]))(server.has("killed")) == (1, {})
    exports.journal.outbox.hasten()
    deliver(notifier)
    seen = server.has("killed")
    assert exports.waiting() == [("delivered", 2, None)] and len(seen["versions"]) == 1 and seen["aliases"] == {"champion": 1}


def test_a_resend_does_not_take_the_alias_back_from_what_somebody_chose(
    library: Path, exports: Exports, notifier_of: Notify, server: MlflowServer, again: Again
) -> None:
    server.start()
    notifier = notifier_of(settings(library, mlflow=server.url, model="{run}", alias="champion"))
    exports.ends(2, run="chosen")
    exports.ends(4, run="chosen")
    deliver(notifier)
    chosen = "import sys, mlflow; mlflow.MlflowClient(sys.argv[1]).set_registered_model_alias('chosen', 'champion', 1)"
    subprocess.run([library, "-c", chosen, server.url], check=True)
    again()
    deliver(notifier)
    assert server.has("chosen")["aliases"] == {"champion": 1}


def test_wandb_gets_a_run_for_each_export_as_files_once(
    library: Path, tmp_path: Path, exports: Exports, notifier_of: Notify, again: Again
) -> None:
    notifier = notifier_of(settings(library, wandb="team/quality", offline=True, folder=str(tmp_path / "files")))
    job = exports.ends(4)
    deliver(notifier)
    again()
    deliver(notifier)
    assert exports.waiting() == [("delivered", 2, None)]
    (file,) = (tmp_path / "files" / "wandb").glob("offline-run-*/run-*.wandb")
    seen = read(library, "wandb", file)
    run, (row,) = seen["run"], seen["rows"]
    assert (run["entity"], run["project"], run["run_group"], run["job_type"]) == ("team", "quality", "llama", "export")
    assert run["config"]["job"] == job and run["config"]["checkpoint"] == "/runs/llama/checkpoint-4"
    assert (row["checkpoint_step"], row["onnx/kl"], row["onnx-int8/passed"]) == (4, 0.02, 1) and seen["summary"]["state"] == "succeeded"
    assert set(seen["files"]) == {"report.json", "report.html"}
    said = subprocess.run([library, "-m", "wandb", "sync", "--dry-run", file.parent], capture_output=True, text=True, check=False)
    assert "Would sync 1 run" in said.stdout + said.stderr


@pytest.mark.parametrize("table", [
    {"mlflow": "http://127.0.0.1:1/S3CRETplace", "model": "m"}, {"mlflow": "http://someone:S3CRETword@127.0.0.1:1"},
    {"wandb": "p"},
])  # fmt: skip
def test_a_wrong_address_or_key_is_said_in_a_sentence_without_it(
    library: Path, tmp_path: Path, table: dict[str, Any], exports: Exports, notifier_of: Notify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    key = tmp_path / "key"
    key.write_text("S3CRET" * 7 + "\n")
    notifier = notifier_of(settings(library, **{**table, "key_file": str(key)}))
    exports.ends(4)
    deliver(notifier)
    ((state, _, error),) = exports.waiting()
    assert state == "pending" and error and "S3CRET" not in error and "\n" not in error and len(error) <= 400, error


def test_a_daemon_writes_what_the_report_of_a_real_export_says(
    library: Path, tmp_path: Path, pico_checkpoint: Path, make_service: Callable[..., Service]
) -> None:
    table = f'[[notify.targets]]\nname = "tb"\ntensorboard = "{tmp_path}/events"\npython = "{library}"\n'
    service = make_service(extra=table)
    service.start()
    service.add(pico_checkpoint)
    (job,) = service.wait_ended(seconds=900)
    service.wait_for(lambda status: status["outbox"].get("delivered") == 1, 300)
    assert service.run_verb("notify", "test") == 0, service.said
    assert "notify.targets.tb (tensorboard): delivered" in service.said
    report = json.loads((Path(job["target"]) / "report.json").read_text())
    (row,) = report["artifacts"]
    seen = {tag: points[0] for tag, points in read(library, "tensorboard", tmp_path / "events")["run/pytorch"].items()}
    assert seen["ckptd/passed"][::2] == [4, 1.0]
    for name in ("kl", "agreement", "perplexity_ratio"):
        assert seen[f"ckptd/{name}"][2] == pytest.approx(row["figures"][name], rel=1e-6)


def test_the_alias_never_names_files_that_did_not_pass(
    library: Path, tmp_path: Path, exports: Exports, notifier_of: Notify, again: Again
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    notifier = notifier_of(settings(library, mlflow=store, model="{run}", alias="champion"))
    exports.ends(4)
    deliver(notifier)
    assert read(library, "mlflow", store, "llama")["aliases"] == {"champion": 1}
    exports.ends(4, "partial", rejected=("onnx-int8",), job="llama-4-again")
    deliver(notifier)
    again()
    deliver(notifier)
    seen = read(library, "mlflow", store, "llama")
    assert seen["aliases"] == {} and seen["versions"][0]["tags"]["ckptd.replaced_by"] == "llama-4-again"
    exports.ends(6)
    deliver(notifier)
    assert read(library, "mlflow", store, "llama")["aliases"] == {"champion": 3}


def test_the_alias_stays_at_what_another_root_or_a_person_chose(
    library: Path, tmp_path: Path, exports: Exports, notifier_of: Notify
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    notifier = notifier_of(settings(library, mlflow=store, model="{run}", alias="champion"))
    exports.ends(4)
    deliver(notifier)
    exports.ends(2, root="/elsewhere", job="llama-2-elsewhere")
    exports.ends(8, root="/elsewhere", job="llama-8-elsewhere")
    deliver(notifier)
    seen = read(library, "mlflow", store, "llama")
    assert seen["aliases"] == {"champion": 1} and "of the same name" in seen["versions"][2]["tags"]["ckptd.alias_not_moved"]
    by_hand = "c.create_model_version('llama', '/by/hand'); c.set_registered_model_alias('llama', 'champion', 4)"
    subprocess.run([library, "-c", f"import sys, mlflow; c = mlflow.MlflowClient(sys.argv[1]); {by_hand}", store], check=True)
    exports.ends(10)
    deliver(notifier)
    seen = read(library, "mlflow", store, "llama")
    assert seen["aliases"] == {"champion": 4} and "was not made by ckptd" in seen["versions"][4]["tags"]["ckptd.alias_not_moved"]
