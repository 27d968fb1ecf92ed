"""What a far end's answers over HTTP mean for a delivery: one table for all targets."""

from __future__ import annotations

import email.utils
import time

from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses (RFC 9110) after which the same request may be answered in another way."""
LONGEST_PAUSE = 3600.0
"""Seconds that a far end may ask us to wait."""


def error_of(status: int, operation: str, said: str, where: str, retry_after: str | None = None) -> CkptdError:
    """The error that an answer stands for. `said`: the far end's own words, without secrets; `where`: the address, without secrets;
    `retry_after`: the header of that name."""
    cause = f"the far end answered {status}" + (f": {said.strip()}" if said.strip() else "")
    if status in (401, 403):
        remedy = "correct the target's secret, or give it the right to write there"
        return Permanent(FaultCode.DELIVERY_REFUSED, operation, cause, remedy, path=where)
    if status in (409, 412):
        remedy = "look at what lies there; `ckptd deliver` with --force replaces it"
        return Permanent(FaultCode.DELIVERY_CONFLICT, operation, cause, remedy, path=where)
    if status in (413, 507):
        remedy = "free space there, or let the target's `keep` remove older versions"
        return Retryable(FaultCode.DELIVERY_FULL, operation, cause, remedy, path=where)
    if status in PASSING:
        remedy = "look at the service; the delivery is tried again by itself"
        if (pause := seconds_of(retry_after)) is not None:
            return Retryable.after(pause, FaultCode.DELIVERY_FAR_END, operation, cause, remedy, path=where)
        return Retryable(FaultCode.DELIVERY_FAR_END, operation, cause, remedy, path=where)
    remedy = "correct the target in the configuration"
    return Permanent(FaultCode.DELIVERY_REFUSED, operation, cause, remedy, path=where)


def unreachable(operation: str, error: Exception, where: str) -> Retryable:
    """The error of a connection that could not be made, or was cut."""
    cause = f"the far end can't be reached: {error}" if str(error) else f"the far end can't be reached ({type(error).__name__})"
    return Retryable(
        FaultCode.DELIVERY_FAR_END,
        operation,
        cause,
        "look at the service and the network; the delivery is tried again by itself",
        path=where,
    )


def seconds_of(retry_after: str | None) -> float | None:
    """The header Retry-After in seconds, bounded; None where it is not there or can't be read. Both its forms (RFC 9110, 10.2.3)."""
    if not retry_after:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return min(max(seconds, 0.0), LONGEST_PAUSE) if seconds == seconds else None
