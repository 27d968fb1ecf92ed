"""The contract, and stock clients, over Debian's docker-registry."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deliver.contract.bench import Bench, started
from tests.deliver.contract.checks import CHECKS, Check
from tests.deliver.oci.docker_registry import DockerRegistry, fetch
from tests.deliver.packages import unpacked
from tests.environments import of_clients

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
WITH_ORAS = """
import sys
from oras.client import OrasClient
client = OrasClient(hostname=sys.argv[1].split("/")[0], insecure=True)
client.pull(target=sys.argv[1], outdir=sys.argv[2])
"""


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(fetch, tmp_path_factory.getbasetemp().parent / "registry-packages", "docker-registry and skopeo")


@pytest.fixture
def bench(tmp_path: Path, tree: Path) -> Iterator[Bench]:
    with started(DockerRegistry, tmp_path, tree=tree) as made:
        yield made


@pytest.mark.parametrize("check", [check for check in CHECKS if check.name not in DockerRegistry.lacks], ids=lambda check: check.name)
def test_the_contract_holds(bench: Bench, check: Check) -> None:
    check.call(bench)


def test_skopeo_copies_it_byte_for_byte(bench: Bench, tmp_path: Path) -> None:
    export = bench.export()
    receipt = bench.deliver(export).receipt
    assert isinstance(bench.site, DockerRegistry)
    name = f"docker://127.0.0.1:{bench.site.port}/{receipt.version}"
    ended = bench.site.skopeo("copy", "--src-tls-verify=false", name, f"dir:{tmp_path / 'copy'}")
    assert ended.returncode == 0, ended.stderr
    document = json.loads((tmp_path / "copy/manifest.json").read_text())
    there = {
        layer["annotations"]["org.cncf.model.filepath"]: hashlib.sha256(
            (tmp_path / "copy" / layer["digest"].removeprefix("sha256:")).read_bytes()
        ).hexdigest()
        for layer in document["layers"]
    }
    assert {path: digest for path, digest in there.items() if path != "MANIFEST.json"} == dict(export.digests)


def test_oras_writes_the_export_byte_for_byte(bench: Bench, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    export = bench.export()
    receipt = bench.deliver(export).receipt
    assert isinstance(bench.site, DockerRegistry)
    try:
        python = of_clients(tmp_path_factory).python("registries")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"oras can't be installed here: {error}")
    (folder := tmp_path / "pulled").mkdir()
    ended = subprocess.run(
        [python, "-c", WITH_ORAS, f"127.0.0.1:{bench.site.port}/{receipt.version}", folder],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    for path, digest in export.digests.items():
        assert hashlib.sha256((folder / path).read_bytes()).hexdigest() == digest, path
    assert (folder / "MANIFEST.json").read_bytes() == (export.folder / "MANIFEST.json").read_bytes()
