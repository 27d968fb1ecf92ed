"""What a library raises over files that others wrote, told as a fault: what was being done, with which file, in the library's own words.

transformers, PEFT, torch and tokenizers have no error of their own for a file that makes no sense to them: they raise whatever Python
raises where it first goes wrong. The file stays as it is, so the fault is permanent, unless the error is the machine's: memory, handles, a
disk. A library's words stand in quotes, bounded, without the name of Python's exception, which says nothing to who reads it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from daemon.contract.faults.advice import quoted, without_advice
from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.faults.fault_codes import Code, FaultCode

MOST_OF_WORDS = 240
"""Characters of a library's words in a sentence."""
AGAIN = "copy the files again from their source, and check that the library loads them; if it does, report it with the attempt's log"
_OURS = ("handlers", "daemon", "__main__")
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]([\w.-]+)")
_MACHINE = re.compile(
    r"can(?:'t|not|no t) allocate|out of memory|not enough memory|bad_alloc|insufficient memory|No space left|Disk quota|quota exceeded"
    r"|Too many open files|Input/output error|Stale file handle|temporarily unavailable|can't start new thread|Broken pipe|timed out"
    r"|CUDA (?:driver )?error|CUDNN_STATUS|device or resource busy|Connection (?:reset|refused|aborted)|Transport endpoint",
    re.IGNORECASE,
)
"""Words of errors that may be gone at the next try."""
_MEMORY = re.compile(r"can(?:'t|not|no t) allocate|out of memory|not enough memory|bad_alloc|insufficient memory", re.IGNORECASE)
_WITHOUT_FRAMES = ("pyo3_runtime",)
"""Modules of errors, which are no files."""
_TOOLS = ("pydantic", "pydantic_core", "psutil")
"""Packages that read what we give them, and no files."""
_ASKED_FOR = re.compile(r"tried to allocate (\d+) bytes")
"""torch's words of how much it wanted."""
_PLAIN: tuple[tuple[type[BaseException], str], ...] = (
    (ZeroDivisionError, "it divides by a number of the files that is 0"),
    (OverflowError, "a number of the files is too large to compute with"),
    (RecursionError, "the files are nested too deeply"),
    (FloatingPointError, "it can't compute with a number of the files"),
)
_IN_WORDS = {
    "math domain error": "it can't compute with a number of the files, which is out of range",
    "list index out of range": "a list of the files has fewer entries than it needs",
    "tuple index out of range": "a list of the files has fewer entries than it needs",
    "string index out of range": "a text of the files is shorter than it needs",
    "maximum recursion depth exceeded": "the files are nested too deeply",
}


def is_failure(error: BaseException) -> bool:
    """Return whether something failed, and nobody ended the process: a Rust library's panic is no `Exception`, and most code misses it."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def of_machine(error: BaseException) -> bool:
    """Return whether an error may be the machine's, so that a later try may succeed; an allocation that no memory could hold is not."""
    if isinstance(error, OSError):
        return error.errno is not None or isinstance(error, TimeoutError)
    said = str(error)
    if asked := _ASKED_FOR.search(said):
        return int(asked[1]) < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return isinstance(error, MemoryError | EOFError) or bool(_MACHINE.search(said))


def of_memory(error: BaseException) -> bool:
    """Return whether there was too little memory."""
    return isinstance(error, MemoryError) or bool(_MEMORY.search(str(error)))


def in_words(error: BaseException) -> str:
    """Return what a library says, as a clause: its own words in quotes, or ours where it says nothing that is a sentence."""
    said = " ".join(str(error).split()).rstrip(".")
    for kind, words in _PLAIN:
        if isinstance(error, kind):
            return words
    if words := _IN_WORDS.get(said, ""):
        return words
    if isinstance(error, KeyError):
        return f"it knows no {quoted(error.args[0] if error.args else '', 80)}"
    if said:
        return f"it says {quoted(without_advice(said), MOST_OF_WORDS)}"
    frames = traceback.extract_tb(error.__traceback__)
    line = frames[-1].line if frames else None
    return f"a condition of its own does not hold, {quoted(line, MOST_OF_WORDS)}" if line else "it gives no reason"


def library_of(error: BaseException) -> str | None:
    """Return the package in whose code an error was raised, called by ours; None where it was raised by ours or by Python itself."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in frames]
    ours = max((number for number, name in enumerate(modules) if name in _OURS), default=-1)
    packages = [_package(frame.f_code.co_filename) for frame in frames[ours + 1 :]]
    # What is written in other languages has no frame, but errors of its own.
    kind = type(error).__module__.partition(".")[0]
    of_kind = kind if kind in _WITHOUT_FRAMES else _package(getattr(sys.modules.get(kind), "__file__", None) or "")
    return next((name for name in (*reversed(packages), of_kind) if name and name not in _TOOLS), None)


def _package(file: str) -> str | None:
    """Return the installed package that a file is of."""
    match = _PACKAGES.search(file)
    return match[1].removesuffix(".py") if match else None


def refusal(
    error: BaseException, operation: str, path: str | Path | None, *, reader: str = "", code: Code = FaultCode.LIBRARY_REFUSES,
    remedy: str = AGAIN,
) -> Permanent:  # fmt: skip
    """The fault of a library that can't work with the files at `path`; `reader`: the library's name, by default that of the package."""
    name = reader or library_of(error) or "the library"
    return Permanent(code, operation, f"{_released(name)} can't use these files: {in_words(error)}", remedy, path=path)


@contextlib.contextmanager
def reading(
    operation: str, path: str | Path | None, *, reader: str = "", code: Code = FaultCode.LIBRARY_REFUSES, remedy: str = AGAIN
) -> Iterator[None]:
    """Make what a library raises inside over the files at `path` Permanent; ours and the machine's errors pass as they are."""
    try:
        yield
    except BaseException as error:  # a library's checks of a configuration raise types that are none of Python's
        if not is_failure(error) or isinstance(error, CkptdError) or of_machine(error):
            raise
        raise refusal(error, operation, path, reader=reader, code=code, remedy=remedy) from error


def _released(name: str) -> str:
    """Return a library's name with its release, where it is loaded and says it."""
    release = getattr(sys.modules.get(name.lower()), "__version__", None)
    return f"{name} {release}" if isinstance(release, str) else name
