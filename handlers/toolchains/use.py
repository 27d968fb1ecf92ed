"""Processes of ours that a stage starts, each with the Python that it needs: that of a toolchain, or that of the main environment.

Used by the export strategies of the onnx stage and by validation. `run_module` has a module in a toolchain give an answer; `command` and
`environment` are for a process that the caller talks to. A stage that runs in a toolchain as a whole names it in the plan, and starts
its own processes there too (`own`). A process inherits the stage's priority, threads and offline settings, and is ended with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Json

A = TypeVar("A")
BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
ROOT = BOOTSTRAP.parents[2]
"""Where the packages of ckptd lie: the repository, or the site-packages that it is installed in."""
MANIFEST = "toolchain.json"
POLL_SECONDS = 0.05
_TAIL = 4000


class ToolchainFailedError(Exception):
    """What was run inside ended without an answer that can be used: type and message of the error there, or how its process ended."""


def find(context: StageContext, name: str) -> Path | None:
    """Folder of the installed toolchain; None where it is not installed, or its Python is gone."""
    folder = Path(os.path.realpath(Path(context.cache) / "toolchains" / name))
    return folder if (folder / MANIFEST).is_file() and os.access(_python(folder), os.X_OK) else None


def own() -> Path | None:
    """Folder of the toolchain that this process runs in; None in the environment that ckptd is installed in."""
    folder = Path(sys.prefix)
    return folder if (folder / MANIFEST).is_file() else None


def name_of(toolchain: Path) -> str:
    """What `ckptd toolchain` calls the toolchain in this folder."""
    return toolchain.name.rpartition("-")[0]


def borrow(toolchain: Path) -> None:
    """Let this process, in the environment that ckptd is installed in, import what the toolchain holds and that environment lacks.

    Both have the same Python, with which toolchains are made. Raises OSError where the toolchain's packages are gone.
    """
    site = toolchain / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    if not site.is_dir():
        raise FileNotFoundError(f"the toolchain in {toolchain} has no packages for this Python; install it again")
    if str(site) not in sys.path:
        sys.path.append(str(site))


def command(toolchain: Path | None, module: str, *arguments: str, python: str = "") -> list[str]:
    """The command that runs one of our modules with the toolchain's Python, or (None) with that of the main environment.

    `python`: that of the main environment, where the caller itself runs in a toolchain.
    """
    if toolchain is None:
        return [python or sys.executable, "-m", module, *arguments]
    return [str(_python(toolchain)), "-I", "-u", str(BOOTSTRAP), module, *arguments]


def environment(toolchain: Path | None) -> dict[str, str]:
    """The variables for such a process: our packages are found wherever this one was started.

    A toolchain's Python finds them by the bootstrap: a path to them would be a path to all that lies beside them.
    """
    if toolchain is not None:
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def _python(toolchain: Path) -> Path:
    return toolchain / "bin" / "python"


def run_module(
    toolchain: Path, module: str, options: Mapping[str, object], scratch: Path, kind: type[A], *,
    safe_point: Callable[[], None] = lambda: None,
) -> A:  # fmt: skip
    """Run `module` with `--key value` for each of `options` and give its answer, a `kind`.

    `scratch`: an existing folder for small files. `safe_point` is called all the time, and may raise to end it. Raises
    ToolchainFailedError, also for an answer of another kind.
    """
    answer = scratch / f"{module.rsplit('.', 1)[-1]}.answer.json"
    log = answer.with_suffix(".log")
    answer.unlink(missing_ok=True)
    arguments = [text for key, value in options.items() for text in (f"--{key.replace('_', '-')}", str(value))]
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            command(toolchain, module, *arguments, "--answer", str(answer)), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        try:
            while process.poll() is None:
                safe_point()
                time.sleep(POLL_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
    said = _read(answer)
    text = log.read_bytes()[-_TAIL:].decode(errors="replace")
    print(text, flush=True)  # a child's standard output is its attempt's log
    if said is None:
        raise ToolchainFailedError(f"{module} ended with exit code {process.returncode} and no answer: {_last_line(text)}")
    if "error" in said:
        raise ToolchainFailedError(f"{said['error']['type']}: {said['error']['message']}")
    try:
        return TypeAdapter(kind).validate_python(said["answer"])
    except ValidationError as error:
        raise ToolchainFailedError(f"{module} gave another answer than was expected: {error.errors()[0]['msg']}") from None


def _read(answer: Path) -> Json | None:
    try:
        value = json.loads(answer.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
