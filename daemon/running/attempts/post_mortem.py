"""How an attempt ended: the result file where it can be trusted, else a fault that names the cause of its end.

Called once the child's processes are gone. What ends a process by force may not be the stage's fault, so all
these faults are retryable; the limit on attempts bounds them.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from daemon.contract.disk.attempt_log import AttemptLog
from daemon.contract.faults.errors import DISK_RETRY_SECONDS, Fault
from daemon.contract.faults.fault_codes import Code, FaultCode, OtherCode
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult
from daemon.running.attempts.result_file import examine

EXIT_BAD_JOB = 65
EXIT_NO_GROUP = 71
EXIT_UNWRITABLE = 73
EXIT_DISK_FULL = 74
EXIT_OTHER_PARENT = 75
READ_LOG = "read the attempt's log"
_NO_SPACE = ("No space left on device", "Disk quota exceeded")


@dataclass(frozen=True)
class Death:
    """What is known about a child that has ended."""

    code: int
    """Its exit code, or the negative number of the signal that ended it."""
    memory: int = 0
    """Bytes that the attempt held when it was last looked at."""
    limit: int = 0
    """Bytes that it was allowed, 0 for no limit."""
    expected: int = 0
    """As `Bounds.expected`."""
    at_limit: bool = False
    """The kernel says that the attempt reached its own limit of memory."""
    out_of_memory: bool = False
    """The kernel says that it killed for want of memory just then."""
    no_room: str = ""
    """Folder that it wrote into whose disk takes no writes, "" where all do, or where it does not matter."""
    refused_forks: bool = False
    """The kernel refused the attempt more processes."""
    interrupted: bool = False
    fault: Fault | None = None
    """Why it was ended by us."""


def over_limit(limit: int, expected: int) -> tuple[Code, str, str]:
    """Code, cause as a clause, and remedy of an attempt that was ended for its memory; all sizes in bytes."""
    if not expected:
        return FaultCode.MEMORY_LIMIT, f"may use {mib(limit)}", "raise limits.memory_fraction, or leave this variant out on this machine"
    return (
        FaultCode.MEMORY_UNEXPECTED, f"may use {mib(limit)}, since about {mib(expected)} are estimated for it",
        "run `ckptd queue retry` with the export's id if you trust the model, and ckptd will expect that much; else leave this variant out",
    )  # fmt: skip


def mib(size: int) -> str:
    """Bytes in a readable unit."""
    return f"{size / (1 << 20):,.0f} MiB"


def conclude(context: StageContext, log: AttemptLog, death: Death, seconds: float) -> StageResult:
    """The result of an attempt whose processes are gone.

    A complete result counts even when the child was being ended or crashed on its way out; a failure that it reported
    while it was being ended is our doing and doesn't.
    """
    result, bad = examine(context)
    if result is not None and (not _forced(death) or result.outcome is Outcome.SUCCEEDED):
        return result
    if death.interrupted:
        return StageResult(outcome=Outcome.INTERRUPTED, seconds=seconds)
    fault = death.fault or _died(context, death, bad, log.last_line())
    fault = fault.model_copy(update={"path": fault.path or str(log.path), "details": fault.details or log.end()})
    wait = DISK_RETRY_SECONDS if fault.code == FaultCode.DISK_FULL else None
    return StageResult(outcome=Outcome.RETRYABLE, fault=fault, retry_after=wait, seconds=seconds)


def _forced(death: Death) -> bool:
    return death.interrupted or death.fault is not None


def _died(context: StageContext, death: Death, bad: str, last: str) -> Fault:
    code, cause, remedy = _signalled(death) if death.code < 0 else _exited(death, bad, last)
    return Fault(code=code, operation=f"run the stage {context.stage}", cause=cause, remedy=remedy)


def _signalled(death: Death) -> tuple[Code, str, str]:
    name = signal_name(-death.code)
    if death.at_limit:
        code, cause, remedy = over_limit(death.limit, death.expected)
        return code, f"it {cause}; the kernel ended it there, and it used {mib(death.memory)} at the last measurement", remedy
    if death.code == -signal.SIGKILL and death.out_of_memory:
        held = f"; it used {mib(death.memory)} at the last measurement" if death.memory else ""
        cause = f"the kernel killed it because memory ran out{held}"
        return FaultCode.OUT_OF_MEMORY, cause, "free memory on the machine, export when training is over, or leave this variant out"
    if death.code == -signal.SIGKILL:
        cause = "its process was killed by SIGKILL, which neither ckptd nor, as far as ckptd can see, the kernel's OOM killer sent"
        return (
            FaultCode.KILLED,
            cause,
            "find out who sends signals on this machine (an administrator, a job limit, a container's memory limit)",
        )
    if -death.code in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        return FaultCode.KILLED, f"its process was ended by {name}, which ckptd did not send", "find out who sends signals on this machine"
    if death.code == -signal.SIGBUS and death.no_room:
        cause = f"it wrote to a memory-mapped file while the disk was full ({death.no_room}), and the kernel ended it with SIGBUS"
        return FaultCode.DISK_FULL, cause, "free space on the file systems of the state and output directories"
    cause = f"its process crashed with {name} inside a library"
    return FaultCode.CRASHED, cause, "read the stack in the attempt's log; another version of the library that it names may not crash"


def _exited(death: Death, bad: str, last: str) -> tuple[Code, str, str]:
    code = death.code
    if death.refused_forks:
        return (
            FaultCode.TOO_MANY_PROCESSES,
            "the kernel did not allow it more processes",
            "read the attempt's log, which says what it was doing; no stage needs that many",
        )
    if bad:
        return FaultCode.BAD_RESULT, bad, "check whether another program or version of ckptd writes there; the attempt is repeated"
    if code == EXIT_DISK_FULL or (code and any(text in last for text in _NO_SPACE)):
        cause = f"the disk is full, so its result could not be written ({last or f'exit code {code}'})"
        return FaultCode.DISK_FULL, cause, "free space on the file systems of the state and output directories"
    if death.no_room and code in (1, EXIT_BAD_JOB, EXIT_UNWRITABLE):
        cause = f"it ended with exit code {code} and could not record why: the disk is full ({death.no_room})"
        return FaultCode.DISK_FULL, cause, "free space on the file systems of the state and output directories"
    if code == EXIT_UNWRITABLE:
        return FaultCode.RESULT_UNWRITABLE, f"its result could not be written ({last})", "check the state directory and the kernel's log"
    if code == EXIT_BAD_JOB:
        cause = f"the child could not use the job file ({last})"
        remedy = "restart the daemon if ckptd or a format's package was replaced while it ran; otherwise `ckptd check` says what is wrong"
        return FaultCode.BAD_JOB, cause, remedy
    if code == EXIT_OTHER_PARENT:
        return (
            FaultCode.OTHER_PARENT,
            "the child process found that its daemon was gone, and ended",
            "start only one daemon on this state directory",
        )
    if code == EXIT_NO_GROUP:
        return (
            FaultCode.NO_CONTROL_GROUP,
            f"the child could not enter its control group ({last})",
            "check the delegation of the service's control group",
        )
    if code > 128 and signal_name(code - 128).startswith("SIG"):
        cause = f"it ended with exit code {code}, which means {signal_name(code - 128)}: a process that it started was ended by this signal"
        return OtherCode(f"exit-{code}"), cause, "free memory if it was the OOM killer; otherwise read the attempt's log"
    return FaultCode.NO_RESULT, f"its process ended with exit code {code} and no result", READ_LOG


def signal_name(number: int) -> str:
    """SIGSEGV for 11; the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
