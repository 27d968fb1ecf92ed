"""Runs inside of runs, and runs that are called like our own words: every export has its place, in no other one and through no link."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from daemon.config.places.export_names import folded
from daemon.config.places.paths import Paths, prepare
from daemon.config.settings import Settings
from daemon.contract.disk.export_layout import MANIFEST, manifest_of
from daemon.contract.disk.files import seal
from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.messages import ArtifactCheck, CheckpointRef, JobFacts, Outcome, StageFacts, StageResult, Verdict
from daemon.contract.jobs.plan import stage_names
from daemon.contract.values import digest_of
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow, StageRow
from daemon.publishing.publication import publish_job
from daemon.publishing.verification import exports_below, verify
from daemon.watching.taking.places import Places, takings_of
from tests.journal.entries import WORK


class Printer:
    """Gives places by a real journal, and publishes there as the runner does: one file a variant."""

    def __init__(self, home: Path, naming: str = "{run}/step-{step}") -> None:
        self.home = home
        self.settings = Settings(output={"directory": home / "exports", "naming": naming}, state={"directory": home / "state"})
        self.paths: Paths = prepare(home / "state", home / "exports")
        self.journal = Journal(self.paths.journal)

    def take(self, run: str, step: int = 1, *, root: str = "/runs", ending: bool = False, path: str = "") -> JobRow:
        path = path or f"{root}/{run}/{f'final_{step}' if ending else f'checkpoint-{step}'}"
        reference = CheckpointRef(
            root=root, run=run, step=step, path=path, layout="trainer-adapter", digest=digest_of([run, step, root, ending]), method="LORA",
            ending=ending, metadata={"best_model_checkpoint": path},
        )  # fmt: skip
        target = Places(self.settings, self.journal, self.paths).of(reference, takings_of(self.journal.jobs.places()))
        name = f"job-{reference.identity[:16]}"
        self.journal.jobs.add(NewJob(name, reference, WORK, stage_names(WORK, reference.layout), self.home / "pin", target, "x"))
        return JobRow(name, "running", reference, WORK, self.home / "pin", target, None, "2026", None, None)

    def publish(self, job: JobRow, verdict: Verdict = Verdict.PASSED) -> Path:
        rows = {}
        for name in ("pytorch", "onnx", "onnx-int8", "report"):
            folder = self.paths.staging / job.id / f"{name}.1"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "file").write_text(f"{name} of {job.id}")
            rows[name] = row(name, folder, seal(folder))
        for name, variant in (("merged", "pytorch"), ("check-onnx", "onnx"), ("check-onnx-int8", "onnx-int8")):
            rows[name] = row(name, self.home, (), (ArtifactCheck(variant=variant, verdict=verdict),))
        stages = tuple(StageFacts(name=name, state=one.state, result=one.result) for name, one in rows.items())
        facts = JobFacts(export_id=job.id, created="", checkpoint=job.checkpoint, work=WORK, stages=stages)
        return publish_job(job, facts, rows, self.paths, keep_rejected=False).target


def row(name: str, folder: Path, files: tuple, checks: tuple[ArtifactCheck, ...] = ()) -> StageRow:
    return StageRow(name, "succeeded", 1, 0, None, None, folder, StageResult(outcome=Outcome.SUCCEEDED, files=files, checks=checks), None)


@contextmanager
def printer_in(home: Path, naming: str = "{run}/step-{step}") -> Iterator[Printer]:
    one = Printer(home, naming)
    try:
        yield one
    finally:
        one.journal.close()


@pytest.fixture
def printer(tmp_path: Path) -> Iterator[Printer]:
    with printer_in(tmp_path) as one:
        yield one


def assert_apart(published: list[tuple[JobRow, Path]], output: Path) -> None:
    """Each export lies where it was published, whole, alone, and reached through no link."""
    for job, place in published:
        assert place.is_relative_to(output)
        assert Path(os.path.realpath(place)) == Path(os.path.realpath(output)) / place.relative_to(output), "through a link"
        assert manifest_of(place)["export_id"] == job.id, f"{job.checkpoint.run} has another's place"
        assert verify(place).problems == ()
        assert all(len(os.fsencode(part)) <= 255 for part in place.parts)
        assert not any(part.startswith(".") for part in place.relative_to(output).parts)
    keys = [tuple(map(folded, place.relative_to(output).parts)) for _, place in published]
    assert len(set(keys)) == len(keys)
    for one in keys:
        assert not any(other != one and other[: len(one)] == one for other in keys), "an export inside another one"
    assert set(exports_below(output)) == {place for _, place in published}, "an export that none of them is, or one that was moved aside"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_runs_inside_of_runs_neither_move_nor_write_into_each_other(printer: Printer, order: tuple[int, ...]) -> None:
    runs = [("nest", 500), ("nest/step-500", 1), ("nest/latest", 1)]
    published = []
    for number in order:
        job = printer.take(*runs[number])
        published.append((job, printer.publish(job)))
    assert_apart(published, printer.paths.output)
    assert next(place for job, place in published if job.checkpoint.run == "nest") == printer.paths.output / "nest" / "step-500"
    assert (printer.paths.output / "nest" / "latest").resolve().name == "step-500"
    for job, place in published:
        assert os.readlink(place.parent / "latest") == place.name, job.checkpoint.run


@pytest.mark.parametrize("naming", ["{run}/{step}", "{run}-{step}", "{step}/{run}", "x/{run}/{step:04d}", "{run}/{step}/{identity}"])
def test_other_naming_patterns_keep_them_apart_too(tmp_path: Path, naming: str) -> None:
    with printer_in(tmp_path, naming) as printer:
        names = (
            "nest",
            "nest/500",
            "nest/0500",
            "nest-500",
            "nest-latest",
            "nest/latest",
            "500/nest",
            "nest/500/latest",
            ".kept",
            "nest/1",
        )
        published = []
        for run in names:
            for step in (1, 500):
                job = printer.take(run, step)
                published.append((job, printer.publish(job)))
        assert_apart(published, printer.paths.output)


def test_two_runs_that_share_a_folder_have_a_link_each(tmp_path: Path) -> None:
    with printer_in(tmp_path, "{run}-{step}") as printer:
        (tmp_path / "first" / "run").mkdir(parents=True)
        for root in (str(tmp_path / "first"), str(tmp_path / "second")):
            printer.publish(printer.take("run", 7, root=root))
        links = {
            path.name: manifest_of(path)["root"] for path in printer.paths.output.iterdir() if path.is_symlink() and "latest" in path.name
        }
        assert len(links) == 2 and set(links.values()) == {str(tmp_path / "first"), str(tmp_path / "second")}
        assert links["run-latest"] == str(tmp_path / "first")


def test_a_folder_in_the_place_of_a_link_does_not_keep_an_export_from_ending(printer: Printer) -> None:
    (printer.paths.output / "run" / "latest").mkdir(parents=True)
    place = printer.publish(printer.take("run"))
    assert (printer.paths.output / "run" / "latest").is_dir() and not (printer.paths.output / "run" / "latest").is_symlink()
    assert [path.resolve() for path in place.parent.glob("latest~*")] == [place]


def test_a_folder_that_became_a_link_between_look_and_publication_is_not_written_through(printer: Printer, tmp_path: Path) -> None:
    job = printer.take("nest/inner")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "inner").mkdir(parents=True)
    (printer.paths.output / "nest").symlink_to(elsewhere)
    with pytest.raises(Permanent, match="nest, which is a link") as caught:
        printer.publish(job)
    assert caught.value.fault.code == "target-taken"
    assert os.listdir(elsewhere / "inner") == [] and os.listdir(elsewhere) == ["inner"]
    (printer.paths.output / "nest").unlink()
    assert verify(printer.publish(job)).sound


def test_a_folder_that_became_an_export_meanwhile_is_not_written_into(printer: Printer) -> None:
    inner = printer.take("team/model")
    sealed = printer.paths.output / "team"
    shutil.copytree(printer.publish(printer.take("other")), sealed)
    with pytest.raises(Permanent, match="team, which is another export"):
        printer.publish(inner)
    assert verify(sealed).sound


def test_a_folder_with_exports_is_not_moved_aside(printer: Printer) -> None:
    job = printer.take("run", 5)
    other = printer.publish(printer.take("away", 5))
    place = printer.paths.output / "run" / "step-5"
    place.mkdir(parents=True)
    os.rename(other, place / "step-1")
    with pytest.raises(Permanent, match="contains exports of another run"):
        printer.publish(job)
    assert verify(place / "step-1").sound


@pytest.mark.parametrize("point", ["publish.before-rename", "publish.renamed", "publish.before-link"])
def test_a_link_that_is_put_there_in_the_middle_of_a_publication_leads_it_nowhere(
    printer: Printer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The run's folder is renamed and replaced by a link to a folder of a victim at an instant of the publication."""
    victim = tmp_path / "victim"
    victim.mkdir()
    before = os.stat(victim).st_mtime_ns
    place = printer.paths.output / "run"
    done = []

    def attack(name: str) -> None:
        if name == point and not done:
            done.append(name)
            place.rename(tmp_path / "moved")
            place.symlink_to(victim)

    monkeypatch.setattr("daemon.contract.disk.failpoints.point", attack)
    printer.publish(printer.take("run"))
    assert done == [point]
    assert os.listdir(victim) == [] and os.stat(victim).st_mtime_ns == before
    assert verify(tmp_path / "moved" / "step-1").sound


