"""How the demo's training processes speak: one JSON object a line on standard output, `event` first.

`make_base` and `finetune` write them; `daemon.cli.demo` reads them; people can read them too.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode


def say(event: str, **values: Any) -> None:
    """Write one event with its JSON values. The line is flushed, since someone is waiting for it."""
    print(json.dumps({"event": event, **values}), flush=True)


def prepare_libraries(threads: int) -> None:
    """Bound the threads and keep the hub out; to be called before torch is imported.

    Raises UsageError for fewer than one thread.
    """
    if threads < 1:
        raise UsageError(
            FaultCode.BAD_OPTION, "start the training", f"it needs at least one thread, not {threads}", "give --threads 1 or more"
        )
    os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = str(threads)
    # Threads that spin while they wait for each other come to a standstill when others want the cores too: with two threads
    # on two cores at a load of 5, 2 steps of the base's training in 6 s, against 27 with threads that sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["HF_HUB_OFFLINE"] = "1"


def empty_folder(path: Path, what: str) -> Path:
    """Make `path` unless it is there, as an absolute path. Raises UsageError when it holds anything."""
    path = path.absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(
            FaultCode.NOT_EMPTY, f"write {what}", "that path exists and is not an empty folder", "name a new folder", path=path
        )
    path.mkdir(parents=True, exist_ok=True)
    return path


def complain(error: UsageError) -> int:
    """Say the error's sentence on standard error; give the exit code for wrong usage."""
    print(error, file=sys.stderr)
    return 2
