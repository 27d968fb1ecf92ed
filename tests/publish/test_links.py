"""The links `latest` and `best` of a run, and which exports may be removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from daemon.config.places.paths import Paths, prepare
from daemon.config.settings import RetentionSettings
from daemon.contract.disk.files import FileEntry, files_below, remove_tree, seal
from daemon.contract.jobs.messages import ArtifactCheck, CheckpointRef, JobFacts, Outcome, StageFacts, StageResult, Verdict
from daemon.journal.rows import JobRow, StageRow
from daemon.publishing import publication
from daemon.publishing.exchange.beneath import Spot
from daemon.publishing.exchange.ours import Looked
from daemon.publishing.links import links_from_inside
from daemon.publishing.publication import publish_job
from daemon.publishing.retention import prune
from tests.journal.entries import WORK
from tests.publish.parts import link as link_to


def test_a_link_is_relative_and_moves_in_one_step(tmp_path: Path) -> None:
    for name in ("step-2", "step-4"):
        (tmp_path / name).mkdir()
        link_to(tmp_path / "latest", tmp_path / name)
        assert os.readlink(tmp_path / "latest") == name
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-2", "step-4"]


def test_a_real_file_in_the_place_of_a_link_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    with pytest.raises(FileExistsError, match="in the way"):
        link_to(tmp_path / "latest", tmp_path / "step-4")
    assert (tmp_path / "latest").is_dir()


class Press:
    """Publishes jobs the way the runner does, with one stage's output that validation found good or bad."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.paths: Paths = prepare(home / "state", home / "exports")

    def stage(self, name: str, folder: Path, files: tuple[FileEntry, ...], checks: tuple[ArtifactCheck, ...] = ()) -> StageRow:
        result = StageResult(outcome=Outcome.SUCCEEDED, files=files, checks=checks)
        return StageRow(name, "succeeded", 1, 0, None, None, folder, result, None)

    def job(self, run: str, step: int, naming: str = "{run}/step-{step}") -> JobRow:
        """A job that is about to be published."""
        reference = CheckpointRef(
            root="/runs", run=run, step=step, path=f"/runs/{run}/checkpoint-{step}", layout="trainer-adapter", digest="d", method="LORA"
        )
        target = self.paths.output / naming.format(run=run, step=step)
        return JobRow(f"{run}-{step}", "running", reference, WORK, self.home / "pin", target, None, "", None, None)

    def publish(
        self, step: int, *, run: str = "run", verdict: Verdict = Verdict.PASSED, best: int = 0, naming: str = "{run}/step-{step}",
        path: str = "", taken: str = "", unverified: tuple[str, ...] = (),
    ) -> Path:  # fmt: skip
        made = self.paths.staging / f"{run}-{step}"
        remove_tree(made)
        for name in ("pytorch", "onnx", "onnx-int8", "report"):
            (made / name).mkdir(parents=True, exist_ok=True)
            (made / name / "file").write_text(f"{name} of {run} {step}")
        rows = {name: self.stage(name, made / name, seal(made / name)) for name in ("pytorch", "onnx", "onnx-int8", "report")}
        for name, variant in (("merged", "pytorch"), ("check-onnx", "onnx"), ("check-onnx-int8", "onnx-int8")):
            rows[name] = self.stage(name, made, (), (ArtifactCheck(variant=variant, verdict=verdict),))
        path = path or f"/runs/{run}/checkpoint-{step}"
        metadata = {"best_model_checkpoint": f"/elsewhere/{run}/checkpoint-{best}"}
        reference = CheckpointRef(
            root="/runs",
            run=run,
            step=step,
            path=path,
            layout="trainer-adapter",
            digest=f"{run}-{step}",
            method="LORA",
            metadata=metadata,
            ending=bool(taken),
        )
        target = self.paths.output / naming.format(run=run, step=step)
        work = WORK.model_copy(update={"validation": WORK.validation.model_copy(update={"publish_unverified": unverified})})
        job = JobRow(f"{run}-{step}", "running", reference, work, self.home / "pin", target, None, taken, None, None)
        stages = tuple(StageFacts(name=name, state=row.state, result=row.result) for name, row in rows.items())
        facts = JobFacts(export_id=job.id, created="", checkpoint=reference, work=work, stages=stages)
        return publish_job(job, facts, rows, self.paths, keep_rejected=False).target


@pytest.fixture
def press(tmp_path: Path) -> Press:
    return Press(tmp_path)


