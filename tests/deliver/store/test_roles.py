"""Keys of S3 that a role gives, by botocore; a container's, of a service of its own."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.store.access import keys_of_aws
from tests.deliver.contract.bench import ROOT, Bench
from tests.deliver.store.s3_site import S3Site

ASKS = """
import json, sys
from daemon.contract.faults.errors import CkptdError
from handlers.deliver.store.declaration import StoreOptions
from handlers.deliver.store.s3 import S3
from handlers.deliver.target import Resume
try:
    store = S3(StoreOptions.model_validate(json.loads(sys.argv[1])), "", Resume())
    store.look()
    store.look()
except CkptdError as error:
    print(error.fault.sentence())
"""


class _Role(http.server.ThreadingHTTPServer):
    """Gives other keys each time, which end in a minute."""

    given, status = 0, 200


class _Answers(http.server.BaseHTTPRequestHandler):
    server: _Role

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.server.given += 1
        end = (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        number = self.server.given
        keys = {"AccessKeyId": f"AKIA{number}", "SecretAccessKey": f"hush-{number}", "Token": f"token-{number}", "Expiration": end}
        body = json.dumps(keys if self.headers["Authorization"] == "of this container" else {}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def role() -> Iterator[_Role]:
    server = _Role(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def asked(bench: Bench, tmp_path: Path, url: str) -> str:
    """What a program prints that looks at the store twice, in the environment that has botocore."""
    assert isinstance(bench.site, S3Site)
    variables = {"AWS_CONTAINER_AUTHORIZATION_TOKEN": "of this container", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    variables |= {"AWS_EC2_METADATA_DISABLED": "true"} | ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": url} if url else {})
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [bench.site.python, "-W", "ignore", "-c", ASKS, json.dumps(bench.site.options())], env={**kept, **variables}, capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_keys_of_a_role_sign_each_request_and_those_that_end_are_replaced(bench: Bench, role: _Role, tmp_path: Path) -> None:
    assert asked(bench, tmp_path, f"http://127.0.0.1:{role.server_port}/keys") == ""
    requests = bench.proxy.seen
    assert len(requests) == 4
    tokens = [request.headers["x-amz-security-token"] for request in requests]
    assert len(set(tokens)) > 1 and all(token.startswith("token-") for token in tokens)
    for request, token in zip(requests, tokens, strict=True):
        assert f"Credential=AKIA{token.removeprefix('token-')}/" in request.headers["authorization"]


@pytest.mark.slow
def test_a_role_that_gives_no_keys_is_said(bench: Bench, role: _Role, tmp_path: Path) -> None:
    role.status = 403
    assert "read the credentials of the target" in asked(bench, tmp_path, f"http://127.0.0.1:{role.server_port}/keys")
    assert "read the credentials of the target: Unsupported host" in asked(bench, tmp_path, "http://keys.example/")
    said = asked(bench, tmp_path, "")
    assert "neither AWS_ACCESS_KEY_ID nor AWS_SECRET_ACCESS_KEY is set, and nothing here gives the keys of a role" in said


def test_without_botocore_it_is_said_what_a_role_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    with pytest.raises(Permanent, match=r"ckptd\[aws\]") as raised:
        keys_of_aws("")
    assert raised.value.fault.code == FaultCode.DELIVERY_REFUSED
