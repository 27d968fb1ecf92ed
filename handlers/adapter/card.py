"""README.md of a published adapter, in the form of a model card: it goes along where the folder alone is copied. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from handlers.adapter.base import FILE, BaseName
from handlers.merge.adapters.adapter import Adapter


def text(adapter: Adapter, base: BaseName, digest: str, unsuited: Mapping[str, Sequence[str]]) -> str:
    """The card; `unsuited` as `servers.unsuited` gives it."""
    head = ["library_name: peft", *([f"base_model: {json.dumps(base.name)}"] if base.name and not base.local else [])]
    lines = [
        "---", *head, "---", "",
        f"{_code(adapter.method)} adapter alone, without its base. It was loaded over the base by PEFT and compared with the model that was"
        " trained before it was published.", "",
        f"- Base: {_code(base.name or 'unknown')}" + (f", commit {_code(base.commit)}" if base.commit else ""),
        f"- Digest of the base's weights: {_code(digest)} ({_code(FILE)} says of what)",
    ]  # fmt: skip
    if unsuited:
        lines += ["", "Servers that can't use it (newer releases may):", ""]
        lines += [f"- {server}: {_plain('; '.join(reasons))}" for server, reasons in unsuited.items()]
    return "\n".join(lines) + "\n"


def _code(value: str) -> str:
    """A name as code in one line of Markdown."""
    return f"`{' '.join(value.replace('`', chr(39)).split())}`"


def _plain(value: str) -> str:
    """A sentence that holds names from the adapter, without Markdown or HTML."""
    return " ".join(value.split()).replace("_", "\\_").replace("<", "&lt;").replace("`", "'").replace("[", "\\[").replace("*", "\\*")
