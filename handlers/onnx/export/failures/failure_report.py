"""The error when all strategies failed: what was tried, what it means, what the user can do, and the path of the reproduction script.

Called by the onnx stage.
"""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import version
from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.messages import StageContext
from handlers.onnx.export.failures import reproduction
from handlers.onnx.export.failures.attempts import AllStrategiesFailedError

_LATER = (
    "leave the onnx variants out: the pytorch variant and the formats that don't go through ONNX still work",
    "set onnx.profile to \"aggressive\", which may give up the cache and dynamic lengths",
    "try other releases of torch, transformers and onnxscript: the next export tries everything again with them",
)  # fmt: skip


def versions() -> str:
    """Releases that an export depends on, in one line."""
    return ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "onnx", "onnxscript", "onnxruntime"))


def failure_with_report(
    error: AllStrategiesFailedError, context: StageContext, source: Path, *, opset: int, kind: str, profile: str
) -> Permanent:
    """The error with its details; writes the reproduction beside the attempt's log, where it is kept."""
    script = None
    try:
        target = Path(context.result).parent / reproduction.FOLDER
        script = reproduction.write(target, source, error.failures, opset, kind, versions())
    except Exception:  # the reproduction is only a help: a failure to write it must not hide the export's own error
        traceback.print_exc(file=sys.stderr)
    fault = error.fault
    details = _details(error, opset, profile, script)
    return Permanent(fault.code, fault.operation, fault.cause, fault.remedy, path=fault.path, details=details)


def _details(error: AllStrategiesFailedError, opset: int, profile: str, script: Path | None) -> str:
    lines = [f"Tried with opset {opset}, profile {profile}, {versions()}:", ""]
    for failure in error.failures:
        lines.append(f"- {failure.strategy} ({failure.seconds:.1f} s): {failure.diagnosis.code}: {failure.diagnosis.meaning}")
        lines.append(f"  {failure.reason}")
    steps = dict.fromkeys(failure.diagnosis.manual for failure in error.failures if failure.diagnosis.manual)
    lines += ["", "By hand:"]
    lines += [f"{number}. {step}" for number, step in enumerate((*steps, *_LATER), 1)]
    if script is not None:
        lines += ["", f"The smallest reproduction: python {script}"]
    return "\n".join(lines)
