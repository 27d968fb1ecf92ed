"""Programs that a check starts beside its workers: modules of ours that read or compare files, scripts of an artifact's own folder."""

from __future__ import annotations

import os
import pkgutil
import subprocess
from collections.abc import Callable, Sequence
from typing import TypeVar

from handlers.child import warm
from handlers.toolchains import use

A = TypeVar("A")


class NoAnswer(Exception):
    """Why a program gave no answer, as a clause."""


def asked(module: str, words: Sequence[str], seconds: float, read: Callable[[str], A], *, python: str = "") -> A:
    """Give what `read` makes of the output of one of our modules, which runs in a process of its own. Raises NoAnswer.

    `python`: of the environment that ckptd is installed in, if it is to run there even where this stage runs in a toolchain.
    """
    toolchain = use.own()
    try:
        if toolchain is None and warm.is_forked():  # which has its libraries
            done = warm.called(lambda: int(pkgutil.resolve_name(f"{module}:main")(list(words))), seconds)
        else:
            toolchain = None if python else toolchain
            done = _run(use.command(toolchain, module, *words, python=python), use.environment(toolchain), seconds)
        return read(done.stdout)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"it took longer than {seconds} seconds") from None
    except (ValueError, KeyError, TypeError, IndexError):
        print(done.stderr, flush=True)  # into the attempt's log
        raise NoAnswer(_last_words(done)) from None


def output_of(name: str, command: Sequence[str], seconds: float, **variables: str) -> str:
    """Give what a script of the name prints, with more environment variables. Raises NoAnswer, whose clause begins with "its" and the
    name."""
    try:
        done = _run(command, {**os.environ, **variables}, seconds)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"its {name} took longer than {seconds} seconds") from None
    if done.returncode != 0:
        raise NoAnswer(f"its {name} does not run: {_last_words(done)}")
    return done.stdout


def _run(command: Sequence[str], environment: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=seconds,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    return lines[-1][:300] if lines else f"exit code {done.returncode}"
