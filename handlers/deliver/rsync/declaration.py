"""The kind `rsync`: a folder of a machine that is reached by ssh."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.frozen import Frozen

_TO = re.compile(r"(?P<host>(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])):(?P<folder>[^\x00-\x1f]+)")


class RsyncOptions(Frozen):
    """The keys of `kind = "rsync"`."""

    to: str
    """`user@host:/srv/models`: the machine, as ssh knows it, and the folder, which must be there. In it are a folder for each run, and in
    that one for each version beside `latest.json`; what is being sent is in `.ckptd`, on the same file system."""
    port: int = Field(default=0, ge=0, le=65535)
    """Of ssh there; 0: as ssh's configuration says."""
    known_hosts: str = ""
    """A file with the machine's key, as `ssh-keyscan` writes it; "": ssh's own files. A machine whose key is not there is refused."""
    ssh_config: str = ""
    """ssh's configuration, for jumps over other machines and more; "": that of the service's user."""

    @field_validator("to")
    @classmethod
    def _has_host_and_folder(cls, value: str) -> str:
        if not _TO.fullmatch(value) or value.partition(":")[2].startswith("-"):
            raise ValueError("must be HOST:FOLDER or USER@HOST:FOLDER, as me@box.example:/srv/models")
        return value

    @property
    def host(self) -> str:
        """The machine, with the user where one is named."""
        return self._part("host").replace("[", "").replace("]", "")

    @property
    def folder(self) -> str:
        """The folder there."""
        return self._part("folder").rstrip("/") or "/"

    def _part(self, name: str) -> str:
        parts = _TO.fullmatch(self.to)
        assert parts is not None
        return parts[name]


KIND = DeliveryKind(
    name="rsync", about="a folder of another machine, over rsync and ssh", options=RsyncOptions,
    entry="handlers.deliver.rsync.target:Rsync", secret_variables=("SSH_AUTH_SOCK",),
)  # fmt: skip
