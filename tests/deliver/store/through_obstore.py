"""The store of Google's and Azure's URLs with the only service that can be run here, S3 by moto's server, behind the same library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from obstore.store import S3Store

from handlers.deliver.store.access import variables
from handlers.deliver.store.clouds import Cloud
from handlers.deliver.store.declaration import StoreOptions
from handlers.deliver.store.target import Store
from handlers.deliver.target import Setting


class ThroughObstore(Store):
    """The target."""

    def backend(self, setting: Setting) -> Cloud:
        """That store."""
        return _Cloud(self._options, setting.secret)


class _Cloud(Cloud):
    def __init__(self, options: StoreOptions, secret: str) -> None:
        self._known = variables(secret)
        super().__init__(options, secret)
        self._secrets.append(self._known["AWS_SECRET_ACCESS_KEY"])

    def connect(self, options: StoreOptions, known: Mapping[str, str]) -> Any:
        return S3Store(
            options.bucket, prefix=options.prefix, endpoint=options.endpoint, region="us-east-1",
            access_key_id=self._known["AWS_ACCESS_KEY_ID"], secret_access_key=self._known["AWS_SECRET_ACCESS_KEY"],
            retry_config={"max_retries": 0}, client_options={"allow_http": True},
        )  # fmt: skip
