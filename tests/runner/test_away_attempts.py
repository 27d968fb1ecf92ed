"""How an attempt's end tells what was away from what is wrong."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config.settings import Settings
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import ArtifactCheck, CheckpointRef, Outcome, StageContext, Verdict
from handlers.__main__ import _failed
from handlers.child.outside import Outside
from handlers.child.progress import StageOutput
from tests.runner.absences import without_override


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    for folder in ("base", "pin", "out/.staging/one/job/merge.1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "base" / "config.json").write_text("{}")
    reference = CheckpointRef(root="/r", run="run", step=1, path="/r/run/checkpoint-1", layout="trainer-adapter", digest="d", method="LORA")
    return StageContext(
        job="job", stage="merge", attempt=1, checkpoint=reference, pin=str(tmp_path / "pin"), base=str(tmp_path / "base"),
        staging=str(tmp_path / "out/.staging/one/job/merge.1"), result=str(tmp_path / "result.json"), temporary=str(tmp_path / "tmp"),
        cache=str(tmp_path / "cache"), work=Settings().work,
    )  # fmt: skip


def told(context: StageContext, error: BaseException, known: Outside) -> tuple[str, str, str | None]:
    result = _failed(error, "merge", context.staging, known)
    assert result.fault is not None
    return result.outcome.value, str(result.fault.code), result.fault.path


def raised(raise_it: Callable[[], object]) -> Exception:
    try:
        raise_it()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_file_that_was_there_and_is_back_by_now_was_away(context: StageContext) -> None:
    known, path = Outside(context), Path(context.base or "", "config.json")
    away = (Outcome.RETRYABLE.value, "source-away", str(path))
    for number in (errno.ENOENT, errno.EACCES, errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENOTDIR):
        assert told(context, OSError(number, os.strerror(number), str(path)), known) == away
    library = FileNotFoundError(f"No such file or directory: {path}")  # without a number, as from a library in another language
    assert told(context, library, known) == away

    def hidden() -> None:
        try:
            raise FileNotFoundError(errno.ENOENT, "x", str(path))
        except OSError:
            raise Permanent(FaultCode.FILE_MISSING, "read it", "it is missing", "copy it") from None

    assert told(context, raised(hidden), known) == away
    words = Permanent(
        FaultCode.ENGINE, "run it", "it failed", "try again", details=f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    )
    assert told(context, words, known) == away, "as a process of the stage's own says it"


def test_a_base_that_was_away_when_the_attempt_began_is_no_error_of_it_either(context: StageContext) -> None:
    base = Path(context.base or "")
    base.rename(base.with_name("aside"))
    known = Outside(context)

    def again() -> None:
        try:
            try:
                (base / "config.json").read_bytes()
            except OSError:
                raise Permanent(FaultCode.FILE_MISSING, "read it", "it is missing", "copy it") from None
        except Permanent as error:
            raise error from error  # its own cause

    error = raised(again)
    assert told(context, error, known) == ("retryable", "source-away", str(base / "config.json"))
    base.with_name("aside").rename(base)
    assert told(context, error, known) == ("retryable", "source-away", str(base / "config.json")), "it is there by now"


def test_whatever_is_raised_while_the_base_is_away_says_nothing_of_the_export(context: StageContext) -> None:
    known, base = Outside(context), Path(context.base or "")
    error = Permanent(FaultCode.TOKENIZER_NOT_FOUND, "load it", "there is none", "put it there")
    passed = StageOutput(checks=[ArtifactCheck(variant="onnx", verdict=Verdict.PASSED)])
    failed = StageOutput(checks=[ArtifactCheck(variant="onnx", verdict=Verdict.FAILED)])
    assert told(context, error, known)[:2] == ("permanent", "tokenizer-not-found") and known.doubts(failed) is None
    base.rename(base.with_name("aside"))
    assert told(context, error, known) == ("retryable", "source-away", str(base))
    doubt = known.doubts(failed)
    assert doubt is not None and doubt.path == str(base) and known.doubts(passed) is None and known.doubts(StageOutput()) is None
    base.with_name("aside").rename(base)
    with without_override():
        (base / "config.json").chmod(0)
        assert told(context, error, known) == ("retryable", "source-away", str(base / "config.json"))
        (base / "config.json").chmod(0o644)


def test_what_was_never_there_is_missing_and_what_is_wrong_stays_wrong(context: StageContext) -> None:
    known, base = Outside(context), Path(context.base or "")
    assert told(context, FileNotFoundError(errno.ENOENT, "x", str(base / "absent.json")), known)[:2] == ("permanent", "os-error")
    assert told(context, FileNotFoundError(errno.ENOENT, "x", "/elsewhere/file"), known)[:2] == ("permanent", "os-error")
    damaged = Permanent(FaultCode.TRUNCATED_WEIGHTS, "read it", "it is cut short", "copy it", path=base / "config.json")
    assert told(context, damaged, known)[:2] == ("permanent", "truncated-weights")

    def optional() -> None:
        try:
            (base / "optional.json").read_bytes()
        except OSError:
            raise Permanent(FaultCode.UNSUPPORTED_ARCHITECTURE, "make it", "it can't be", "leave it out") from None

    assert told(context, raised(optional), known)[:2] == ("permanent", "unsupported-architecture")
    assert told(context, OSError(errno.ENOSPC, "No space left", str(base / "config.json")), known)[:2] == ("retryable", "disk-full")


def test_texts_that_are_missing_from_the_start_are_told_by_the_stage(context: StageContext, tmp_path: Path) -> None:
    prompts = str(tmp_path / "prompts.txt")
    validation = context.work.validation.model_copy(update={"prompts": prompts})
    asked = context.model_copy(update={"work": context.work.model_copy(update={"validation": validation})})
    error = Permanent(FaultCode.PROMPTS_NOT_FOUND, "read the prompts", "there is no such file or folder", "set it", path=prompts)
    assert told(asked, error, Outside(asked))[:2] == ("permanent", "prompts-not-found")
    Path(prompts).write_text("a prompt")
    known = Outside(asked)
    Path(prompts).unlink()
    assert told(asked, error, known) == ("retryable", "source-away", prompts)


def test_an_output_that_went_away_under_a_stage_is_no_error_of_the_stage(context: StageContext, tmp_path: Path) -> None:
    known, file = Outside(context), Path(context.staging, "shard")
    assert told(context, FileNotFoundError(errno.ENOENT, "x", str(file)), known)[:2] == ("permanent", "os-error"), "its own fault"
    (tmp_path / "out").rename(tmp_path / "aside")
    assert told(context, FileNotFoundError(errno.ENOENT, "x", str(file)), known) == ("retryable", "source-away", str(tmp_path / "out"))


def test_what_was_away_as_the_attempt_began_and_is_there_again_was_away(context: StageContext, tmp_path: Path) -> None:
    base, prompts = Path(context.base or ""), tmp_path / "prompts.txt"
    base.rename(tmp_path / "aside")
    base.mkdir()  # its empty mount point
    validation = context.work.validation.model_copy(update={"prompts": str(prompts)})
    asked = context.model_copy(update={"work": context.work.model_copy(update={"validation": validation})})
    known = Outside(asked)
    missing = FileNotFoundError(errno.ENOENT, "x", str(base / "config.json"))
    assert told(asked, missing, known) == ("retryable", "source-away", str(base / "config.json"))
    prompts.write_text("a prompt")
    assert told(asked, PermissionError(errno.EACCES, "x", str(prompts)), known) == ("retryable", "source-away", str(prompts))
