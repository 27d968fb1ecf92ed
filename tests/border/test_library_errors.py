"""What a library raises over foreign files is told in its own words and is for good; what the machine lacks is tried again."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageResult
from handlers import __main__ as child
from handlers.child import foreign


def refuse() -> None:
    assert len("") > 1


def deep() -> None:
    deep()


RAISED: dict[str, Callable[[], object]] = {
    "it can't compute with a number of the files, which is out of range": lambda: math.sqrt(-1),
    "it divides by a number of the files that is 0": lambda: 1 // int("0"),
    "a list of the files has fewer entries than it needs": lambda: [][int("0")],
    'it knows no "r"': lambda: {}["r"],
    "the files are nested too deeply": deep,
    "a number of the files is too large to compute with": lambda: math.exp(1000),
    "it says \"invalid literal for int() with base 10: 'x'\"": lambda: int("x"),
}


@pytest.mark.parametrize("words", RAISED)
def test_an_error_of_python_is_told_in_words(words: str) -> None:
    with pytest.raises(Exception) as caught:
        RAISED[words]()
    assert foreign.in_words(caught.value) == words


def test_an_assertion_without_a_message_is_told_by_its_condition() -> None:
    with pytest.raises(AssertionError) as caught:
        refuse()
    error = AssertionError().with_traceback(caught.value.__traceback__)
    assert foreign.in_words(error) == 'a condition of its own does not hold, "assert len(\\"\\") > 1"'


def test_long_words_are_bounded_and_advice_is_left_out() -> None:
    said = foreign.in_words(ValueError("it is wrong. Please run pip install evil. " + "x" * 100_000))
    assert len(said) < 300 and "pip install" not in said


MACHINE = [
    MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1024 bytes."),
    OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EIO, "Input/output error"),
    RuntimeError("can't start new thread"), RuntimeError("unable to mmap 16 bytes: Cannot allocate memory (12)"), TimeoutError("timed out"),
    RuntimeError("CUDA error: device-side assert"), EOFError(), RuntimeError("I/O error: Too many open files (os error 24)"),
]  # fmt: skip


def raised_in_a_library(error: BaseException, folder: Path) -> StageResult:
    """The result of a stage in which a library raises an error."""
    package = folder / "site-packages" / "some_library.py"
    package.parent.mkdir(exist_ok=True)
    package.write_text("def read(error):\n    raise error\n")
    known: dict[str, Callable[[BaseException], None]] = {}
    exec(compile(package.read_text(), str(package), "exec"), known)
    try:
        known["read"](error)
    except BaseException as caught:
        return child._failed(caught, "merge", str(folder))
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("error", MACHINE, ids=repr)
def test_what_the_machine_lacks_is_tried_again(error: BaseException, tmp_path: Path) -> None:
    assert foreign.of_machine(error)
    assert raised_in_a_library(error, tmp_path).outcome == Outcome.RETRYABLE


def test_more_memory_than_the_machine_has_is_no_lack_of_the_machine() -> None:
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert not foreign.of_machine(RuntimeError(f"can't allocate memory: you tried to allocate {most * 100} bytes."))


@pytest.mark.parametrize("error", [AssertionError(), KeyError("r"), ValueError("math domain error"), TypeError("x")], ids=repr)
def test_a_library_that_refuses_its_files_ends_the_stage_for_good(error: Exception, tmp_path: Path) -> None:
    result = raised_in_a_library(error, tmp_path)
    assert result.outcome == Outcome.PERMANENT and result.fault is not None
    assert result.fault.code == FaultCode.LIBRARY_REFUSES and type(error).__name__ not in result.fault.sentence()
    assert result.fault.cause.startswith("some_library can't use these files: ")
    assert "Error" in str(result.fault.details), "the traceback is kept for the log"


def test_an_error_of_our_own_code_is_unexpected_and_tried_again(tmp_path: Path) -> None:
    try:
        json.loads("{")
    except ValueError as error:
        result = child._failed(error, "merge", str(tmp_path))
    assert result.outcome == Outcome.RETRYABLE and result.fault is not None and result.fault.code == FaultCode.UNEXPECTED


def test_while_reading_what_is_ours_and_the_machines_passes_and_the_rest_names_the_file(tmp_path: Path) -> None:
    ours = Permanent(FaultCode.NO_WEIGHTS, "read", "there are none", "copy them")
    for error in (ours, MemoryError(), OSError(errno.EIO, "Input/output error")):
        with pytest.raises(type(error)) as passed, foreign.reading("load the model", tmp_path):
            raise error
        assert passed.value is error
    with pytest.raises(KeyboardInterrupt), foreign.reading("load the model", tmp_path):
        raise KeyboardInterrupt
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(Permanent) as caught, foreign.reading("load the model", tmp_path, reader="tokenizers"):
        raise panic("index out of bounds")
    assert caught.value.fault.path == str(tmp_path)
    assert "tokenizers" in caught.value.fault.cause and 'it says "index out of bounds"' in caught.value.fault.cause
