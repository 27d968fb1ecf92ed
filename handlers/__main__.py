"""Entry of a child process: `python -m handlers JOB_FILE` runs one attempt of one stage; `--loaded` is the process that forks some of them.

The order is the point: the child binds its life to the daemon's, takes the lowest priority and moves its
standard output aside before any heavy library is imported. It ends with a result file and exit code 0 unless it is
killed, cannot use the job file (65), or cannot write the result (74 for want of space, else 73); then one line in the
log says why.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import pkgutil
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from daemon.contract.disk import failpoints
from daemon.contract.disk.files import odd_below, seal, write_atomic
from daemon.contract.disk.own_folders import is_still, not_ours
from daemon.contract.faults.errors import FULL_DISK, CkptdError, Fault, Permanent, Retryable, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats import catalog
from daemon.contract.formats.declaration import FormatEntry
from daemon.contract.jobs import plan
from daemon.contract.jobs.messages import CONTRACT_VERSION, ChildLimits, Outcome, StageContext, StageResult
from daemon.contract.jobs.options import Work
from daemon.contract.jobs.processes.elsewhere import ORDERS
from daemon.contract.language.catalog import use_language
from handlers.child import foreign, process, warm
from handlers.child.outside import Outside
from handlers.child.progress import Interrupted, Reporter, StageOutput, StopFlag

EXIT_BAD_JOB = 65
EXIT_UNWRITABLE = 73
EXIT_DISK_FULL = 74
TRACEBACK_LIMIT = 6000
LIBRARIES = {
    "torch": (
        "numpy", "torch", "handlers.models.releases.transformers_once", "transformers.modeling_utils", "safetensors.torch",
        "transformers:AutoConfig", "transformers:AutoTokenizer", "transformers:AutoModelForCausalLM",
        "handlers.models.releases.conversions", "handlers.validate.check", "handlers.validate.workers.worker",
        "handlers.validate.workers.drivers",
        "handlers.validate.reference", "handlers.validate.merged", "handlers.validate.engines.pytorch.live", "handlers.adapter.stage",
    ),
    "light": (
        "numpy", "onnxruntime", "handlers.graphs.light_ir", "tokenizers", "handlers.validate.check", "handlers.validate.workers.worker",
        "handlers.validate.workers.drivers", "handlers.validate.engines.graphs.onnx_causal",
    ),
}  # fmt: skip
"""What the processes have loaded from which attempts are forked: those that use PyTorch, and all others."""
NO_SPACE = ("No space left on device", "Disk quota exceeded")


def _bounded_traceback() -> str:
    return traceback.format_exc()[-TRACEBACK_LIMIT:]


def _failed(error: BaseException, stage: str, staging: str, outside: Outside | None = None) -> StageResult:
    """The outcome that an exception stands for. Unknown exceptions are retryable: the attempt limit bounds them; those of a library over
    what it is given are not, since that stays as it is. `outside`: what the stage reads and does not own; what of it is away is the reason,
    whatever the exception says."""
    operation = f"run the stage {stage}"
    if outside is not None and not _is_full(error) and (fault := outside.fault(error)) is not None:
        return StageResult(outcome=Outcome.RETRYABLE, fault=fault.model_copy(update={"details": _bounded_traceback()}))
    if isinstance(error, OSError) and error.errno is not None:
        error = from_oserror(error, operation, staging)
    if isinstance(error, CkptdError):
        fault = error.fault
        if fault.details is None:
            fault = fault.model_copy(update={"details": _bounded_traceback()})
        permanent = isinstance(error, Permanent)
        delay = error.delay if isinstance(error, Retryable) else None
        return StageResult(outcome=Outcome.PERMANENT if permanent else Outcome.RETRYABLE, fault=fault, retry_after=delay)
    if any(text in str(error) for text in NO_SPACE):  # libraries in other languages raise errors of their own
        return _failed(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), stage, staging)
    if not foreign.of_machine(error) and foreign.library_of(error) is not None:
        return _failed(foreign.refusal(error, operation, None), stage, staging)
    memory = foreign.of_memory(error)
    cause = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
    remedy = "free memory or raise limits.memory_fraction" if memory else "read the attempt's log; report it if the input looks correct"
    fault = Fault(
        code=FaultCode.OUT_OF_MEMORY if memory else FaultCode.UNEXPECTED,
        operation=operation,
        cause=cause,
        remedy=remedy,
        details=_bounded_traceback(),
    )
    return StageResult(outcome=Outcome.RETRYABLE, fault=fault)


def _is_full(error: BaseException) -> bool:
    """Whether it is a full disk, which is waited for in another way."""
    return isinstance(error, OSError) and error.errno in FULL_DISK


class BadJob(Exception):
    """The job file is not one that this version can run; the text says why."""


def read_job(job_file: str) -> StageContext:
    """The job that a file describes. Raises BadJob."""
    try:
        raw = json.loads(Path(job_file).read_bytes())
    except OSError as error:
        raise BadJob(f"{job_file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BadJob(f"{job_file} is not JSON") from None
    version = raw.get("contract", CONTRACT_VERSION) if isinstance(raw, dict) else "?"
    if version != CONTRACT_VERSION:
        raise BadJob(f"it speaks version {version} of the contract and this program version {CONTRACT_VERSION}")
    try:
        # Before anything is read: the sections of the configuration are theirs, and another Python can't look for them itself.
        if listed := raw.get("formats"):
            catalog.use(FormatEntry.model_validate(entry) for entry in listed)
        context = StageContext.model_validate(_readable(raw))
    except ValidationError as error:
        first = error.errors()[0]
        raise BadJob(f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None
    if not _exists(context.entry):
        raise BadJob(f"it asks for the stage {context.stage!r} by {context.entry!r}, which this version does not have")
    return context


def _readable(raw: dict[str, Any]) -> dict[str, Any]:
    """A job file without the sections that this process can't read and that its stage does not depend on: another package may have been
    removed or replaced while the daemon runs, and must not take the stages of others with it."""
    known, spec = catalog.catalog(), plan.find_spec(str(raw.get("stage")))
    needed = {path.partition(".")[0] for path in spec.settings} if spec else set()

    def without(work: Any) -> Any:
        if not isinstance(work, dict):
            return work
        return {name: value for name, value in work.items() if name in Work.model_fields or name in needed or _fits(known, name, value)}

    facts = raw.get("facts")
    passed_on = {"facts": {**facts, "work": without(facts.get("work"))}} if isinstance(facts, dict) else {}
    return {**raw, "work": without(raw.get("work")), **passed_on}


def _fits(known: catalog.Catalog, section: str, value: object) -> bool:
    try:
        kind = known.sections.get(section)
        return kind is not None and (kind.__module__.startswith("handlers.") or bool(kind.model_validate(value)))
    except ValidationError:
        return False


def _exists(entry: str) -> bool:
    """Whether there is a module for an entry; nothing of it is imported but the packages that it lies in."""
    module, _, function = entry.partition(":")
    try:
        return bool(function) and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _work(context: StageContext, reporter: Reporter, outside: Outside) -> StageResult:
    with process.importing():
        run_stage = pkgutil.resolve_name(context.entry)
    failpoints.point(f"child.{context.stage}.run")
    _refuse_another_folder(context)
    output: StageOutput = run_stage(context, reporter)
    if not isinstance(output, StageOutput):  # another package's code
        raise TypeError(f"{context.entry} returned {type(output).__name__} instead of a StageOutput")
    failpoints.point(f"child.{context.stage}.ran")
    if (fault := outside.doubts(output)) is not None:
        return StageResult(outcome=Outcome.RETRYABLE, fault=fault)
    reporter.progress(1.0, "sealing files")
    if odd := odd_below(Path(context.staging)):
        raise _bad_output(context, f"it left {odd[0]!a}, which is neither a file nor a folder and can't be published")
    _refuse_another_folder(context)
    files = seal(Path(context.staging), output.digests)
    failpoints.point(f"child.{context.stage}.sealed")
    try:
        result = StageResult(
            outcome=Outcome.SUCCEEDED,
            strategy=output.strategy,
            files=files,
            figures=output.figures,
            checks=tuple(output.checks),
            warnings=tuple(output.warnings),
            fallbacks=tuple(output.fallbacks),
            reusable=output.reusable,
            versions=process.loaded_versions(),
        )
        result.model_dump_json()
    except ValueError as error:
        raise _bad_output(context, f"its result can't be written as JSON: {' '.join(str(error).split())[:300]}") from error
    return result


def _refuse_another_folder(context: StageContext) -> None:
    """Raise Retryable where the path that this attempt writes to leads elsewhere than when the daemon made it."""
    if not is_still(Path(context.staging), context.staging_inode):
        if (Path(context.result).parent / ORDERS).exists():  # on a machine that a scheduler chose
            raise Retryable(
                FaultCode.NOT_OURS, "use ckptd's own folders",
                f"{socket.gethostname()} does not have the folder that the daemon's machine made by this path",
                "mount the file system of output.directory there by the same path; `ckptd check` compares the folders of both machines",
                path=context.staging,
            )  # fmt: skip
        error = not_ours(Path(context.staging), "was replaced by another folder, or by a link")
        raise Retryable(**error.fault.model_dump())


def _bad_output(context: StageContext, cause: str) -> Permanent:
    remedy = f"leave {context.stage} out of export.variants, and report it to whoever wrote the stage: trying again does not help"
    return Permanent(FaultCode.BAD_OUTPUT, f"run the stage {context.stage}", cause, remedy, path=context.staging)


def _attempt(context: StageContext, reporter: Reporter, stop: StopFlag) -> StageResult:
    """Run the stage; whatever comes of it is a result."""
    outside: Outside | None = None
    try:
        process.prepare(context)
        outside = Outside(context)
        known = outside
        return process.with_room(lambda: _work(context, reporter, known))
    except Interrupted:
        return StageResult(outcome=Outcome.INTERRUPTED)
    except BaseException as error:
        if not foreign.is_failure(error):
            raise
        with contextlib.suppress(OSError):  # the log may lie on the disk that is full
            traceback.print_exc()
        # What fails after it was told to stop may fail because its own processes were told too.
        return StageResult(outcome=Outcome.INTERRUPTED) if stop.asked else _failed(error, context.stage, context.staging, outside)


def _write(context: StageContext, result: StageResult) -> int:
    try:
        write_atomic(Path(context.result), result.model_dump_json(indent=1))
    except OSError as error:
        _say(f"could not write the result: {error}")
        return EXIT_DISK_FULL if error.errno in {*FULL_DISK, errno.EFBIG} else EXIT_UNWRITABLE
    return 0


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def main(job_file: str) -> int:
    """Run the attempt that `job_file` describes; give the exit code."""
    try:
        context = read_job(job_file)
    except BadJob as error:
        _say(f"could not use the job file: {error}")
        return EXIT_BAD_JOB
    StageResult.model_rebuild()  # now: at the end of an attempt that failed there may be no handle or memory for it
    process.bind(context.limits)
    stop = process.stop_at_safe_points() if context.limits.resumable else StopFlag()
    failpoints.point(f"child.{context.stage}.start")
    reporter = Reporter(process.take_standard_output(), stop)
    reporter.start_heartbeat()
    started = time.monotonic()
    with use_language("en"):  # what is recorded, whatever the locale; a page says its own
        result = _attempt(context, reporter, stop)
    result = result.model_copy(
        update={
            "attempt": context.attempt_id, "seconds": round(time.monotonic() - started, 3),
            "cpu_seconds": round(process.cpu_seconds(), 3), "peak_rss": process.peak_rss(),
        }
    )  # fmt: skip
    code = _write(context, result)
    failpoints.point(f"child.{context.stage}.done")
    return code


if __name__ == "__main__":
    if sys.argv[1:2] == ["--loaded"]:
        libraries, descriptor, limits, idle, first = sys.argv[2:]
        shared = ChildLimits.model_validate_json(limits)
        exit_code = warm.serve(int(descriptor), shared, float(idle), main, LIBRARIES[libraries], first)
    else:
        exit_code = main(sys.argv[1]) if len(sys.argv) == 2 else main("")
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(exit_code)  # there is nothing to save, and libraries that are taken down in order may hang or crash doing so
