"""Which base an adapter belongs to: by the name that others know it by, and by the digest of its weights.

Called by the stage. A name alone is no proof: hubs replace files, and a folder's name means something on one box only. The digest is the
one of report.json (`base.digest`), over the base's weight files, their index and config.json.
"""

from __future__ import annotations

from daemon.contract.values import Json
from handlers.models.hub import BaseName

FILE = "adapter_base.json"


def written(base: BaseName, config: Json, digest: str, values: str) -> Json:
    """The content of adapter_base.json. `values`: what `merge.base` came to, on which the adapter was verified."""
    return {
        "base_model_name_or_path": base.name,
        "revision": config.get("revision"),
        "commit": base.commit,
        "digest": digest,
        "digest_of": "names and SHA-256 of the base's weight files, their index and config.json; report.json has it as base.digest",
        "values": values,
        "peft_version": config.get("peft_version"),
    }
