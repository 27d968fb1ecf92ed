"""Another machine that is reached by ssh: Debian's openssh-server and rsync, unpacked into a folder, for this user at a free port.

`nss_wrapper` tells sshd of a user with a home of its own, so nothing of the real one's is read or changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import psutil

from tests.cluster.slurm_site import download
from tests.deliver.contract.site import Contents, Site
from tests.deliver.sites.store import folder_of

PACKAGES = ("openssh-server", "rsync", "libpopt0", "libwrap0", "libnss-wrapper")
STARTS = 30.0
OWN = "MANIFEST.json"


class Machine(Site):
    """A folder of it."""

    kind = "rsync"
    entry = "handlers.deliver.rsync.target:Rsync"
    counts: ClassVar[Literal["requests", "calls"]] = "calls"
    tree: Path
    """Of the unpacked packages."""

    def start(self) -> None:
        self.home, self.models = self.folder / "home", self.folder / "my models"
        for folder in (self.home, self.models, self.folder / "bin"):
            folder.mkdir()
        for name in ("host", "key"):
            self._key(name)
        self.secret = (self.folder / "key").read_text()
        (libraries,) = self.tree.glob("usr/lib/*-linux-gnu")
        self.variables = {"PATH": f"{self.tree}/usr/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(libraries)}
        user = pwd.getpwuid(os.getuid()).pw_name
        self._user(user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._configure(user)
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {(self.folder / 'host.pub').read_text()}")
        self.to = f"{user}@127.0.0.1:{self.models}"
        self.listen()

    def _key(self, name: str) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", self.folder / name], check=True)

    def _user(self, user: str) -> None:
        rows = [f"{user}:x:{os.getuid()}:{os.getgid()}::{self.home}:/bin/sh"]
        if user != "sshd":
            rows.append("sshd:x:65534:65534::/nonexistent:/usr/sbin/nologin")
        (self.folder / "passwd").write_text("\n".join(rows) + "\n")
        (self.folder / "group").write_text(f"{user}:x:{os.getgid()}:\n")

    def _configure(self, user: str) -> None:
        path = f"{self.folder}/bin:{self.variables['PATH']}".replace(" ", "\\ ")
        lines = [
            f"ListenAddress 127.0.0.1:{self.port}", f'HostKey "{self.folder}/host"', f'AuthorizedKeysFile "{self.folder}/key.pub"',
            "PasswordAuthentication no", "KbdInteractiveAuthentication no", "StrictModes no", "PidFile none",
            "PermitRootLogin prohibit-password", f"AllowUsers {user}",
            f'SetEnv "PATH={path}" "LD_LIBRARY_PATH={self.variables["LD_LIBRARY_PATH"]}"',
        ]  # fmt: skip
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n")

    def listen(self) -> None:
        """Start sshd."""
        libraries = self.variables["LD_LIBRARY_PATH"]
        environment = {
            **os.environ, "NSS_WRAPPER_PASSWD": str(self.folder / "passwd"), "NSS_WRAPPER_GROUP": str(self.folder / "group"),
            "LD_PRELOAD": f"{libraries}/libnss_wrapper.so", "LD_LIBRARY_PATH": libraries,
        }  # fmt: skip
        if os.geteuid() == 0:  # it then puts what speaks to strangers there, as its package does
            Path("/run/sshd").mkdir(exist_ok=True)
        self._log = (self.folder / "sshd.log").open("ab")
        self._sshd = subprocess.Popen(
            [self.tree / "usr/sbin/sshd", "-D", "-e", "-f", self.folder / "sshd_config"],
            env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + STARTS
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 5):
                    return
            except OSError:
                assert time.monotonic() < end and self._sshd.poll() is None, (self.folder / "sshd.log").read_text()
                time.sleep(0.02)

    def cut(self) -> None:
        """End sshd and all connections, as a power cut does."""
        sessions = psutil.Process(self._sshd.pid).children(recursive=True) if self._sshd.poll() is None else []
        for process in (*sessions, self._sshd):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                process.kill()
        self._sshd.wait()
        self._log.close()

    def stop(self) -> None:
        self.cut()

    def options(self) -> dict[str, Any]:
        return {"to": self.to, "port": self.port, "known_hosts": str(self.folder / "known"), "ssh_config": "none"}

    def visible(self, run: str) -> Mapping[str, Contents]:
        """As a web server over the folder would give it."""
        name, seen = folder_of(run), {}
        folder = self.models / name
        for version in folder.iterdir() if folder.is_dir() else ():
            if version.is_dir() and "foreign" not in version.name:
                contents = {
                    str(path.relative_to(version)): hashlib.sha256(path.read_bytes()).hexdigest()
                    for path in version.rglob("*") if path.is_file()
                }  # fmt: skip
                if version.is_dir():  # it may have been taken away meanwhile
                    assert contents.pop(OWN)
                    seen[f"{name}/{version.name}"] = contents
        return seen

    def current(self, run: str) -> str | None:
        file = self.models / folder_of(run) / "latest.json"
        return f"{folder_of(run)}/{json.loads(file.read_text())['version']}" if file.is_file() else None

    def move_by_hand(self, run: str, version: str) -> None:
        name, _, version = version.partition("/")
        (self.models / "mine").write_text(
            json.dumps({"version": version, "run": run, "step": int(version.split("-")[-2]), "path": f"{version}/"})
        )
        (self.models / "mine").rename(self.models / name / "latest.json")

    def lay_foreign(self) -> None:
        folder = self.models / "run-a/foreign-1-00000000"
        folder.mkdir(parents=True)
        (folder / OWN).write_text(json.dumps({"version": "other-1-00000000", "run": "run-a", "step": 1}))

    def foreign_is_there(self) -> bool:
        return (self.models / "run-a/foreign-1-00000000" / OWN).is_file()

    def leftovers(self) -> list[str]:
        """What was being made or removed, and contents that no version has."""
        work = self.models / ".ckptd"
        fresh = [path for path in work.glob("*") if path.name not in ("parts", "lock", "used")]
        return [str(path) for path in (*fresh, *(path for path in (work / "parts").glob("*") if path.stat().st_nlink == 1))]

    def stored(self) -> int:
        files = {os.stat(path).st_ino: os.stat(path).st_size for path in self.models.rglob("*") if path.is_file()}
        return sum(files.values())


def fetch(cache: Path) -> Path:
    """The folder with the unpacked packages. Raises OSError or SubprocessError."""
    if shutil.which("ssh-keygen") is None:
        raise FileNotFoundError("there is no ssh-keygen")
    return download(cache, PACKAGES)