@pytest.mark.parametrize("kind", ["pipe", "huge", "deep"])
def test_what_somebody_puts_in_the_place_of_a_manifest_does_not_stop_a_publication(printer: Printer, kind: str) -> None:
    theirs = printer.paths.output / "run" / "theirs"
    theirs.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(theirs / MANIFEST)
    elif kind == "huge":
        with open(theirs / MANIFEST, "wb") as stream:
            stream.truncate(1 << 40)
    else:
        (theirs / MANIFEST).write_text("[" * 100_000)
    (theirs.parent / "latest").symlink_to("theirs")
    theirs.parent.joinpath("step-1").symlink_to("theirs")
    assert verify(printer.publish(printer.take("run"))).sound


def test_what_was_put_into_an_export_stays_where_it_is_and_readable(printer: Printer) -> None:
    outer = printer.publish(printer.take("nest", 500))
    inner = printer.publish(printer.take("elsewhere", 1))
    os.rename(inner, outer / "step-1")
    (outer / "latest").symlink_to("step-1")
    job = printer.take("nest/step-500", 2)
    place = printer.publish(job)
    assert outer not in place.parents
    assert verify(outer / "step-1").sound


WORDS = [
    "nest", "Nest", "latest", "LATEST", "best", "step-5", "step-5.failed", "Step-5", "final", "final.", "nest.", "nest ", "...", ".staging",
    ".kept", MANIFEST, MANIFEST.lower(), "caf\u00e9", "cafe\u0301", "CAF\u00c9", "\u200b.kept", "a" * 255,
    "a" * 254 + "b", "é" * 127, "nest-latest",
    "step-5.before-ckptd-20260101T000000", "rejected", "pytorch", "1", "~", "nest~abcdef",
    "\u212bngstrom", "\u00e5ngstrom", "ﬁnal", "ſtep-5",
]  # fmt: skip
RUNS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map("/".join)
TAKEN = st.tuples(RUNS, st.sampled_from([1, 5]), st.booleans(), st.sampled_from(["/runs", "/other"]))
NAMINGS = st.sampled_from(["{run}/step-{step}", "{run}-{step}", "{step}/{run}", "{run}/{step}"])


