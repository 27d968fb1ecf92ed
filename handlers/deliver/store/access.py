"""Credentials of clouds: lines `NAME=value` of a target's secret file, named as the usual variables, or these variables themselves.

S3's may also be those of a role of an instance, a container or a service account, which botocore asks for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode

GOOGLE_KEY = "GOOGLE_SERVICE_ACCOUNT_KEY"
AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
READ = "read the credentials of the target"


@dataclass(frozen=True)
class Keys:
    """What requests to S3 are signed with."""

    access: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


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
            raise Permanent(FaultCode.DELIVERY_REFUSED, READ, f"the secret {name} is not set", remedy)
    return [known[name] for name in names]


def keys_of_aws(secret: str) -> Callable[[], Keys]:
    """What gives the keys, asked before each request: those of a role end, and others follow. Raises Permanent where there are none."""
    known = variables(secret)
    if secret.strip() or any(known.get(name) for name in AWS_KEYS):
        access, private = wanted(known, *AWS_KEYS)
        keys = Keys(access, private, known.get("AWS_SESSION_TOKEN", ""))
        return lambda: keys
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError:
        remedy = "write both keys into the target's secret file; for the role of an instance, a container or an account install ckptd[aws]"
        raise Permanent(FaultCode.DELIVERY_REFUSED, READ, "neither AWS_ACCESS_KEY_ID nor AWS_SECRET_ACCESS_KEY is set", remedy) from None
    try:
        role = Session().get_credentials()
    except (BotoCoreError, ValueError) as error:
        raise Permanent(FaultCode.DELIVERY_REFUSED, READ, str(error), "correct the settings of aws on this machine") from error
    if role is None:
        cause = "neither AWS_ACCESS_KEY_ID nor AWS_SECRET_ACCESS_KEY is set, and nothing here gives the keys of a role"
        raise Permanent(
            FaultCode.DELIVERY_REFUSED, READ, cause, "write both keys into the target's secret file, or give this machine a role"
        )

    def fresh() -> Keys:
        try:
            now = role.get_frozen_credentials()
        except (BotoCoreError, ValueError) as error:
            remedy = "look at what gives the role's keys; the delivery is tried again by itself"
            raise Retryable(FaultCode.DELIVERY_FAR_END, READ, str(error), remedy) from error
        return Keys(now.access_key, now.secret_key, now.token or "")

    return fresh