def visible(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def test_latest_never_goes_back_to_an_earlier_step(press: Press) -> None:
    steps = {step: press.publish(step) for step in (2, 10, 4, 9)}
    latest = press.paths.output / "run" / "latest"
    assert latest.resolve() == steps[10]
    assert press.publish(11) == latest.resolve()


def test_of_two_that_end_a_run_latest_is_the_one_that_was_taken_last(press: Press) -> None:
    for order in ((0, 1), (1, 0)):
        for one in order:
            press.publish(9, naming=f"{{run}}/final-{one}", path=f"/runs/run/final-{one}", taken=f"2026-01-01T00:00:0{one}.000+00:00")
        assert os.readlink(press.paths.output / "run" / "latest") == "final-1"
    press.publish(10)
    assert os.readlink(press.paths.output / "run" / "latest") == "step-10"


def test_latest_does_not_go_to_an_export_in_which_nothing_passed(press: Press) -> None:
    good = press.publish(2)
    unverified = press.publish(3, verdict=Verdict.UNVERIFIED, unverified=("onnx",))
    failed = press.publish(4, verdict=Verdict.FAILED)
    withheld = press.publish(5, verdict=Verdict.UNVERIFIED)
    assert (press.paths.output / "run" / "latest").resolve() == good
    assert unverified.name == "step-3"
    assert (unverified / "onnx").is_dir() and not (unverified / "pytorch").exists()
    assert withheld.name == "step-5.failed" and not (withheld / "onnx").exists()
    assert failed.name == "step-4.failed"


def test_best_goes_where_the_trainers_own_best_is(press: Press) -> None:
    for step in (2, 4, 6):
        press.publish(step, best=4)
    assert (press.paths.output / "run" / "best").resolve().name == "step-4"
    assert (press.paths.output / "run" / "latest").resolve().name == "step-6"


def test_an_export_is_told_the_links_of_its_run_as_seen_from_inside_it(press: Press) -> None:
    """`latest` is told before it is there, since a first export's report is written before it is published."""
    assert links_from_inside(press.job("run", 2)) == {"latest": "../latest", "best": ""}
    press.publish(2, best=2)
    assert links_from_inside(press.job("run", 4)) == {"latest": "../latest", "best": "../best"}
    shared = "all/{run}-{step}"
    press.publish(2, naming=shared)
    assert links_from_inside(press.job("run", 4, naming=shared))["latest"] == "../run-latest"
    assert (press.paths.output / "all" / "run-latest").is_symlink()


def test_what_lies_in_the_place_of_a_runs_link_is_not_taken_for_it(press: Press) -> None:
    folder = press.paths.output / "run"
    (folder / "best").mkdir(parents=True)
    assert links_from_inside(press.job("run", 2))["best"] == ""
    assert links_from_inside(press.job("run", 2))["latest"] == "../latest"


def test_a_failed_export_stands_beside_a_good_one_and_goes_when_the_next_try_succeeds(press: Press) -> None:
    press.publish(4, verdict=Verdict.FAILED)
    assert visible(press.paths.output / "run") == ["step-4.failed"]
    press.publish(4)
    assert visible(press.paths.output / "run") == ["latest", "step-4"]
    press.publish(4, verdict=Verdict.FAILED)
    assert visible(press.paths.output / "run") == ["latest", "step-4", "step-4.failed"]


def test_pruning_counts_the_exports_of_each_run_by_itself_where_runs_share_a_folder(press: Press) -> None:
    for run in ("a", "b"):
        for step in (2, 4):
            press.publish(step, run=run, naming="{run}-step-{step}")
    prune([press.paths.output], "a", RetentionSettings(keep_last=1), staging=press.paths.staging)
    left = ["a-latest", "a-step-4", "b-latest", "b-step-2", "b-step-4"]
    assert sorted(name for name in os.listdir(press.paths.output) if not name.startswith(".")) == left
    prune([press.paths.output], "b", RetentionSettings(keep_last=1), staging=press.paths.staging)
    left.remove("b-step-2")
    assert sorted(name for name in os.listdir(press.paths.output) if not name.startswith(".")) == left


def test_a_publication_that_can_not_be_renamed_gives_the_outputs_their_files_again(press: Press, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, target: Spot, top: Path, looked: Looked | None) -> None:
        assert all(path.is_symlink() for path in outputs), "they had been handed to the export"
        raise OSError(errno.EIO, "Input/output error", str(target.at))

    outputs = [press.paths.staging / "run-4" / name / "file" for name in ("pytorch", "onnx", "onnx-int8", "report")]
    with monkeypatch.context() as patched:
        patched.setattr(publication, "swap", refuse)
        with pytest.raises(OSError, match="Input/output") as caught:
            press.publish(4)
        assert caught.value.filename == str(press.paths.output / "run" / "step-4"), "the name that people know"
    assert [path.read_text() for path in outputs if not path.is_symlink()] == [f"{path.parent.name} of run 4" for path in outputs]
    target = press.publish(4)
    assert [path for path in files_below(target) if path.stat().st_nlink != 1] == []
