"""Ray's four verbs: each attempt is a detached actor, whose name is the attempt's token, in the namespace `ckptd`.

Nothing is started again by Ray (max_restarts, max_task_retries: 0). An actor ends with its attempt; after that the cluster has none of its
name, which is as good: how an attempt ended is in its folder.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from daemon.contract.jobs.processes.elsewhere import OUTPUT
from daemon.running.cluster.port import CALL_SECONDS, Ending, Resources, Sighting, State
from daemon.running.cluster.ray.connection import Connection
from daemon.running.cluster.ray.words import ending_of, reason_to_wait


class Ray:
    """`address`: of the cluster, "" for what RAY_ADDRESS says, else for the one of this machine. `python`: with the cluster's Ray, "" for
    the daemon's own. `custom`: name of a queue → its custom resources, "" for those of all."""

    name = "ray"

    def __init__(
        self, address: str = "", python: str = "", custom: Mapping[str, Mapping[str, float]] | None = None, patience: float = CALL_SECONDS
    ) -> None:
        self._custom = custom or {}
        self.connection = Connection(python or sys.executable, _address_of(address) or "auto", patience)
        self._said: dict[str, str] = {}

    def submit(self, token: str, script: Path, resources: Resources) -> str:
        """As `Scheduler.submit`. What no machine has is waited for, since a cluster may grow."""
        cpus = max(1, resources.cpus)
        asked: dict[str, float] = {"CPU": cpus, **self._custom.get(resources.queue, self._custom.get("", {}))}
        asked |= {"GPU": resources.gpus} if resources.gpus else {}
        asked |= {"memory": resources.memory} if resources.memory else {}
        return str(self.connection.ask("submit", token=token, script=str(script), cpus=cpus, asked=asked, alone=resources.alone))

    def look(self, tokens: Collection[str]) -> Mapping[str, Sighting]:
        """As `Scheduler.look`."""
        answer = self.connection.ask("look", tokens=list(tokens))
        seen = answer["seen"]
        self._said = {token: said for token, row in seen.items() if (said := row.get("said") or row.get("died"))}
        return {token: _sighting(row, answer) for token, row in seen.items()}

    def cancel(self, jobs: Mapping[str, str]) -> None:
        """As `Scheduler.cancel`."""
        self.connection.ask("cancel", tokens=list(jobs))

    def tail(self, token: str, folder: Path) -> str:
        """As `Scheduler.tail`."""
        try:
            written = (folder / OUTPUT).read_bytes()[-4000:].decode(errors="replace")
        except OSError:
            written = ""
        return written if written.strip() else self._said.get(token, "")

    def close(self) -> None:
        """End the connection; what runs on the cluster goes on."""
        self.connection.close()


def _sighting(row: Mapping[str, Any], answer: Mapping[str, Any]) -> Sighting:
    state, id = State(row["state"]), str(row.get("id", ""))
    if state is State.RUNNING:
        return Sighting(state, id, "ALIVE", host=str(row.get("host", "")))
    if state is State.PENDING:
        return Sighting(state, id, "PENDING", reason_to_wait(row.get("asked"), answer.get("free", {}), answer.get("machines", [])))
    cause = str(row.get("died", ""))
    ending = Ending.CANCELLED if row.get("cancelled") else ending_of(cause)
    return Sighting(state, id, "DEAD" if cause or "cancelled" in row else "", ending=ending)


def _address_of(address: str) -> str:
    return address or os.environ.get("RAY_ADDRESS", "")


def why_not(address: str, python: str) -> tuple[str, str] | None:
    """Why no process can be connected with a cluster, as far as that is seen without one, and what to do. Parameters as for `Ray`."""
    if _address_of(address).startswith("ray://"):
        return (
            f"it is the address of a client server, through which calls may hang: {_address_of(address)}",
            "give the address of the head itself, for example 10.0.0.5:6379, and let this machine join the cluster with"
            " `ray start --address=10.0.0.5:6379 --num-cpus=0`",
        )
    install = f"install it (`{sys.executable} -m pip install ckptd[ray]`), or let cluster.ray.python name an interpreter with Ray"
    if python and not os.access(python, os.X_OK):
        return f"cluster.ray.python, {python}, can't be run", install
    return None if python or importlib.util.find_spec("ray") else (f"Ray is not installed for {sys.executable}", install)
