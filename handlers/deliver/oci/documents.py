"""The documents of an artifact, configuration and manifest, made of a version alone: whoever delivers it writes the same bytes.

ModelPack: https://github.com/modelpack/model-spec/blob/main/docs/spec.md. The media types of Ollama's registries are those that its client
reads (server/images.go of its source).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.disk.files import read_bounded
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver import modelfile
from handlers.deliver.oci.registry import DOCKER_MANIFEST, OCI_MANIFEST, digest_of, digest_of_file
from handlers.deliver.version import SourceFile, Version

MODEL_MANIFEST, MODEL_CONFIG = "application/vnd.cncf.model.manifest.v1+json", "application/vnd.cncf.model.config.v1+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
OLLAMA = "application/vnd.ollama.image."
FILEPATH, TITLE = "org.cncf.model.filepath", "org.opencontainers.image.title"
"""Where a layer's file belongs: for tools of ModelPack, and for ORAS."""
RUN, STEP, EXPORT = "vnd.ckptd.run", "vnd.ckptd.step", "vnd.ckptd.export"
"""Annotations by which a version is known to be ours."""
MOST = 64 << 20
"""Bytes of a document that is read."""
DOCUMENTS = frozenset({".md", ".html", ".pdf"})
CODE = frozenset({".py", ".js", ".mjs", ".ts", ".sh", ".c", ".cc", ".cpp", ".h", ".java", ".kt", ".swift", ".ipynb"})
SETTINGS = frozenset({
    ".json", ".txt", ".jinja", ".model", ".toml", ".yaml", ".yml", ".xml", ".pbtxt", ".spm", ".tiktoken", ".csv", ".proto", ".cfg", ".ini",
})  # fmt: skip
"""Suffixes of files beside weights; `.model` is a tokenizer's. Every other file is weights."""
BESIDE = frozenset({"Modelfile", "LICENSE", "NOTICE"})


@dataclass(frozen=True)
class Artifact:
    """What is to be written beside the files."""

    blobs: tuple[bytes, ...]
    """Documents that are blobs too, the configuration among them."""
    manifest: bytes


def artifact(version: Version, media: str) -> Artifact:
    """The documents of a version. Raises Permanent where it can't be what `media` says."""
    own = read_bounded(version.folder / MANIFEST, MOST)
    return _model_pack(version, own) if media == "modelpack" else _ollama(version, own)


def contents(document: Mapping[str, Any]) -> dict[str, str]:
    """Path → digest of a manifest's files, without MANIFEST.json: two manifests with the same are of one version."""
    layers = document.get("layers")
    pairs = ((_annotation(layer, FILEPATH), str(layer.get("digest"))) for layer in layers or () if isinstance(layer, dict))
    return {path: digest for path, digest in pairs if path and path != MANIFEST}


def ours(document: Mapping[str, Any]) -> tuple[str, int, str] | None:
    """Run, step and export of a manifest that ckptd wrote; None for another."""
    run, step, export = (_annotation(document, name) for name in (RUN, STEP, EXPORT))
    return (run, int(step), export) if run and step.isdecimal() else None


def _annotation(holder: Mapping[str, Any], name: str) -> str:
    annotations = holder.get("annotations")
    return str(annotations.get(name, "")) if isinstance(annotations, dict) else ""


def _annotations(version: Version) -> dict[str, str]:
    more = {"org.opencontainers.image.created": created} if (created := _created(version)) else {}
    return {
        RUN: version.run, STEP: str(version.step), EXPORT: version.export, "org.opencontainers.image.version": version.name,
        TITLE: f"{version.run}, step {version.step}", **more,
    }  # fmt: skip


def _created(version: Version) -> str:
    try:
        taken = datetime.datetime.fromisoformat(str(version.manifest.get("taken")))
    except ValueError:
        return ""
    return taken.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _layer(media: str, path: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media, "digest": digest, "size": size, "annotations": {FILEPATH: path, TITLE: path}}


def _kind(path: str) -> str:
    """The part of ModelPack's media types that says what a file is."""
    name = PurePosixPath(path)
    if name.suffix in DOCUMENTS or name.name in (MANIFEST, "LICENSE", "NOTICE") or path == "report.json":
        return "doc"
    if name.suffix in CODE:
        return "code"
    return "weight.config" if name.suffix in SETTINGS or name.name in BESIDE else "weight"


