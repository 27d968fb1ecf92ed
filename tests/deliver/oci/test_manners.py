"""Registries ask for passwords and tokens, hand blobs out elsewhere, take no chunks, forget, are full, and are not ckptd's alone."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.faults.fault_codes import FaultCode
from tests.deliver.contract.bench import Bench
from tests.deliver.oci import reading
from tests.deliver.oci.registry import PASSWORD, USER, Manners, Registry
from tests.deliver.proxy import Fault, Request, writes
from tests.deliver.sites.oci import SITE

GGUF = {
    "gguf/model.gguf": 90_000,
    "gguf/Modelfile": b'FROM ./model.gguf\nPARAMETER num_ctx 4096\nPARAMETER stop "<|im_end|>"\nPARAMETER stop "<eos>"\n'
    b'# a remark\nTEMPLATE """{{ range .Messages }}{{ .Content }}\n{{ end }}"""\n',
    "gguf/README.md": b"# A model\n",
}


class _Site(SITE):
    """The same, with other manners and options."""

    manners = Manners()
    more: dict[str, Any] = {}  # noqa: RUF012

    def start(self) -> None:
        super().start()
        self.registry.manners = self.manners

    def options(self) -> dict[str, Any]:
        return {**super().options(), **self.more}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (folder := tmp_path / "far end").mkdir()
    with _Site(folder) as site:
        site.manners = site.registry.manners = Manners()
        site.more = {}
        yield Bench(site, tmp_path)


def _registry(bench: Bench) -> Registry:
    assert isinstance(bench.site, SITE)
    return bench.site.registry


def _lies_there(bench: Bench, **order: Any) -> None:
    """Deliver an export and compare what lies there, whatever the reader would have to show."""
    export = bench.export()
    receipt = bench.deliver(export, **order).receipt
    registry = _registry(bench)
    name, _, tag = receipt.version.partition(":")
    repository = registry.repositories[name]
    document = json.loads(repository.manifests[repository.tags[tag]][1])
    there = {
        layer["annotations"][reading.FILEPATH]: hashlib.sha256(repository.blobs[layer["digest"]]).hexdigest()
        for layer in document["layers"]
    }
    there.pop("MANIFEST.json")
    assert there == dict(export.digests)


@pytest.mark.parametrize("secret", [f"{USER}:{PASSWORD}\n", "file"])
@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_a_registry_that_asks_gets_the_password_of_text_and_of_dockers_file(bench: Bench, auth: str, secret: str) -> None:
    host = bench.site.options()["repository"].partition("/")[0]
    encoded = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    bench.site.secret = json.dumps({"auths": {"other.example": {"auth": "eDp5"}, host: {"auth": encoded}}}) if secret == "file" else secret
    _registry(bench).manners = Manners(auth=auth)
    _lies_there(bench)


def test_tokens_that_end_in_the_midst_are_replaced(bench: Bench) -> None:
    _registry(bench).manners = Manners(auth="bearer", uses=3)
    bench.site.secret = f"{USER}:{PASSWORD}"
    _lies_there(bench)
    assert sum(path == "/token" for _, path, _ in _registry(bench).asked) > 5


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_a_wrong_password_is_said_and_never_shown(bench: Bench, auth: str) -> None:
    _registry(bench).manners = Manners(auth=auth)
    bench.site.secret = "robot:not-the-password"
    delivery = bench.deliver(bench.export())
    assert delivery.end.permanent and delivery.end.fault and delivery.end.fault.code == FaultCode.DELIVERY_REFUSED
    assert "not-the-password" not in json.dumps(delivery.lines) + delivery.errors.decode()
    assert base64.b64encode(b"robot:not-the-password").decode() not in json.dumps(delivery.lines)


def test_blobs_that_lie_elsewhere_are_read_without_the_password(bench: Bench) -> None:
    elsewhere = Registry()
    try:
        elsewhere.repositories = _registry(bench).repositories
        _registry(bench).manners = Manners(auth="basic", blobs_at=f"127.0.0.1:{elsewhere.port}")
        bench.site.secret = f"{USER}:{PASSWORD}"
        _lies_there(bench)
        assert elsewhere.asked and not any(shown for _, _, shown in elsewhere.asked)
    finally:
        elsewhere.close()


def test_an_address_without_tls_elsewhere_gets_nothing(bench: Bench) -> None:
    _registry(bench).manners = Manners(blobs_at="192.0.2.1:80")
    end = bench.deliver(bench.export()).end
    assert end.permanent and end.fault and "without https" in end.fault.sentence()


@pytest.mark.parametrize(
    "manners", [Manners(chunks=False), Manners(least_chunk=1 << 16), Manners(least_chunk=1 << 40), Manners(forgets_cut=True)]
)
def test_registries_with_other_chunks_take_it_too(bench: Bench, manners: Manners) -> None:
    _registry(bench).manners = manners
    if manners.forgets_cut:
        bench.proxy.plan(Fault(cut_request=5000), when=lambda request: request.method == "PATCH", first=2)
    _lies_there(bench)


def test_a_registry_that_is_full_is_tried_later(bench: Bench) -> None:
    _registry(bench).manners = Manners(room=100_000)
    end = bench.deliver(bench.export()).end
    assert end.fault and not end.permanent and end.fault.code == FaultCode.DELIVERY_FULL
    _registry(bench).manners = Manners()
    _lies_there(bench)


def test_what_the_registry_lost_is_sent_again(bench: Bench) -> None:
    def lose(request: Request) -> None:
        _registry(bench).repositories["ml/run-a"].blobs.clear()

    bench.proxy.plan(Fault(before=lose), when=lambda request: request.method == "PUT" and "/manifests/" in request.path, times=8)
    delivery = bench.deliver(bench.export())
    assert delivery.end.fault and not delivery.end.permanent and "lost" in delivery.end.fault.sentence()
    bench.proxy.clear()
    _lies_there(bench, resume=delivery.notes)


def test_a_tag_of_somebody_else_is_moved_by_force_alone(bench: Bench) -> None:
    bench.site.lay_foreign()
    repository = _registry(bench).repositories["ml/run-a"]
    repository.tags["latest"] = repository.tags["foreign-1-00000000"]
    export = bench.export()
    receipt = bench.deliver(export).receipt
    assert (
        not receipt.moved
        and "did not bring" in receipt.why_not_moved
        and repository.tags["latest"] == repository.tags["foreign-1-00000000"]
    )
    assert bench.deliver(export, move="force").receipt.moved and bench.site.current("run-a") == receipt.version


def test_a_step_that_was_forced_back_stays_for_those_that_come_after_it(bench: Bench) -> None:
    first, second = bench.export(100), bench.export(300)
    old = bench.deliver(first).receipt
    bench.deliver(second)
    assert bench.deliver(first, move="force").receipt.moved
    between = bench.deliver(bench.export(200)).receipt
    assert between.moved and bench.site.current("run-a") == between.version != old.version


def test_the_same_files_of_another_export_are_the_same_version(bench: Bench) -> None:
    first = bench.deliver(bench.export()).receipt
    again = bench.export()
    manifest = json.loads((again.folder / "MANIFEST.json").read_text())
    (again.folder / "MANIFEST.json").write_text(json.dumps({**manifest, "export_id": "another"}))
    receipt = bench.deliver(again).receipt
    assert (receipt.version, receipt.place) == (first.version, first.place)


def test_a_registry_that_keeps_everything_is_said(bench: Bench) -> None:
    _registry(bench).manners = Manners(deletes=False)
    old = bench.deliver(bench.export(100)).receipt
    delivery = bench.deliver(bench.export(200), keep=1)
    assert delivery.receipt.moved and not delivery.receipt.removed and "REGISTRY_STORAGE_DELETE_ENABLED" in " ".join(delivery.warnings)
    end = bench.remove(old.version)
    assert end.permanent and end.fault and old.version in bench.site.visible("run-a")


def test_one_repository_for_all_runs_lists_and_follows_each(bench: Bench) -> None:
    assert isinstance(bench.site, _Site)
    host = bench.site.options()["repository"].partition("/")[0]
    bench.site.more = {"repository": f"{host}/ml/models", "tag": "{run}-newest"}
    _registry(bench).manners = Manners(catalog=False)
    versions = {run: bench.deliver(bench.export(run=run)).receipt.version for run in ("Run A", "run-b")}
    assert {row.run: row.version for row in bench.listed()} == versions and all(row.current for row in bench.listed())
    assert [row.version for row in bench.listed("Run A")] == [versions["Run A"]]


def test_a_registry_that_names_no_repositories_is_said(bench: Bench) -> None:
    _registry(bench).manners = Manners(catalog=False)
    end = bench.deliver(None, action="list").end
    assert end.fault and "name a run" in end.fault.sentence()


def test_the_artifact_is_model_packs(bench: Bench) -> None:
    receipt = bench.deliver(bench.export()).receipt
    document = reading.manifest(bench.site.base, *receipt.version.split(":"))  # type: ignore[attr-defined]
    assert document["mediaType"] == "application/vnd.oci.image.manifest.v1+json" and document["schemaVersion"] == 2
    assert document["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    assert document["config"]["mediaType"] == "application/vnd.cncf.model.config.v1+json"
    media = {layer["annotations"][reading.FILEPATH]: layer["mediaType"] for layer in document["layers"]}
    assert media["pytorch/model.safetensors"] == "application/vnd.cncf.model.weight.v1.raw" == media["onnx/model.onnx_data"]
    assert media["pytorch/config.json"] == "application/vnd.cncf.model.weight.config.v1.raw"
    assert media["README.md"] == "application/vnd.cncf.model.doc.v1.raw" == media["MANIFEST.json"]
    config = json.loads(reading.get(f"{bench.site.base}/v2/ml/run-a/blobs/{document['config']['digest']}") or b"")  # type: ignore[attr-defined]
    assert set(config) == {"descriptor", "config", "modelfs"} and config["modelfs"]["type"] == "layers"
    assert config["modelfs"]["diffIds"] == [layer["digest"] for layer in document["layers"]]


def test_a_gguf_goes_as_ollama_keeps_it(bench: Bench) -> None:
    assert isinstance(bench.site, _Site)
    bench.site.more = {"media": "docker"}
    export = bench.export(files=GGUF)
    receipt = bench.deliver(export).receipt
    base, (name, tag) = bench.site.base, receipt.version.split(":")
    document = reading.manifest(base, name, tag)
    assert document["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    assert document["config"]["mediaType"] == "application/vnd.docker.container.image.v1+json"
    by_media = {layer["mediaType"]: reading.get(f"{base}/v2/{name}/blobs/{layer['digest']}") for layer in document["layers"]}
    assert by_media["application/vnd.ollama.image.model"] == (export.folder / "gguf/model.gguf").read_bytes()
    assert by_media["application/vnd.ollama.image.template"] == b"{{ range .Messages }}{{ .Content }}\n{{ end }}"
    assert json.loads(by_media["application/vnd.ollama.image.params"] or b"") == {"num_ctx": 4096, "stop": ["<|im_end|>", "<eos>"]}
    assert bench.site.visible("run-a") == {receipt.version: dict(export.digests)}


def test_what_is_no_model_of_ollama_is_said_before_anything_is_visible(bench: Bench) -> None:
    assert isinstance(bench.site, _Site)
    bench.site.more = {"media": "docker"}
    end = bench.deliver(bench.export()).end
    assert end.permanent and end.fault and "Modelfile" in end.fault.sentence() and not bench.site.visible("run-a")


def test_an_upload_that_was_cut_goes_on_behind_its_last_part(bench: Bench) -> None:
    export = bench.export(files={"pytorch/model.safetensors": 300_000})
    bench.proxy.plan(Fault(cut_request=1000), when=lambda request: request.method == "PATCH", first=6, times=9)
    delivery = bench.deliver(export)
    assert delivery.end.fault and not delivery.end.permanent
    sent = bench.proxy.sent
    bench.proxy.clear()
    bench.deliver(export, resume=delivery.notes)
    assert sent + bench.proxy.sent <= 300_000 + bench.site.part + bench.site.slack and any(map(writes, bench.proxy.seen))


def _two(bench: Bench) -> tuple[str, str]:
    """Versions, the second of which is followed."""
    first, second = (bench.deliver(bench.export(step)).receipt.version for step in (100, 200))
    return first, second


def test_what_is_followed_at_the_moment_when_it_is_taken_away_stays(bench: Bench) -> None:
    version, _ = _two(bench)
    bench.proxy.plan(
        Fault(before=lambda request: bench.site.move_by_hand("run-a", version)), when=lambda request: request.method == "DELETE"
    )
    end = bench.remove(version)
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_CONFLICT
    assert bench.site.current("run-a") == version and version in bench.site.visible("run-a")
    bench.assert_whole(bench.export(100), bench.export(200))


def test_what_is_taken_away_before_it_is_followed_is_made_again(bench: Bench) -> None:
    version, _ = _two(bench)

    def take(request: Request) -> None:
        bench.proxy.clear()
        assert bench.remove(version).fault is None

    bench.proxy.plan(Fault(before=take), when=lambda request: request.method == "PUT" and request.path.endswith("/manifests/latest"))
    assert bench.deliver(bench.export(100), move="force").receipt.moved
    assert bench.site.current("run-a") == version and version in bench.site.visible("run-a")


def test_a_tag_that_goes_with_what_is_taken_away_is_written_again(bench: Bench) -> None:
    version, _ = _two(bench)

    def take(request: Request) -> None:
        bench.proxy.clear()
        name, _, tag = version.partition(":")
        _registry(bench).repositories[name].tags.pop("latest")
        _registry(bench).repositories[name].tags.pop(tag)

    bench.proxy.plan(Fault(after=take), when=lambda request: request.method == "PUT" and request.path.endswith("/manifests/latest"))
    assert bench.deliver(bench.export(100), move="force").receipt.moved
    assert bench.site.current("run-a") == version and version in bench.site.visible("run-a")
