"""`ckptd.toml` in a run's directory: what it may say, and what becomes of one that is wrong or hostile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config.run_overrides import SIZE_LIMIT, effective
from daemon.config.settings import Settings
from daemon.contract.disk.data_files import DataPlace
from daemon.watching.taking.intake import job_id
from tests.selection.conftest import Desks

Add = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_a_run_without_the_file_has_the_main_settings(run: Path) -> None:
    settings = Settings()
    assert effective(settings, run).settings is settings


def test_a_run_sets_what_it_may_for_itself_alone(desk: Desks, add: Add) -> None:  # R5.1
    here = desk()
    for name in ("mine", "other"):
        for step in (2, 4):
            add(here, step, run=name)
    (here.root / "mine" / "ckptd.toml").write_text(
        '[select]\npolicy = "every"\nevery = 4\n[export]\nvariants = ["pytorch"]\nquantization = "none"\n'
        "[validate]\nsamples = 3\nnew_tokens = 5\n"
    )
    here.look()
    found = {(job.checkpoint.run, job.checkpoint.step): job for job in here.jobs()}
    assert sorted(found) == [("mine", 4), ("other", 2), ("other", 4)]
    mine, other = found["mine", 4], found["other", 4]
    assert (mine.work.export.variants, mine.work.validation.samples, mine.work.validation.new_tokens) == (("pytorch",), 3, 5)
    assert mine.work.validation.thresholds == other.work.validation.thresholds == here.settings.validate.thresholds
    assert other.work == here.settings.work
    assert "onnx" not in here.journal.stages.of(mine.id)
    assert "onnx" in here.journal.stages.of(other.id)
    assert mine.id.endswith(mine.work.digest[:4])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[select]\npolicy = "newest"', "select.policy: must be 'all', 'latest', 'best' or 'every'"),
        ("[select]\npolcy = 1", "select.polcy: is no key that a run may set; did you mean 'policy'?"),
        ('[select]\npolicy = "every"', 'select.every: must be at least 1 with select.policy = "every"'),
        ('[export]\nvariants = ["onxx"]', "export.variants: there is no variant 'onxx'; did you mean 'onnx'?"),
        ("[validate]\nsamples = 100000", "validate.samples: must be at most 256"),
        ("[validate]\nprompts = '/etc/shadow'", "validate.prompts: must be a path below the run's own directory"),
        ("[validate]\ndata = '../other/data'", "validate.data: must be a path below the run's own directory"),
        ("[validate]\ndata = 3", "validate.data: must be"),
        ("[validate]\nspeed_tokens = 3", "validate.speed_tokens: is no key that a run may set"),
        ("[output]\ndirectory = '/'", "output: is nothing that a run may set"),
        ("[notify]\nurls = ['json://evil']", "notify: is nothing that a run may set"),
        ("[limits]\njobs = 64", "limits: is nothing that a run may set"),
        ("select = 3", "select: is a section; write [select]"),
        ("[select", "it is not TOML"),
        ("x = " + "[" * 20000, "it is not TOML"),
        ('"\\u001b[31m\\n" = 1', "?[31m?: is nothing that a run may set"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence_and_the_main_settings_are_used(run: Path, text: str, said: str) -> None:  # R5.4, R5.5
    (run / "ckptd.toml").write_text(text)
    settings = Settings()
    found = effective(settings, run)
    assert found.settings is settings
    assert found.warning is not None
    assert said in found.warning
    assert found.warning.startswith(f"Could not use the run's own configuration ({run}/ckptd.toml): ")
    assert "; the main one is used. Fix: correct ckptd.toml; a run may set select.policy, " in found.warning
    assert found.warning.isprintable()


def test_one_wrong_key_makes_none_of_the_others_count(run: Path) -> None:
    (run / "ckptd.toml").write_text('[export]\nvariants = ["pytorch"]\n[validate]\nsamples = 0')
    assert effective(Settings(), run).settings.export.variants == Settings().export.variants


def make_link(path: Path) -> None:
    (path.parent / "real.toml").write_text("[validate]\nsamples = 3\n")
    path.symlink_to("real.toml")


def make_large(path: Path) -> None:
    path.write_text("[validate]\nsamples = 3\n" + "#" * SIZE_LIMIT)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (make_link, "it is a symbolic link"), (make_large, "it is larger than 64 KiB"), (os.mkfifo, "it is not a regular file"),
        (Path.mkdir, "it is not a regular file"), (lambda path: path.write_bytes(b"\xff\xfe"), "it is not UTF-8 text"),
    ],
)  # fmt: skip
def test_what_is_no_plain_small_file_is_not_read(run: Path, make: Callable[[Path], object], said: str) -> None:
    make(run / "ckptd.toml")
    found = effective(Settings(), run)
    assert found.settings.validate.samples == Settings().validate.samples
    assert said in (found.warning or "")


def test_a_file_of_the_largest_size_is_read(run: Path) -> None:
    head = "[validate]\nsamples = 3\n"
    (run / "ckptd.toml").write_text(head + "#" * (SIZE_LIMIT - len(head)))
    assert effective(Settings(), run).settings.validate.samples == 3


def test_the_warning_is_logged_once_and_stays_with_the_job_its_status_and_its_report(desk: Desks, add: Add) -> None:  # R6.3
    here = desk()
    for step in (2, 4):
        add(here, step)
    (here.root / "run" / "ckptd.toml").write_text("[select]\npolcy = 'all'\n")
    here.look()
    (record,) = here.told("Could not use the run's own configuration")
    for job in here.jobs():
        assert job.work == here.settings.work
        assert here.journal.attempts.facts(job, here.journal.stages.of(job.id)).warnings == (record["event"],)
    assert [job.warnings for job in here.status().jobs] == [(record["event"],)] * 2


def test_the_same_checkpoint_is_another_job_once_the_texts_that_it_is_checked_on_have_changed(desk: Desks, add: Add) -> None:  # R2.6
    here = desk()
    checkpoint = add(here, 2, run="mine")
    (here.root / "mine" / "ckptd.toml").write_text('[validate]\ndata = "data.jsonl"\n')
    texts = here.root / "mine" / "data.jsonl"
    texts.write_text('{"text": "one"}\n')
    here.look()
    (first,) = here.jobs()
    mine = effective(here.settings, checkpoint.parent).settings
    assert job_id(first.checkpoint, mine) == first.id
    texts.write_text('{"text": "two"}\n')
    assert job_id(first.checkpoint, mine) != first.id
    texts.write_text('{"text": "one"}\n')
    assert job_id(first.checkpoint, mine) == first.id, "its content counts, and not its time"
    here.look()
    assert len(here.jobs()) == 1, "a change of the texts alone starts nothing"


def test_a_run_names_its_own_texts_below_itself_and_no_link_leads_out(tmp_path: Path) -> None:  # R2.6
    root = tmp_path / "runs"
    run = root / "mine"
    run.mkdir(parents=True)
    (run / "ckptd.toml").write_text('[validate]\ndata = "data/train.jsonl"\nprompts = "prompts.txt"\n')
    (run / "prompts.txt").write_text("own\n")
    settings = Settings(watch={"roots": [root]})  # type: ignore[arg-type]
    found = effective(settings, run)
    assert found.warning is None
    assert found.settings.validate.data == f"{root}/./mine/data/train.jsonl"
    place = DataPlace.of(found.settings.validate.prompts)
    assert place.top == root and [file.name for file in place.files()] == [str(run / "prompts.txt")]
    elsewhere = tmp_path / "elsewhere"
    run.rename(elsewhere)
    run.symlink_to(elsewhere)
    with pytest.raises(OSError):
        place.files()
