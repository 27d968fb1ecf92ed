"""The model that is to be made of a version: what its Modelfile says, as a request of Ollama's API, and its name by content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver import modelfile
from handlers.deliver.modelfile import Modelfile
from handlers.deliver.names import short
from handlers.deliver.servers.ollama.api import CREATE
from handlers.deliver.version import BLOCK, SourceFile, Version


@dataclass(frozen=True)
class Wanted:
    """That model."""

    name: str
    request: Mapping[str, Any]
    digests: frozenset[str]
    """SHA-256 of the files that are ours."""


def wanted(version: Version, base: str) -> Wanted:
    """The model of a version of one variant. `base`: the model at Ollama that an adapter is laid over, or "". Raises Permanent."""
    (variant,) = version.variants
    files = {file.path.removeprefix(f"{variant}/"): file for file in version.files}
    said = _read(files, version)
    names = [path.removeprefix("./") for path in (*said.sources, *said.adapters)]
    adapters = {path.removeprefix("./") for path in said.adapters}
    over = bool(adapters and base)
    if adapters and not over and any(name not in files for name in names if name not in adapters):
        raise no_base("an adapter needs the model that it is laid over")
    sent = [name for name in names if name in adapters or not over]
    if missing := [name for name in sent if name not in files]:
        raise _source(f"its {modelfile.NAME} names {missing[0]}, which is not there", version)
    blobs = {name: f"sha256:{files[name].sha256}" for name in sent}
    ours = frozenset(files[name].sha256 for name in (adapters or sent))
    request: dict[str, Any] = {
        "model": f"{short(version.run)}-{version.step}-{digest_of(ours, said.template)}", "stream": True,
        "parameters": dict(said.parameters),
    }  # fmt: skip
    if over:
        request |= {"from": base}
    elif models := {name: blob for name, blob in blobs.items() if name not in adapters}:
        request |= {"files": models}
    if adapters:
        request |= {"adapters": {name: blobs[name] for name in sorted(adapters)}}
    request |= {key: text for key, text in (("template", said.template), ("system", said.system), ("license", said.license)) if text}
    return Wanted(request["model"], request, ours)


def digest_of(files: frozenset[str], template: str) -> str:
    """What tells models of a run's step apart: the template too, since Ollama may choose another by itself."""
    return hashlib.sha256("".join((*sorted(files), template.strip())).encode()).hexdigest()[:8]


def no_base(cause: str) -> Permanent:
    """The error of an adapter without the model under it."""
    return Permanent(FaultCode.DELIVERY_REFUSED, CREATE, cause, "set `base` of the target to a model of Ollama")


def _read(files: Mapping[str, SourceFile], version: Version) -> Modelfile:
    file = files.get(modelfile.NAME)
    if file is None:
        raise _source(f"the variant {version.variants[0]} has no {modelfile.NAME}", version)
    try:
        with file.open() as stream:
            return modelfile.read(b"".join(iter(lambda: stream.read(BLOCK) or b"", b"")).decode())
    except ValueError as error:
        raise _source(f"{file.path} can't be read: {error}", version) from error


def _source(cause: str, version: Version) -> Permanent:
    remedy = "export the checkpoint again with a GGUF variant and with validation"
    return Permanent(FaultCode.DELIVERY_SOURCE, CREATE, cause, remedy, path=version.folder)
