"""What is published is a plain file with one link, whoever else has its bytes, and whenever the publisher is killed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract.disk.export_layout import MANIFEST, README
from daemon.contract.disk.files import FileEntry, files_below, seal, sha256_file
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.publishing import lending
from daemon.publishing.exchange import swap
from daemon.publishing.exchange.swap import complete_swaps, start_afresh
from daemon.publishing.kept import OutputCache, is_whole, lend_others
from daemon.publishing.lending import is_as_lent, lend_staged, take_all_back
from daemon.publishing.publication import ExportPart, assemble
from tests.publish.parts import swap_in
from tests.sampling import some
from tests.verbs import run_program

KEY = "key-of-onnx"


class Job:
    """A job with its outputs: merge and pytorch share the weights with the pin; onnx was kept by an earlier job that did not publish it."""

    def __init__(self, home: Path) -> None:
        self.home, self.target = home, home / "out" / "run" / "step-4"
        self.all_staging, self.kept, self.pin = home / "out" / ".staging", home / "out" / ".kept", home / "pin"
        self.staging = self.all_staging / "job"
        self.merge, self.pytorch, self.onnx = self.staging / "merge.1", self.staging / "pytorch.1", self.kept / KEY / "files"
        self.report = self.staging / "report.1"

    def make(self, fill: Callable[[Job], None] = lambda job: None) -> Job:
        """Lay it out. `fill` may put other files in its place before they are sealed."""
        for folder in (self.pin, self.merge, self.pytorch, self.onnx):
            folder.mkdir(parents=True)
        (self.pin / "model.safetensors").write_text("weights 1")
        for folder in (self.merge, self.pytorch):
            os.link(self.pin / "model.safetensors", folder / "model.safetensors")
            (folder / "config.json").write_text("config 1")
        for name in ("model.onnx", "model.onnx.data"):
            (self.onnx / name).write_text(f"{name} 1")
        (self.report / "onnx").mkdir(parents=True)
        (self.report / "onnx" / README).write_text("what it is")
        fill(self)
        result = StageResult(outcome=Outcome.SUCCEEDED, files=seal(self.onnx))
        (self.kept / KEY / "result.json").write_text(result.model_dump_json())
        (self.home / "files.json").write_text(
            json.dumps({name: [one.model_dump() for one in seal(folder)] for name, folder in self.outputs.items()})
        )
        return self

    @property
    def outputs(self) -> dict[str, Path]:
        return {"merge": self.merge, "pytorch": self.pytorch, "onnx": self.onnx, "report": self.report}

    def files(self, name: str) -> tuple[FileEntry, ...]:
        return tuple(FileEntry(**one) for one in json.loads((self.home / "files.json").read_bytes())[name])

    def is_whole(self) -> dict[str, bool]:
        return {name: is_whole(folder, self.files(name)) for name, folder in self.outputs.items()}

    def publish(self) -> None:
        """As `daemon.publishing.publication` does it."""
        places = {"pytorch": "pytorch", "onnx": "onnx", "report": ""}
        parts = [ExportPart(place, self.outputs[name], self.files(name)) for name, place in places.items()]
        start_afresh(self.staging / "publish")
        assemble(parts, self.staging / "publish", {}, replaced=self.target)
        self.target.parent.mkdir(exist_ok=True)
        lend_staged(self.staging, self.target, (self.kept, self.pin))
        swap_in(self.staging / "publish", self.target)
        lend_others(self.staging, self.target, self.kept, self.pin)

    def restart(self) -> None:
        complete_swaps(self.all_staging)
        take_all_back(self.all_staging)


def several_links(folder: Path) -> list[str]:
    """All below a published export that is no plain file with one link."""
    odd = [path for path in folder.rglob("*") if path.is_symlink() or not (path.is_file() or path.is_dir())]
    return sorted(path.name for path in [*odd, *(path for path in files_below(folder) if path.stat().st_nlink != 1)])


WHOLE = {"merge": True, "pytorch": True, "onnx": True, "report": True}
PUBLISHED = [MANIFEST, "onnx/README.md", "onnx/model.onnx", "onnx/model.onnx.data", "pytorch/config.json", "pytorch/model.safetensors"]


def published(job: Job) -> list[str]:
    return sorted(path.relative_to(job.target).as_posix() for path in files_below(job.target))


def test_a_published_file_has_one_link_and_outputs_pin_and_kept_outputs_still_lead_to_it(tmp_path: Path) -> None:
    job = Job(tmp_path).make()
    job.publish()
    assert published(job) == PUBLISHED
    assert several_links(job.target) == []
    assert job.is_whole() == WHOLE
    assert (job.pin / "model.safetensors").read_text() == "weights 1"
    assert job.onnx.is_symlink() and not (job.onnx / "model.onnx.data").is_symlink(), "ONNX's readers refuse weights that are a symlink"
    assert sum(path.lstat().st_size for path in files_below(job.staging)) < 3000, "no second copy of anything that was published"


def test_it_has_one_link_the_moment_it_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path).make()
    (job.onnx / "model.onnx").unlink()  # what other jobs may be reading is let go of after the rename
    (job.onnx / "model.onnx").write_text("model.onnx 1")
    seen = list[list[str]]()
    genuine = os.rename

    def rename(source: Path, target: Path) -> None:
        genuine(source, target)
        if Path(os.path.realpath(target)) == job.target:
            seen.append(several_links(job.target / "pytorch"))

    (job.pin / "model.safetensors").unlink()
    monkeypatch.setattr(os, "rename", rename)
    job.publish()
    assert seen == [[]]


def test_the_same_export_published_again_shares_no_file_with_the_one_that_went(tmp_path: Path) -> None:
    job = Job(tmp_path).make()
    job.publish()
    inode = (job.target / "pytorch" / "model.safetensors").stat().st_ino
    job.publish()
    assert several_links(job.target) == []
    assert job.is_whole() == WHOLE and is_as_lent(job.onnx) and is_as_lent(job.merge)
    assert (job.target / "pytorch" / "model.safetensors").stat().st_ino == inode, "it was moved, not copied"


def test_an_export_elsewhere_of_the_same_outputs_has_files_of_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path).make()
    job.publish()
    first, job.target = job.target, job.target.with_name("step-5")
    job.publish()
    assert several_links(first) == several_links(job.target) == []
    for name in PUBLISHED[1:]:
        assert (first / name).stat().st_ino != (job.target / name).stat().st_ino
        assert (first / name).read_bytes() == (job.target / name).read_bytes()


def test_a_file_that_somebody_else_has_a_name_of_is_copied(tmp_path: Path) -> None:
    job = Job(tmp_path).make()
    os.link(job.pin / "model.safetensors", tmp_path / "the trainer's own")
    job.publish()
    assert several_links(job.target) == []
    with open(tmp_path / "the trainer's own", "r+") as stream:
        stream.write("WEIGHTS")
    assert (job.target / "pytorch" / "model.safetensors").read_text() == "weights 1"


def test_a_file_that_is_in_two_variants_is_two_files(tmp_path: Path) -> None:
    job = Job(tmp_path).make()
    (job.onnx / "model.onnx.data").unlink()
    os.link(job.pytorch / "model.safetensors", job.onnx / "model.onnx.data")
    (tmp_path / "files.json").unlink()
    (tmp_path / "files.json").write_text(
        json.dumps({name: [one.model_dump() for one in seal(folder)] for name, folder in job.outputs.items()})
    )
    job.publish()
    assert several_links(job.target) == []
    assert (job.target / "onnx" / "model.onnx.data").read_text() == "weights 1"


def test_a_target_on_another_file_system_gets_copies_and_outputs_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path).make()
    genuine, stat = os.rename, os.stat

    def rename(first: Path, second: Path) -> None:
        if Path(first).parent != Path(second).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        genuine(first, second)

    def another_device(path: Path, **options: object) -> os.stat_result:
        found = stat(path, **options)  # type: ignore[arg-type]
        return os.stat_result([*found[:2], found.st_dev + 1, *found[3:]]) if path == job.target.parent else found

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(lending.os, "stat", another_device)
    job.publish()
    monkeypatch.undo()
    assert several_links(job.target) == []
    assert job.is_whole() == WHOLE
    assert list(job.merge.iterdir()) and not any(path.is_symlink() for path in job.merge.iterdir())


def test_writing_into_a_published_file_leaves_what_was_kept_of_it_unused(tmp_path: Path) -> None:
    job = Job(tmp_path).make()
    job.publish()
    cache = OutputCache(job.kept)
    assert cache.find(KEY) is not None
    weights = job.target / "onnx" / "model.onnx.data"
    weights.write_text(weights.read_text().upper())
    assert cache.find(KEY) is None
    assert not (job.kept / KEY).exists()


def test_a_change_that_hides_behind_the_former_time_is_found_by_the_digest(tmp_path: Path) -> None:
    job = Job(tmp_path).make()
    job.publish()
    weights = job.target / "onnx" / "model.onnx.data"
    status = weights.stat()
    weights.write_text(weights.read_text().upper())
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert job.is_whole() == {**WHOLE, "onnx": False}


def test_a_kept_output_is_gone_with_the_export_that_it_refers_to(tmp_path: Path) -> None:
    job = Job(tmp_path).make()
    job.publish()
    swap.remove_any(job.target)
    assert OutputCache(job.kept).trim(1 << 30, in_use=()) == [KEY]


def test_bytes_that_kept_outputs_share_with_each_other_alone_count_once(tmp_path: Path) -> None:
    cache = OutputCache(tmp_path / "kept")
    for key in ("merge", "pytorch"):
        made = tmp_path / "staging" / f"{key}.1"
        made.mkdir(parents=True)
        if key == "merge":
            (made / "model").write_bytes(b"x" * 1000)
        else:
            os.link(tmp_path / "kept" / "merge" / "files" / "model", made / "model")
        cache.keep(key, made, StageResult(outcome=Outcome.SUCCEEDED, files=seal(made)))
    assert cache.trim(1000, in_use=()) == []
    assert sorted(cache.trim(999, in_use=())) == ["merge", "pytorch"]


BEGINNING = [
    "publish.part",
    "publish.part",
    "publish.part",
    "publish.assembled",
    "publish.manifest",
    "publish.lending",
    "publish.lent",
    "publish.before-rename",
]
END = ["publish.renamed", "publish.parent-durable"]
LATER = ["publish.kept-lending", "publish.kept-lent", "kept.referring"]
SEQUENCES = {
    "first": [*BEGINNING, *END, *LATER],
    "again": [*BEGINNING, "publish.swap-recorded", "publish.exchanged", *END, "publish.retired", "publish.old-removed"],
}
"""Which publication of the job → the points that it passes."""
CASES = [(which, point) for which, points in SEQUENCES.items() for point in dict.fromkeys(points)]

PROGRAM = "import sys; from pathlib import Path; from tests.publish.test_one_link import Job; Job(Path(sys.argv[1])).publish()"
RESTART = "import sys; from pathlib import Path; from tests.publish.test_one_link import Job; Job(Path(sys.argv[1])).restart()"


def elsewhere(program: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own."""
    return run_program(program, home, **environment)


