"""Credentials of clouds: lines `NAME=value` of a target's secret file, named as the usual variables, or these variables themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode

GOOGLE_KEY = "GOOGLE_SERVICE_ACCOUNT_KEY"


def variables(secret: str) -> Mapping[str, str]:
    """What the secret file says, or the environment without one. The file may be one of `aws configure` with one profile, or a service
    account's key of Google (JSON)."""
    if not secret.strip():
        return os.environ
    try:
        if isinstance(json.loads(secret), dict):
            return {GOOGLE_KEY: secret}
    except (ValueError, RecursionError):
        pass
    lines = (line.strip().removeprefix("export ").partition("=") for line in secret.splitlines())
    return {name.strip().upper(): value.strip().strip("\"'") for name, mark, value in lines if mark and not name.startswith("#")}


def wanted(known: Mapping[str, str], *names: str) -> list[str]:
    """The values by those names. Raises Permanent where one is missing."""
    for name in names:
        if not known.get(name):
            remedy = f"write {' and '.join(f'{each}=…' for each in names)} into the target's secret file, a line each"
            raise Permanent(FaultCode.DELIVERY_REFUSED, "read the credentials of the target", f"the secret {name} is not set", remedy)
    return [known[name] for name in names]
