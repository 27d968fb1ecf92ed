"""Far ends that deliveries are measured against, each in a process of its own so that whoever measures stays small.

    python -m benchmarks._far_ends hub|store|oci FOLDER PYTHON-OR-FOLDER-OF-PACKAGES SECONDS

prints its port, and ends with its standard input. Each request waits so many seconds. Called by `delivery.py`,
which has the orders and the stock tools here too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common
from tests.deliver.contract.site import Site
from tests.deliver.proxy import Fault

TOKEN = "hf_" + "a1B2" * 9
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
LIKE_CP = """
import os, sys
import boto3
from boto3.s3.transfer import TransferConfig, create_transfer_manager
client = boto3.client("s3", endpoint_url=sys.argv[1])
with create_transfer_manager(client, TransferConfig()) as manager:
    sent = [
        manager.upload(os.path.join(folder, name), "models", "stock/" + os.path.relpath(os.path.join(folder, name), sys.argv[2]))
        for folder, _, names in os.walk(sys.argv[2]) for name in names
    ]
    for upload in sent:
        upload.result()
"""
"""What `aws s3 cp --recursive` does: the transfer manager of boto3, whose defaults are the command's (10 at once, parts of 8 MiB)."""
PUSH = """
import os, sys
from oras.client import OrasClient
os.chdir(sys.argv[2])
files = [os.path.relpath(os.path.join(folder, name)) for folder, _, names in os.walk(".") for name in names]
OrasClient(hostname=sys.argv[1], insecure=True).push(target=sys.argv[1] + "/stock:1", files=files, disable_path_validation=True)
"""


@dataclass(frozen=True)
class FarEnd:
    """A kind of far end, and what speaks with it."""

    kind: str
    entry: str
    argument: str
    """Of the process: the Python or the folder of packages that it is made of."""
    stock: str
    """Python of the stock tool; the tool itself for the Hub."""
    secret: str

    def options(self, port: int) -> dict[str, Any]:
        """The kind's own keys."""
        address = f"http://127.0.0.1:{port}"
        every: dict[str, dict[str, Any]] = {
            "hub": {"repo": "me/{run}", "endpoint": address}, "store": {"url": "s3://models/ours", "endpoint": address},
            "oci": {"repository": f"127.0.0.1:{port}/ml/{{run}}", "plain_http": True},
        }  # fmt: skip
        return every[self.kind]

    def stock_command(self, port: int, folder: Path) -> list[str]:
        """The command that people type."""
        if self.kind == "hub":
            return [self.stock, "upload", "me/stock", str(folder), "."]
        where = f"http://127.0.0.1:{port}" if self.kind == "store" else f"127.0.0.1:{port}"
        return [self.stock, "-c", LIKE_CP if self.kind == "store" else PUSH, where, str(folder)]

    def stock_variables(self, port: int, scratch: Path) -> Mapping[str, str]:
        """Its environment."""
        hub = {
            "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_TOKEN": TOKEN, "HF_HOME": str(scratch / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }  # fmt: skip
        # By the one checksum or by the other moto's server works longer, in Python: both are to send the same.
        store = {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"}
        return {**hub, **KEYS, **store, "PYTHONPATH": "", "HOME": str(scratch)}

    def order(self, port: int, **rest: Any) -> dict[str, Any]:
        """For our process."""
        return {"kind": self.kind, "entry": self.entry, "name": self.kind, "secret": self.secret, "options": self.options(port), **rest}


def hub(program: str) -> FarEnd:
    """The local Hub and `hf`."""
    return FarEnd("hub", "handlers.deliver.hub.target:Hub", "-", program, TOKEN)


def store(python: str) -> FarEnd:
    """moto's server and boto3's transfer manager, by the Python of an environment that has both."""
    secret = "".join(f"{name}={value}\n" for name, value in KEYS.items() if "REGION" not in name)
    return FarEnd("store", "handlers.deliver.store.target:Store", python, python, secret)


def oci(tree: str, python: str) -> FarEnd:
    """docker-registry from a folder of unpacked packages, and oras by the Python of an environment that has it."""
    return FarEnd("oci", "handlers.deliver.oci.target:OciTarget", tree, python, "")


def site(kind: str, folder: Path, argument: str) -> Site:
    """The far end of the tests."""
    made: Site
    if kind == "hub":
        from tests.deliver.sites.hub import SITE

        made = SITE(folder)
        made.chunk, made.page = 64 << 20, 1000  # as the Hub's own
    elif kind == "store":
        from tests.deliver.store.s3_site import S3Site

        made = S3Site(folder)
        made.python = Path(argument)
    elif kind == "oci-keeping":
        from tests.deliver.sites.oci import SITE as KEEPING

        made = KEEPING(folder)
    else:
        from tests.deliver.oci.docker_registry import DockerRegistry

        made = DockerRegistry(folder)
        made.tree = Path(argument)
    return made


def port_of(started: Any) -> int:
    """Of the far end itself, past the proxy."""
    return int(started.service.port if hasattr(started, "service") else started.port)


@contextlib.contextmanager
def running(far_end: FarEnd, folder: Path, wait: float = 0.0) -> Iterator[int]:
    """A new one, empty, before which each request waits so many seconds; gives its port."""
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        _common.python("-m", "benchmarks._far_ends", far_end.kind, str(folder), far_end.argument, str(wait)),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_common.ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the far end of {far_end.kind} did not start")
        yield int(line)
    finally:
        process.communicate()


def ours(order: Mapping[str, Any], scratch: Path) -> tuple[float, int, dict[str, Any]]:
    """Seconds, peak in bytes, and the last line of our process, from its start to its end. Raises RuntimeError where it delivered
    nothing."""
    asked, said = scratch / "order.json", scratch / "said"
    asked.write_text(json.dumps(order))
    script = f"exec {shlex.join(_common.python('-m', 'handlers.deliver'))} < {shlex.quote(str(asked))} > {shlex.quote(str(said))}"
    seconds, peak = _common.run_child(["/bin/sh", "-c", script])
    end = json.loads(said.read_bytes().splitlines()[-1])
    if end.get("fault"):
        raise RuntimeError(f"{order['kind']}: {end['fault']['cause']}")
    return seconds, peak, end


if __name__ == "__main__":
    with site(sys.argv[1], Path(sys.argv[2]), sys.argv[3]) as started:
        port = port_of(started)
        if seconds := float(sys.argv[4]):
            proxy = started.proxy
            assert proxy is not None
            proxy.plan(Fault(wait=seconds), times=None)
            port = int(proxy.url.rpartition(":")[2])
        print(port, flush=True)
        sys.stdin.buffer.read()
        os._exit(0) if sys.argv[1] == "hub" else None
