"""The kind `oci`: a registry of container images, which keeps model artifacts beside them."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.frozen import Frozen

_HOST = r"(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::\d{1,5})?"
_PART = r"(?:[a-z0-9]|\{run\})+(?:(?:\.|_|__|-+)(?:[a-z0-9]|\{run\})+)*"
_REPOSITORY = re.compile(rf"{_HOST}(?:/{_PART})+")
_TAG = re.compile(r"(?:(?:[A-Za-z0-9_]|\{run\})(?:[A-Za-z0-9._-]|\{run\})*)?")
_LOOPBACK = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?")


class OciOptions(Frozen):
    """The keys of `kind = "oci"`."""

    repository: str
    """Registry and repository, `registry.example/ml/{run}`; `{run}` stands for the run's name, in lower case and with a digest where a
    repository can't be called so. Without it all runs share the repository."""
    media: Literal["modelpack", "docker"] = "modelpack"
    """"modelpack": the artifact of the CNCF's ModelPack specification, a layer a file. "docker": the media types of Ollama's registries,
    for GGUF variants: `ollama pull` takes it."""
    tag: str = "latest"
    """The tag that people follow, which moves to what is delivered; `{run}` stands for the run's name. "": none. Each version has a tag of
    its own, `RUN-STEP-DIGEST`."""
    plain_http: bool = False
    """Speak HTTP without TLS, which is allowed with a registry on this machine alone."""
    ca_file: str = ""
    """Certificates (PEM) of the authority that the registry's own is signed by; "": the system's."""
    chunk_bytes: int = Field(default=8 << 20, ge=1024, le=32 << 20)
    """Bytes of one request of an upload: as much as a cut connection costs. Proxies before registries may limit a request's size."""

    @field_validator("repository")
    @classmethod
    def _is_a_repository(cls, value: str) -> str:
        if not _REPOSITORY.fullmatch(value):
            raise ValueError(
                "must be REGISTRY/NAME, as registry.example/ml/{run}, with lower-case letters, digits, '-', '_' and '.' in NAME"
            )
        return value

    @field_validator("tag")
    @classmethod
    def _is_a_tag(cls, value: str) -> str:
        if not _TAG.fullmatch(value) or len(value) > 64:
            raise ValueError("must be a tag of at most 64 letters, digits, '-', '_' and '.', with {run} for the run's name")
        return value

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if self.plain_http and not _LOOPBACK.fullmatch(self.host):
            raise ValueError("plain_http is for a registry on this machine alone: contents and password would go in clear")
        return self

    @property
    def host(self) -> str:
        """The registry."""
        return self.repository.partition("/")[0]

    @property
    def path(self) -> str:
        """The repository in it, `{run}` as it stands."""
        return self.repository.partition("/")[2]


KIND = DeliveryKind(
    name="oci",
    about="a repository of an OCI registry, as a model artifact",
    options=OciOptions,
    entry="handlers.deliver.oci.target:OciTarget",
    packages=("urllib3",),
    extra="deliver",
    secret_variables=("REGISTRY_AUTH_FILE",),
)