@given(st.lists(TAKEN, min_size=2, max_size=10, unique=True), NAMINGS)
@example([("nest", 5, False, "/runs"), ("nest/step-5", 1, False, "/runs"), ("nest/latest", 1, False, "/runs")], "{run}/step-{step}")
@example([("nest", 1, False, "/runs"), ("latest/nest", 1, True, "/runs"), ("final", 1, True, "/runs")], "{step}/{run}")
@example([("nest", 1, False, "/runs"), ("latest", 1, True, "/runs"), ("final", 1, True, "/runs")], "{step}/{run}")
@example([("nest", 1, True, "/runs"), ("nest-latest", 1, False, "/runs"), ("nest", 1, False, "/runs")], "{step}/{run}")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_tree_of_runs_brings_two_exports_together(taken: list[tuple[str, int, bool, str]], naming: str) -> None:
    with tempfile.TemporaryDirectory() as home, printer_in(Path(home), naming) as printer:
        jobs = [printer.take(run, step, ending=ending, root=root) for run, step, ending, root in taken]
        assert_apart([(job, printer.publish(job)) for job in reversed(jobs)], printer.paths.output)


@given(st.lists(TAKEN, min_size=2, max_size=6, unique=True), NAMINGS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nor_where_each_is_published_before_the_next_is_taken_and_some_fail(taken: list[tuple[str, int, bool, str]], naming: str) -> None:
    with tempfile.TemporaryDirectory() as home, printer_in(Path(home), naming) as printer:
        published = []
        for number, (run, step, ending, root) in enumerate(taken):
            job = printer.take(run, step, ending=ending, root=root)
            published.append((job, printer.publish(job, Verdict.FAILED if number % 3 == 2 else Verdict.PASSED)))
        assert_apart(published, printer.paths.output)


def test_verify_says_of_an_export_inside_of_another_what_to_do_and_then_both_are_sound(printer: Printer) -> None:
    """As a person may put it there."""
    outer = printer.publish(printer.take("nest", 500))
    inner = printer.publish(printer.take("elsewhere", 1))
    os.rename(inner, outer / "step-1")
    (outer / "latest").symlink_to("step-1")
    problems = verify(outer).problems
    assert [(problem.code, problem.path) for problem in problems] == [("symlink", "latest"), ("inside", "step-1")]
    for problem in problems:
        command = str(problem.remedy).split("`")[1]
        subprocess.run(command, shell=True, check=True)
    assert verify(outer).sound
    assert verify(outer.with_name("step-500-step-1")).sound
