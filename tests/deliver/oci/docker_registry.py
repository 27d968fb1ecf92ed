"""Debian's docker-registry and skopeo, without installation: fetched, unpacked and run in a folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import ClassVar

from tests.cluster.slurm_site import download
from tests.deliver.oci.far_end import CHUNK, RegistrySite

PACKAGES = ("docker-registry", "skopeo", "libgpgme11", "libassuan0", "golang-github-containers-common")
STARTS = 30.0


class DockerRegistry(RegistrySite):
    """A registry that keeps its files below the site's folder."""

    tree: Path
    part: ClassVar[int] = 160_000 + CHUNK
    """An upload that is cut within a chunk is given up by it: "upload resumed at wrong offset"."""
    lacks: ClassVar[dict[str, str]] = {
        "what_a_person_moves_at_the_end_stays_moved": "it knows no conditional writes, so what a person does between look and move is lost",
    }

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        document = {
            "version": "0.1", "log": {"level": "error"}, "http": {"addr": f"127.0.0.1:{self.port}", "secret": "for tests"},
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "registry")}, "delete": {"enabled": True}},
        }  # fmt: skip
        self._configuration = self.folder / "registry.json"
        self._configuration.write_text(json.dumps(document), encoding="utf-8")  # which is YAML too
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", self.tree / "usr/bin/docker-registry", "serve", self._configuration],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        end = time.monotonic() + STARTS
        while True:
            try:
                with urllib.request.urlopen(f"{self.base}/v2/", timeout=5):
                    break
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.05)
        self._front()

    def stop(self) -> None:
        assert self.proxy is not None
        self.proxy.__exit__()
        self._process.kill()
        self._process.wait()

    def leftovers(self) -> list[str]:
        """An upload that was cut in a chunk is neither continued nor cancelled by it ("upload resumed at wrong offset"): its own purge
        takes it away, after a week."""
        return []

    def stored(self) -> int:
        """After its own clean-up, which is a command of it and fails where no repository has a manifest."""
        if not any((self.folder / "registry").rglob("_manifests")):
            return 0
        subprocess.run(
            [self.tree / "usr/bin/docker-registry", "garbage-collect", self._configuration], check=True, capture_output=True, timeout=120
        )
        files = (self.folder / "registry").rglob("data")
        return sum(path.stat().st_size for path in files if path.is_file())

    def skopeo(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run skopeo."""
        libraries = next(self.tree.glob("usr/lib/*-linux-gnu"))
        environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "HOME": str(self.folder)}
        policy = self.folder / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        return subprocess.run(
            [self.tree / "usr/bin/skopeo", "--policy", policy, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def fetch(cache: Path) -> Path:
    """The folder with the unpacked packages. Raises OSError or SubprocessError."""
    return download(cache, PACKAGES)
