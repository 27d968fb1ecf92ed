"""JSON there and back with a server of models, over `handlers.deliver.calls`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.calls import Calls, Said

ASK = "ask the server"


def calls_of(url: str, ca_file: str, secret: str, variables: Sequence[str], seconds: float) -> Calls:
    """Calls of a server, with its key: the secret, or else what the first of the kind's variables holds."""
    key = secret.strip() or next((os.environ[name] for name in variables if os.environ.get(name)), "")
    calls = Calls(url, ca_file, (key,), silent=seconds)
    calls.credentials = _Bearer(key)
    return calls


def ask(calls: Calls, operation: str, path: str, body: Any = None, accepted: Iterable[int] = (200,)) -> Said:
    """GET, or POST a body. Raises CkptdError for a status that is not accepted."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if data is not None else {}
    return calls.ask(operation, "GET" if data is None else "POST", path, body=data, headers=headers, accepted=accepted)


def unexpected(operation: str, where: str, what: str) -> Permanent:
    """The error of an answer that is not what the server's documentation says."""
    remedy = "look whether another program, or another release, answers at this address"
    return Permanent(FaultCode.DELIVERY_REFUSED, operation, what, remedy, path=where)


class _Bearer:
    """A key in the header Authorization."""

    def __init__(self, key: str) -> None:
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def headers(self) -> Mapping[str, str]:
        """With the key."""
        return self._headers

    def renewed(self, challenge: str) -> bool:
        """There is no other."""
        return False
