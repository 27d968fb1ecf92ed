"""Entry of a child process: `python -m handlers JOB_FILE` runs one attempt of one stage.

The order is the point: the child binds its life to the daemon's, takes the lowest priority and moves its
standard output aside before any heavy library is imported. It always ends with a result file unless it is
killed, and its exit code is 0 whenever the result file holds the outcome.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from pathlib import Path

from daemon.contract import Outcome, StageContext, StageResult
from daemon.durable import seal, write_atomic
from daemon.errors import CkptdError, Fault, Permanent, Retryable, from_oserror
from handlers import child
from handlers.plan import BY_NAME
from handlers.progress import Reporter, StageOutput

TRACEBACK_LIMIT = 6000


def _bounded_traceback() -> str:
    return traceback.format_exc()[-TRACEBACK_LIMIT:]


def _failed(error: BaseException, stage: str, staging: str) -> StageResult:
    """The outcome that an exception stands for. Unknown exceptions are retryable: the attempt limit bounds them."""
    operation = f"run the stage {stage}"
    if isinstance(error, OSError) and error.errno is not None:
        error = from_oserror(error, operation, staging)
    if isinstance(error, CkptdError):
        fault = error.fault
        if fault.details is None:
            fault = fault.model_copy(update={"details": _bounded_traceback()})
        permanent = isinstance(error, Permanent)
        delay = error.delay if isinstance(error, Retryable) else None
        return StageResult(outcome=Outcome.PERMANENT if permanent else Outcome.RETRYABLE, fault=fault, retry_after=delay)
    memory = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
    cause = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
    remedy = "free memory or raise limits.memory_fraction" if memory else "read the attempt's log; report it if the input looks sound"
    fault = Fault(
        code="out-of-memory" if memory else "unexpected", operation=operation, cause=cause, remedy=remedy, details=_bounded_traceback()
    )
    return StageResult(outcome=Outcome.RETRYABLE, fault=fault)


def _work(context: StageContext, reporter: Reporter) -> StageResult:
    module = importlib.import_module(BY_NAME[context.stage].module)
    output: StageOutput = module.run(context, reporter)
    reporter.progress(1.0, "sealing files")
    return StageResult(
        outcome=Outcome.SUCCEEDED,
        strategy=output.strategy,
        files=seal(Path(context.staging)),
        figures=output.figures,
        checks=tuple(output.checks),
        warnings=tuple(output.warnings),
        fallbacks=tuple(output.fallbacks),
        versions=child.loaded_versions(),
    )


def main(job_file: str) -> int:
    """Run the attempt that `job_file` describes; give the exit code."""
    context = StageContext.model_validate_json(Path(job_file).read_bytes())
    child.bind(context.limits)
    reporter = Reporter(child.take_standard_output())
    child.prepare(context)
    started = time.monotonic()
    try:
        result = _work(context, reporter)
    except Exception as error:
        traceback.print_exc()
        result = _failed(error, context.stage, context.staging)
    result = result.model_copy(update={"seconds": round(time.monotonic() - started, 3), "peak_rss": child.peak_rss()})
    write_atomic(Path(context.result), result.model_dump_json(indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
