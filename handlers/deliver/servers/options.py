"""The keys that all kinds of servers have."""

from __future__ import annotations

from pydantic import field_validator

from daemon.contract.frozen import Frozen
from handlers.deliver.addresses import is_address


class AnsweringOptions(Frozen):
    """Of every server."""

    url: str
    """Its address, without a path behind it: "http://gpu:8000"."""
    ca_file: str = ""
    """Certificates (PEM) by which an address with https is known; "": the system's."""
    timeout: float = 60.0
    """Seconds for one answer, loading included."""
    chat: bool = True
    """Whether it is also asked by messages, and must write them by the model's own chat template. Without this a wrong template stays
    unseen."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if not is_address(value):
            raise ValueError("must be an address like http://127.0.0.1:8000, without a password")
        return value.rstrip("/")


class ServerOptions(AnsweringOptions):
    """Of a server that loads from a folder."""

    folder: str
    """Folder of this machine, or a share that is mounted here, from which the server loads; ckptd keeps a folder a version there."""
    seen_at: str = ""
    """What the server calls that folder, where it runs in a container or on another machine; "": the same."""


class AdapterOptions(ServerOptions):
    """Of servers that load adapters by name."""

    alias: str = "{run}"
    """Name by which clients ask for the newest version, `{run}` stands for the run's name; it moves once the server answers rightly under
    the version's own name, and takes an adapter's place in the server of its own. "": none."""
