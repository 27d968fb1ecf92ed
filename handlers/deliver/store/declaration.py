"""The kind `store`: an object store or a folder."""

from __future__ import annotations

import re
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.frozen import Frozen
from handlers.deliver.addresses import is_address

_URL = re.compile(r"(?:s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]*(?:/[^\x00-\x20?#]*)?|file:///[^\x00]*")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
S3_LEAST = 5 << 20


class StoreOptions(Frozen):
    """The keys of `kind = "store"`."""

    url: str
    """`s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, or `file:///FOLDER`: a folder of this machine, or a share that
    is mounted here. Below it each run has a folder of its own."""
    endpoint: str = ""
    """Address of a service that speaks S3 or Azure's protocol, as `https://minio.example:9000`; "": the cloud's own."""
    region: str = ""
    """Of S3; "": the variable `AWS_REGION` or `AWS_DEFAULT_REGION`, or us-east-1."""
    addressing: Literal["", "path", "virtual"] = ""
    """Whether a bucket of S3 stands in the address' path or before its host; "": in the path with an `endpoint`, else before the host."""
    fence: bool = True
    """Whether the service knows conditional writes (`If-Match`, `If-None-Match`), by which no two deliveries and no person can overwrite
    each other's `latest.json`. false for an S3 service that answers 501 to them: then what is written last stays."""
    plain_http: bool = False
    """Speak HTTP without TLS with another machine: contents go in clear, the secret does not. This machine needs no such leave."""
    ca_file: str = ""
    """Certificates (PEM) of the authority that the service's own is signed by; "": the system's."""
    part_bytes: int = Field(default=S3_LEAST, ge=1024, le=32 << 20)
    """Bytes of one request of an upload: as much as a cut connection costs. S3 takes none below 5 MiB, and 10,000 for a file."""

    @field_validator("url")
    @classmethod
    def _is_a_place(cls, value: str) -> str:
        if not _URL.fullmatch(value) or ".." in value.split("/") or "." in value.split("/"):
            raise ValueError("must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER")
        return value.rstrip("/") if value.rstrip("/") != "file:" else "file:///"

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if value and not is_address(value):
            raise ValueError("must be an address like https://minio.example:9000, without a password")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        parts = urlsplit(self.endpoint)
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK and not self.plain_http:
            raise ValueError("an endpoint by http:// needs plain_http = true: contents go in clear")
        if self.endpoint and self.scheme not in ("s3", "az"):
            raise ValueError("endpoint is for s3:// and az:// alone")
        if self.scheme == "s3" and not self.endpoint and self.part_bytes < S3_LEAST:
            raise ValueError("S3 takes no parts below 5 MiB: part_bytes must be at least 5242880")
        return self

    @property
    def scheme(self) -> str:
        """Which store it is."""
        return self.url.partition(":")[0]

    @property
    def bucket(self) -> str:
        """The bucket or container; "" of a folder."""
        return urlsplit(self.url).netloc

    @property
    def prefix(self) -> str:
        """Before all keys, with "/" at its end unless it is ""."""
        prefix = self.url.partition("://")[2].partition("/")[2].strip("/")
        return prefix and prefix + "/"

    @property
    def folder(self) -> str:
        """The folder of a file: URL."""
        return self.url.removeprefix("file://") or "/"


KIND = DeliveryKind(
    name="store",
    about="an object store or a folder, with a folder for each version and a latest.json",
    options=StoreOptions,
    entry="handlers.deliver.store.target:Store",
    packages=("urllib3", "obstore"),
    extra="deliver",
    secret_variables=(
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
        "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE",
        "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID",
        "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY",
    ),
)  # fmt: skip