def prepared(home: Path, which: str) -> Job:
    """A job whose outputs are to be published: `again`, with a pytorch output that was made anew."""
    job = Job(home).make()
    if which == "again":
        job.publish()
        (job.pytorch / "config.json").unlink()
        (job.pytorch / "config.json").write_text("config 1")
    return job


@pytest.mark.parametrize("which", SEQUENCES)
def test_every_step_has_its_named_point(tmp_path: Path, which: str) -> None:
    prepared(tmp_path, which)
    done = elsewhere(PROGRAM, tmp_path, CKPTD_FAULT_TRACE=str(tmp_path / "trace"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trace").read_text().split() == SEQUENCES[which]


@pytest.mark.parametrize(("which", "point"), some(CASES, of=4))
def test_killed_anywhere_nothing_finished_is_lost_and_the_next_try_leaves_one_link(tmp_path: Path, which: str, point: str) -> None:  # R6.5
    job = prepared(tmp_path, which)
    done = elsewhere(PROGRAM, tmp_path, CKPTD_FAULT=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    job.restart()
    assert job.is_whole() == WHOLE, "what was finished need not be made again"
    assert hashlib.sha256((job.pin / "model.safetensors").read_bytes()).digest() == hashlib.sha256(b"weights 1").digest()
    job.publish()
    assert published(job) == PUBLISHED
    assert several_links(job.target) == []
    assert job.is_whole() == WHOLE
    assert all(sha256_file(job.target / "onnx" / one.path) == one.sha256 for one in job.files("onnx"))
    assert OutputCache(job.kept).find(KEY) is not None
    assert [path.name for folder in job.outputs.values() for path in folder.iterdir() if path.name.startswith(".")] == []


def test_killed_again_while_the_bytes_are_taken_back_the_next_start_ends_it(tmp_path: Path) -> None:
    job = prepared(tmp_path, "first")
    assert elsewhere(PROGRAM, tmp_path, CKPTD_FAULT="publish.lent").returncode == -signal.SIGKILL
    assert job.is_whole() != WHOLE
    assert elsewhere(RESTART, tmp_path, CKPTD_FAULT="publish.taking-back").returncode == -signal.SIGKILL
    job.restart()
    assert job.is_whole() == WHOLE
    job.publish()
    assert several_links(job.target) == []
