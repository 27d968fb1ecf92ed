"""Runs a function many times under the fault layer, each time in a process of its own, for the price of a fork.

The test makes a `Forks`; the other end is `python -m tests.faults.forks MODULE`, which imports everything once, under
the layer, and forks for each call. What a function `tell`s arrives even when it dies afterwards.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.layer import Faults, Rule

REPOSITORY = Path(__file__).parents[2]
_told: list[Any] = []


def tell(value: Any) -> None:
    """To be called by the function: a JSON value for the test."""
    os.write(_told[0], json.dumps(value).encode() + b"\n")


@dataclass(frozen=True)
class Ending:
    """How a call ended. `error`: type, sentence and traceback of what it raised."""

    status: int
    told: list[Any]
    error: dict[str, str] | None

    @property
    def good(self) -> bool:
        """It returned."""
        return self.status == 0


class Forks:
    """A process under `faults` that calls functions of `module`."""

    def __init__(self, faults: Faults, module: str) -> None:
        self._faults = faults
        self._process = faults.start(
            [sys.executable, "-m", "tests.faults.forks", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        )

    def call(self, function: str, *arguments: Any, rules: tuple[Rule, ...] = ()) -> Ending:
        """Call `function` with JSON arguments while the rules hold; afterwards nothing fails, but `faults.calls` is kept."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._faults.set(*rules)
        self._process.stdin.write(json.dumps([function, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process that forks has died"
        told = json.loads(line)
        error = told["told"].pop()["raised"] if told["status"] == 9 else None
        return Ending(told["status"], told["told"], error)


def _run(function: Callable[..., None], arguments: list[Any], end: int) -> int:
    _told[:] = [end]
    try:
        function(*arguments)
    except BaseException as error:
        kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
        tell({"raised": {"kinds": kinds, "text": str(error), "traceback": traceback.format_exc()}})
        return 9
    return 0


def main(module: str) -> None:
    """Serve until the test closes the pipe."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the functions log is no answer
    loaded = importlib.import_module(module)
    for line in sys.stdin:
        function, arguments = json.loads(line)
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os._exit(_run(getattr(loaded, function), arguments, theirs))
        os.close(theirs)
        with open(ours) as stream:
            told = [json.loads(row) for row in stream]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"status": status, "told": told}), file=answers, flush=True)


if __name__ == "__main__":
    from tests.faults import forks  # not __main__: `tell` of the imported module must be this one

    forks.main(sys.argv[1])
