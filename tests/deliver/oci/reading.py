"""Reads a registry by plain HTTP, as its readers do: tags, manifests and blobs, by the specification's text alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import urllib.error
import urllib.request
from typing import Any

MEDIA = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
FILEPATH = "org.cncf.model.filepath"


TRIES = 5


def get(url: str) -> bytes | None:
    """What lies there; None where nothing does. As all clients do, it asks again after a 500, which docker-registry says over a file
    system in the moment in which a tag is written."""
    request = urllib.request.Request(url, headers={"Accept": MEDIA})
    for left in reversed(range(TRIES)):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                data: bytes = answer.read()
                return data
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                if error.code == 404:
                    return None
                if error.code != 500 or not left:
                    raise
            time.sleep(0.05)
    return None


def tags(base: str, name: str) -> list[str]:
    """All tags; a registry gives them in pages, or always all (docker-registry 2.8)."""
    last, names = "", list[str]()
    while (listed := get(f"{base}/v2/{name}/tags/list?n=100&last={last}")) and (page := json.loads(listed)["tags"]):
        if page[-1] == last or page[0] in names:
            break
        names += page
        last = page[-1]
    return names


def manifest(base: str, name: str, tag: str) -> Any:
    body = get(f"{base}/v2/{name}/manifests/{tag}")
    return json.loads(body) if body else None


def digest(base: str, name: str, tag: str) -> str | None:
    body = get(f"{base}/v2/{name}/manifests/{tag}")
    return hashlib.sha256(body).hexdigest() if body else None


def contents(base: str, name: str, document: Any) -> dict[str, str]:
    """SHA-256 by path, of blobs that are read."""
    read = {}
    for layer in document["layers"]:
        path = layer.get("annotations", {}).get(FILEPATH)
        if path and path != "MANIFEST.json":
            data = get(f"{base}/v2/{name}/blobs/{layer['digest']}")
            read[path] = "gone" if data is None else hashlib.sha256(data).hexdigest()
    return read
