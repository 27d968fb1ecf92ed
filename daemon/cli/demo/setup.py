"""The demo's folder and the configuration that its daemon runs with. Called by `daemon.cli.demo` alone."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import translated

PROMPTS = (
    "Create a new event loop for this thread, and return it to whoever asks for it. Return the",
    "Wait until the coroutine has ended, and give back what it returned. Create a new",
    "Called when the connection was lost or closed by the other side. The argument is the",
    "Close the transport, and call the protocol when all data that was written has been sent. Wait until",
    "Run the event loop until the future is done, and raise the exception that it holds. Return True if the",
    "Schedule a callback for the next round of the event loop. Run the event loop until",
)  # fmt: skip
"""What validation runs: sentences such as the fine-tuning reads, long enough together for a verdict."""


def configure(folder: Path, jobs: int) -> Path:
    """Write config.toml and the prompts that it names into `folder`; give the former's path. `jobs`: exports at a time."""
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS) + "\n", "utf-8")
    path = folder / "config.toml"
    path.write_text(_configuration(folder, jobs, prompts), "utf-8")
    return path


def _configuration(folder: Path, jobs: int, prompts: Path) -> str:
    """What differs from the defaults, with the reason."""

    def text(value: object) -> str:
        return json.dumps(str(value), ensure_ascii=False)  # a JSON string is a TOML string

    return f"""# Written by `ckptd demo`. Keys that are not here have their defaults; see the documented config.toml.
[watch]
roots = [{text(folder / "runs")}]
settle_seconds = 1.0            # these checkpoints are small and written in one go

[base]
search = [{text(folder / "bases")}]

[output]
directory = {text(folder / "exports")}

[state]
directory = {text(folder / "state")}

[limits]
jobs = {jobs}                        # one for each checkpoint, so that no core is idle at the end
threads = 1
priority = "normal"             # somebody waits for it; a service leaves the cores to the training ("idle")

[validate]
prompts = {text(prompts)}
"""


def prepare(keep: Path | None) -> Path:
    """The demo's folder: `keep`, which must be absent or empty, else a temporary one. Raises UsageError."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="ckptd-demo-"))
    keep = keep.expanduser().absolute()
    operation = translated("keep the demo's files")
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(FaultCode.NOT_EMPTY, operation, translated("it exists and is not an empty folder"),
            translated("give a new folder with --keep"), path=keep)  # fmt: skip
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            FaultCode.NOT_WRITABLE, operation, error.strerror or str(error), translated("give another folder with --keep"), path=keep
        ) from None
    return keep
