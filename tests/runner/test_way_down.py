"""A variant that is not exact enough: the runner makes the next form, through every restart, and says what took its place."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_bad_input import ckptd
from tests.runner.conftest import Toy, read_json

INEXACT = "onnx-int8,onnx-int8-weight"
MADE = ["merge", "onnx", "onnx-int8", "onnx-int8-weight", "onnx-fp16"]


def start(make_toy: Callable[..., Toy], checkpoint: Path, inexact: str = INEXACT, **options: object) -> Toy:
    toy = make_toy(variants=("onnx-int8",), **options)
    toy.environment["TOY_INEXACT"] = inexact
    toy.add(checkpoint)
    return toy


def test_the_next_forms_are_made_until_one_passes_and_all_say_so(make_toy: Callable[..., Toy], pico_checkpoint: Path) -> None:  # R2.5
    toy = start(make_toy, pico_checkpoint)
    toy.start()
    (job,) = toy.wait_ended()
    assert toy.stop() == 0
    assert job["state"] == "partial"
    assert job["artifacts"] == {"onnx-int8": "failed", "onnx-int8-weight": "failed", "onnx-fp16": "passed"}
    assert (job["replaced"], job["added"]) == ({"onnx-int8": "onnx-fp16"}, ["onnx-fp16", "onnx-int8-weight"])
    assert job["reason"] == "replaced by onnx-fp16" and job["error"].endswith(". Fix: use onnx-fp16, which is published in its place.")
    shown = ckptd(toy.folder, "show", job["id"], "--config", toy.config).stdout
    assert "use onnx-fp16, which is published in its place" in " ".join(shown.split()) and "retry" not in shown, "which changes nothing"
    target = Path(job["target"])
    assert sorted(path.name for path in target.iterdir() if path.is_dir()) == ["onnx-fp16"]
    assert read_json(target / "MANIFEST.json")["in_place_of"] == {"onnx-fp16": ["onnx-int8"]}
    report = read_json(target / "report.json")
    (story,) = report["replaced"]
    assert (story["asked"], story["taken"], len(story["steps"])) == ("onnx-int8", "onnx-fp16", 2)
    assert report["variants"] == ["onnx-int8"] and "onnx-fp16 takes the place of onnx-int8" in report["verdict"]
    assert [failure["variant"] for failure in report["failures"]] == ["onnx-int8"]
    assert report["failures"][0]["remedy"] == "use onnx-fp16, which is published in its place"
    assert "queue retry" not in (target / "report.html").read_text()
    for page in ("README.md", "report.html"):
        assert "takes its place" in (target / page).read_text(), page
    steps = [json.loads(line) for line in (toy.state / "ckptd.log").read_text().splitlines()]
    assert [(one["wanted"], one["taken"]) for one in steps if one["event"] == "stage.fallback"] == [
        ("onnx-int8", "onnx-int8-weight"), ("onnx-int8-weight", "onnx-fp16"),
    ]  # fmt: skip
    fsck = ckptd(toy.folder, "fsck", "--config", toy.config)
    assert fsck.returncode == 0, fsck.stdout + fsck.stderr
    assert [stage for stage in toy.stages_begun() if stage in MADE] == MADE


@pytest.mark.slow
def test_a_form_that_can_not_be_made_is_passed_over(make_toy: Callable[..., Toy], pico_checkpoint: Path) -> None:  # R2.5
    toy = start(make_toy, pico_checkpoint, inexact="onnx-int8")
    toy.environment["TOY_BROKEN"] = "onnx-int8-weight"
    toy.start()
    (job,) = toy.wait_ended()
    assert toy.stop() == 0
    assert job["artifacts"] == {"onnx-int8": "failed", "onnx-int8-weight": "failed", "onnx-fp16": "passed"}
    report = read_json(Path(job["target"]) / "report.json")
    (story,) = report["replaced"]
    assert (story["taken"], [step["taken"] for step in story["steps"]]) == ("onnx-fp16", ["onnx-fp16", "onnx-int8-weight"])
    assert "onnx-int8-weight was tried next" in story["sentence"] and "this toy can't be made" in story["sentence"]
    assert "use onnx-fp16" in next(one for one in report["failures"] if one["variant"] == "onnx-int8")["remedy"]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before.reconfigure", "after.reconfigure"])
def test_a_daemon_killed_at_a_step_down_goes_on_there(make_toy: Callable[..., Toy], pico_checkpoint: Path, place: str) -> None:  # R6.5
    toy = start(make_toy, pico_checkpoint)
    toy.start(fault=place)
    assert toy.wait_dead() == -signal.SIGKILL
    toy.start()
    (job,) = toy.wait_ended()
    assert toy.stop() == 0
    assert job["artifacts"]["onnx-fp16"] == "passed"
    assert [stage for stage in toy.stages_begun() if stage in MADE] == MADE, "nothing that was finished is made again"


@pytest.mark.slow
def test_a_journal_that_was_lost_comes_back_with_the_forms_that_were_added(make_toy: Callable[..., Toy], pico_checkpoint: Path) -> None:
    toy = start(make_toy, pico_checkpoint)
    toy.start()
    (before,) = toy.wait_ended()
    assert toy.stop() == 0
    for path in [*toy.state.glob("journal.sqlite3*"), *(toy.state / "backups").glob("*")]:
        path.unlink()
    toy.start()
    (job,) = toy.wait_ended()
    assert toy.stop() == 0
    assert (job["state"], job["artifacts"]) == (before["state"], before["artifacts"])
    assert {stage["name"]: stage["state"] for stage in job["stages"]} == {stage["name"]: stage["state"] for stage in before["stages"]}
    fsck = ckptd(toy.folder, "fsck", "--config", toy.config)
    assert fsck.returncode == 0, fsck.stdout + fsck.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "state", "published"), [("reject", "failed", []), ("publish", "partial", ["onnx-int8"])])
def test_the_configuration_may_want_nothing_or_the_variant_itself(
    make_toy: Callable[..., Toy], pico_checkpoint: Path, policy: str, state: str, published: list[str]
) -> None:
    toy = start(make_toy, pico_checkpoint)
    toy.environment["CKPTD_VALIDATE__ON_FAILED_CHECK"] = policy
    toy.start()
    (job,) = toy.wait_ended()
    assert toy.stop() == 0
    assert (job["state"], job["artifacts"]) == (state, {"onnx-int8": "failed"})
    target = Path(job["target"])
    assert sorted(path.name for path in target.iterdir() if path.is_dir()) == published
    verdict = read_json(target / "report.json")["verdict"]
    assert ("published nevertheless" in verdict) == bool(published)
    assert not (target.parent / "latest").exists()


@pytest.mark.slow
def test_a_retry_with_looser_limits_needs_the_other_forms_no_more(make_toy: Callable[..., Toy], pico_checkpoint: Path) -> None:
    toy = start(make_toy, pico_checkpoint, inexact="onnx-int8")
    toy.start()
    toy.wait_ended()
    assert toy.stop() == 0
    toy.environment["TOY_INEXACT"] = ""
    with toy.config.open("a") as stream:
        stream.write("[validate.thresholds.onnx-int8]\nkl = 1.0\n")
    toy.start()
    (job,) = toy.status()["jobs"]
    assert ckptd(toy.folder, "retry", job["id"], "--config", toy.config).returncode == 0
    toy.wait_for(lambda v: v["jobs"][0]["state"] == "succeeded")
    (job,) = toy.status()["jobs"]
    assert toy.stop() == 0
    assert job["artifacts"] == {"onnx-int8": "passed"}
    assert sorted(path.name for path in Path(job["target"]).iterdir() if path.is_dir()) == ["onnx-int8"]
