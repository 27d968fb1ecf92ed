"""Slurm's words: the states of jobs, and the reasons for which they wait (squeue(1), "JOB STATE CODES", "JOB REASON CODES")."""

from __future__ import annotations

from daemon.running.cluster.port import Ending

PENDING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
PAUSED = frozenset({"SUSPENDED", "STOPPED"})
ENDINGS = {
    "COMPLETED": Ending.ENDED, "FAILED": Ending.ENDED, "REVOKED": Ending.ENDED,
    "CANCELLED": Ending.CANCELLED,
    "PREEMPTED": Ending.PREEMPTED,
    "NODE_FAIL": Ending.NODE_LOST, "BOOT_FAIL": Ending.NODE_LOST,
    "TIMEOUT": Ending.TIME_LIMIT, "DEADLINE": Ending.TIME_LIMIT,
    "OUT_OF_MEMORY": Ending.OUT_OF_MEMORY,
}  # fmt: skip
_REASONS = {
    "None": "",
    "Priority": "jobs with a higher priority come first",
    "Resources": "no machine has what it needs free",
    "Dependency": "it waits for another job",
    "BeginTime": "its time has not come",
    "JobHeldUser": "it is held by its user",
    "JobHeldAdmin": "it is held by an administrator",
    "Licenses": "a licence is not free",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs now",
    "PartitionNodeLimit": "its partition does not allow that many machines",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "ReqNodeNotAvail": "the machines that it needs are not available",
    "Reservation": "it waits for a reservation",
    "BadConstraints": "no machine has what its constraint asks for",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QoS is not valid",
    "JobArrayTaskLimit": "its array runs as many as it may",
    "QOSMaxJobsPerUserLimit": "its QoS allows its user no more jobs at a time",
    "NodeDown": "a machine that it needs is down",
    "AssocMaxJobsLimit": "its account allows no more jobs at a time",
    "AssocGrpCpuLimit": "its account has as many cores as it may",
    "QOSMaxCpuPerUserLimit": "its QoS allows its user no more cores",
    "QOSGrpCpuLimit": "its QoS has as many cores as it may",
    "AssocGrpGRES": "its account has as many GPUs as it may",
    "QOSMaxGRESPerUser": "its QoS allows its user no more GPUs",
    "QOSMaxWallDurationPerJobLimit": "it asks for more time than its QoS allows",
    "Nodes required for job are DOWN": "no machine can take it: down, drained or reserved",
    "Cleaning": "its last run is being cleaned up",
}


def reason_in_words(reason: str) -> str:
    """Why a job waits; a reason that is not known here is given as it is."""
    key = reason.partition(",")[0].strip().strip("()")
    words, whole = _REASONS.get(key), reason.strip().strip("()")
    if words is None:
        return f"Slurm says {whole}" if whole else ""
    return words if " " in key or not words else f"{words} ({key})"
