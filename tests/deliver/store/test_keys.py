"""The keys of a table, the forms of its secret, and signatures, as the documents of others have them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.store.access import Keys, variables, wanted
from handlers.deliver.store.backend import headers_of
from handlers.deliver.store.declaration import StoreOptions
from handlers.deliver.store.signing import Signer
from handlers.deliver.store.target import Store
from handlers.deliver.target import Resume, Setting


@pytest.mark.parametrize(
    "keys",
    [
        {"url": "s3://"}, {"url": "s3://b/../c"}, {"url": "https://example.org/x"}, {"url": "file://relative"}, {"url": "s3://b/a?x=1"},
        {"url": "s3://b", "endpoint": "minio:9000"}, {"url": "s3://b", "endpoint": "http://minio:9000"},
        {"url": "s3://b", "endpoint": "https://me:password@minio"}, {"url": "s3://b", "part_bytes": 1 << 20}, {"url": "gs://b", "endpoint": "https://minio"},
    ],
)  # fmt: skip
def test_a_table_that_can_not_be_meant_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        StoreOptions.model_validate(keys)


def test_a_url_has_bucket_and_prefix() -> None:
    for url, bucket, prefix, folder in (
        ("s3://models", "models", "", None), ("gs://models/a/b/", "models", "a/b/", None), ("file:///srv/models/", "", None, "/srv/models"),
    ):  # fmt: skip
        options = StoreOptions(url=url)
        assert options.bucket == bucket
        assert prefix is None or options.prefix == prefix
        assert folder is None or options.folder == folder


def test_a_secret_has_the_forms_that_people_have_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "# of the bucket\nexport AWS_ACCESS_KEY_ID=AKIA\nAWS_SECRET_ACCESS_KEY='a=b/c+d'\n"
    profile = "[default]\naws_access_key_id = AKIA\naws_secret_access_key = a=b/c+d\n"
    for secret in (lines, profile):
        assert wanted(variables(secret), "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") == ["AKIA", "a=b/c+d"]
    account = '{"type": "service_account"}'
    assert variables(account) == {"GOOGLE_SERVICE_ACCOUNT_KEY": account}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the environment")
    assert variables("")["AWS_ACCESS_KEY_ID"] == "of the environment"
    with pytest.raises(Permanent, match="AWS_SECRET_ACCESS_KEY"):
        wanted(variables("AWS_ACCESS_KEY_ID=AKIA"), "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_are_those_of_the_examples(query: str, signature: str) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html, examples 3 and 4."""
    keys = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    signer = Signer(lambda: keys, "us-east-1", lambda: datetime(2013, 5, 24, tzinfo=UTC))
    headers = signer.signed("GET", f"https://examplebucket.s3.amazonaws.com/?{query}", {}, hashlib.sha256(b"").hexdigest())
    assert headers["Authorization"].endswith(f"Signature={signature}")


def test_browsers_are_told_what_a_file_is_and_that_it_stays() -> None:
    forever = "public, max-age=31536000, immutable"
    assert headers_of("r/r-1-00000000/onnx/model.onnx") == {"Content-Type": "application/octet-stream", "Cache-Control": forever}
    assert headers_of("r/r-1-00000000/index.html") == {"Content-Type": "text/html; charset=utf-8", "Cache-Control": forever}
    assert headers_of("r/r-1-00000000/web/latest.json") == {"Content-Type": "application/json", "Cache-Control": forever}
    assert headers_of("r/latest.json") == {"Content-Type": "application/json", "Cache-Control": "no-cache"}


@pytest.mark.parametrize("url", ["gs://models/a", "az://models/a"])
def test_credentials_that_can_not_be_read_wait_for_a_person(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AZURE_CONFIG_DIR", "/of/other/tools")
    wrong = '{"private_key": "a secret"}' if url.startswith("gs") else "AZURE_STORAGE_ACCOUNT_NAME=me\nAZURE_STORAGE_ACCOUNT_KEY=a secret\n"
    with pytest.raises(Permanent) as raised:
        Store(Setting({"url": url}, wrong, tmp_path, Resume()))
    assert raised.value.fault.code == FaultCode.DELIVERY_REFUSED and "a secret" not in raised.value.fault.sentence()
