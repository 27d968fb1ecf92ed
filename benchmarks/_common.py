"""What every benchmark needs: the machine, the versions, children that are measured, a table and a JSON file.

Called by the other files of this folder. A figure belongs to the machine it was taken on, so `write` puts both side by side.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import ctypes
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from daemon.contract import cpu

ROOT = Path(__file__).resolve().parent.parent
# A script's own folder stands first there, and its onnx.py would be taken for the library.
sys.path[:] = [one for one in sys.path if Path(one).resolve() != ROOT / "benchmarks"]


_BEGUN: dict[str, Any] = {}
"""The machine before the work began."""
_PR_SET_CHILD_SUBREAPER = 36


def machine() -> dict[str, Any]:
    """Processor with its instruction sets, cores this process may use, memory in bytes, kernel, and the load average of the last minute."""
    processor = cpu.here()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor.model or processor.architecture,
        "features": list(processor.features),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def versions(*names: str) -> dict[str, str]:
    """Versions of Python and of the named distributions; one that is missing is left out."""
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def run_child(argv: Sequence[str], *, env: Mapping[str, str] | None = None, good: Collection[int] = (0,)) -> tuple[float, int]:
    """Run a command to its end: (wall seconds, peak resident set in bytes of that process alone).

    The kernel counts a child's peak from its parent's size at the fork, so a caller that asks for peaks has to stay small itself
    (no torch). Output is shown only when the command fails, with another exit code than the `good` ones. Raises RuntimeError when it does.
    """
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        child = subprocess.Popen(list(argv), stdout=output, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in good:
            output.seek(0)
            raise RuntimeError(f"{' '.join(argv)} ended with {child.returncode}:\n{output.read().decode(errors='replace')[-3000:]}")
    return seconds, usage.ru_maxrss * 1024


def children_cpu() -> float:
    """Processor seconds of all children that have ended, and of theirs. What a child leaves behind is waited for: the kernel adds a process
    to the sum of the one that takes note of its end, and an orphan else to none of ours."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def in_turns(ways: Mapping[str, Sequence[str]], rounds: int, *, before: Any = None) -> dict[str, list[tuple[float, int]]]:
    """Run each way once a round, in turns, so that a busy minute hits all alike: name → what `run_child` gave, round by round.

    `before(name)` is called ahead of each run.
    """
    samples: dict[str, list[tuple[float, int]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, argv in ways.items():
            if before is not None:
                before(name)
            samples[name].append(run_child(argv))
    return samples


def interleaved(ways: Mapping[str, Sequence[str]], rounds: int, *, before: Any = None) -> dict[str, dict[str, float]]:
    """As `in_turns`; gives name → medians: `seconds` and `peak_mb` (MB of 10⁶ bytes)."""
    return {
        name: {
            "seconds": statistics.median(seconds for seconds, _ in found),
            "peak_mb": statistics.median(peak for _, peak in found) / 1e6,
        }
        for name, found in in_turns(ways, rounds, before=before).items()
    }


HOLD = """
import mmap, sys
size, piece = int(sys.argv[1]), 1 << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
for start in range(0, size - piece, 2 * piece):
    memory.madvise(mmap.MADV_DONTNEED, start, piece)
print("ready", flush=True)
sys.stdin.read()
"""
REPORTING = Path("/sys/module/page_reporting")


@contextlib.contextmanager
def settled_memory(needed: int) -> Iterator[bool]:
    """In a virtual machine that gives unused memory back to its host: keep it from doing so with about `needed` bytes. Gives whether.

    Linux's free page reporting takes whole blocks of 2 MiB and more; each page of them that is used again costs a turn through the
    host, several times what copying it costs, and whoever runs after something large has ended pays. A child takes twice the memory
    and gives back every other MiB, which is never reported then. Without free page reporting, or where memory is short, nothing is done.
    """
    import psutil

    size = 2 * needed
    if not REPORTING.exists() or psutil.virtual_memory().available < size + (1 << 30):
        yield False
        return
    child = subprocess.Popen(python("-c", HOLD, str(size)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        yield child.stdout.readline() == b"ready\n"
    finally:
        child.kill()
        child.communicate()


@contextlib.contextmanager
def control_group(places: Iterable[tuple[str, str, object]]) -> Iterator[Path | None]:
    """A control group below the first of `places` (folder, control, its value) that has that control; None where none can be made."""
    made = None
    for parent, control, value in places:
        path = Path(parent, f"ckptd-bench-{os.getpid()}")
        with contextlib.suppress(OSError):
            path.mkdir()
            if (path / control).exists():
                (path / control).write_text(str(value))
                made = path
                break
            path.rmdir()
    try:
        yield made
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                if made is not None:
                    made.rmdir()
                break
            time.sleep(0.1)


def within(group: Path | None, command: list[str]) -> list[str]:
    """The command, run in a control group."""
    return command if group is None else ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]


def table(title: str, rows: Iterable[tuple[str, Any]]) -> None:
    """Print two columns; a value that is a mapping itself is a row for each of its entries."""
    flat = ((f"{name} {key}", one) for name, value in rows for key, one in (value.items() if isinstance(value, Mapping) else [("", value)]))
    rows = [(name.rstrip(), f"{value:,.3f}" if isinstance(value, float) else str(value)) for name, value in flat]
    width = max((len(name) for name, _ in rows), default=0)
    print(title)
    for name, value in rows:
        print(f"  {name:<{width}}  {value:>14}")


def write(
    name: str,
    figures: Mapping[str, Any],
    path: Path | None,
    *,
    libraries: Iterable[str] = ("torch", "transformers", "peft", "safetensors"),
) -> None:
    """Print the figures; with `path`, also write `{"name", "machine", "versions", "figures"}` there as JSON.

    The machine is that of the moment at which the work began (`parser`).
    """
    table(name, figures.items())
    if path is not None:
        value = {"name": name, "machine": _BEGUN or machine(), "versions": versions(*libraries), "figures": dict(figures)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=2) + "\n")


def parser(about: str) -> argparse.ArgumentParser:
    """A parser that knows `--json FILE`, as every benchmark does.

    Also compiles ckptd's own code, which pip does where it installs it: a checkout may have been told to keep no bytecode.
    """
    for name in ("daemon", "handlers"):
        compileall.compile_dir(ROOT / name, quiet=2)
    _BEGUN.update(machine())
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return made


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A temporary folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"ckptd-bench-{prefix}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def python(*arguments: str) -> list[str]:
    """A command that runs this interpreter."""
    return [sys.executable, *arguments]