def _raw(path: str) -> str:
    return f"application/vnd.cncf.model.{_kind(path)}.v1.raw"


def _model_pack(version: Version, own: bytes) -> Artifact:
    files = [*((file.path, digest_of_file(file), file.size) for file in version.files), (MANIFEST, digest_of(own), len(own))]
    layers = [_layer(_raw(path), path, digest, size) for path, digest, size in sorted(files)]
    created = {"createdAt": _created(version)} if _created(version) else {}
    config = _bytes({
        "descriptor": {"name": version.run, "version": str(version.step), "title": version.name, **created},
        "config": {"format": form} if (form := _format(version)) else {},
        "modelfs": {"type": "layers", "diffIds": [layer["digest"] for layer in layers]},
    })  # fmt: skip
    manifest = {
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": MODEL_MANIFEST, "config": _part(MODEL_CONFIG, config),
        "layers": layers, "annotations": _annotations(version),
    }  # fmt: skip
    return Artifact((own, config), _bytes(manifest))


def _format(version: Version) -> str:
    """The format that all variants have, as ModelPack spells it; "" where they have several."""
    names = {variant.partition("-")[0] for variant in version.variants}
    known = {"pytorch": "safetensors", "adapter": "safetensors"}
    return known.get(name := names.pop(), name) if len(names) == 1 else ""


def _part(media: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media, "digest": digest_of(data), "size": len(data)}


def _ollama(version: Version, own: bytes) -> Artifact:
    """The artifact that `ollama pull` takes; files that Ollama has no use for lie beside it, under ModelPack's types."""
    folders = sorted({file.path.rpartition("/")[0] for file in version.files if file.path.rpartition("/")[2] == modelfile.NAME})
    if len(folders) != 1:
        raise _no_model(f"it has {len(folders)} variants with a Modelfile", "name one GGUF variant in the target's `variants`")
    files = {file.path: file for file in version.files}
    said = read_modelfile(version, files[f"{folders[0]}/{modelfile.NAME}"])
    media = {**dict(_weights(folders[0], said)), **{f"{folders[0]}/{_name(path)}": f"{OLLAMA}adapter" for path in said.adapters}}
    if missing := sorted(media.keys() - files.keys()):
        raise _no_model(
            f"its Modelfile names {missing[0]}, which is not there", "deliver the variant `gguf`, whose Modelfile names its own file"
        )
    layers = [_layer(media.get(path, _raw(path)), path, digest_of_file(file), file.size) for path, file in sorted(files.items())]
    layers.append(_layer(_raw(MANIFEST), MANIFEST, digest_of(own), len(own)))
    texts = {"template": said.template, "system": said.system, "license": said.license, "params": _params(said)}
    blobs = {name: text.encode() for name, text in texts.items() if text}
    layers += [_part(OLLAMA + name, data) for name, data in blobs.items()]
    config = _bytes({
        "model_format": "gguf", "architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
    })  # fmt: skip
    manifest = {
        "schemaVersion": 2, "mediaType": DOCKER_MANIFEST, "config": _part(DOCKER_CONFIG, config), "layers": layers,
        "annotations": _annotations(version),
    }  # fmt: skip
    return Artifact((own, config, *blobs.values()), _bytes(manifest))


def read_modelfile(version: Version, file: SourceFile) -> modelfile.Modelfile:
    """What a version's Modelfile says. Raises Permanent where it can't be read."""
    try:
        with file.open() as stream:
            return modelfile.read(b"".join(iter(lambda: stream.read(1 << 20) or b"", b"")).decode())
    except (ValueError, OSError) as error:
        raise _no_model(f"{file.path} can't be read: {error}", "export it again") from error


def _weights(folder: str, said: modelfile.Modelfile) -> Sequence[tuple[str, str]]:
    """Path → media type of what FROM names: the model, then the parts for pictures and sound."""
    return [
        (f"{folder}/{_name(path)}", OLLAMA + ("model" if place == 0 else "projector")) for place, path in enumerate(said.sources)
    ]  # fmt: skip


def _name(path: str) -> str:
    return path.removeprefix("./")


def _params(said: modelfile.Modelfile) -> str:
    return json.dumps(said.parameters, sort_keys=True) if said.parameters else ""


def _no_model(cause: str, remedy: str) -> Permanent:
    return Permanent(FaultCode.DELIVERY_SOURCE, "make an artifact for Ollama", cause, remedy)
