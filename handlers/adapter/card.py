"""README.md of a published adapter, in the form of a model card: it goes along where the folder alone is copied. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from handlers.adapter.base import FILE
from handlers.merge.adapters.adapter import Adapter
from handlers.models.hub import BaseName, License
from handlers.report.pages.readme import front_matter, license_keys, tag


def text(
    adapter: Adapter, base: BaseName, repository: str | None, digest: str, unsuited: Mapping[str, Sequence[str]], task: str | None,
    license_: License | None,
) -> str:  # fmt: skip
    """The card; `unsuited` as `servers.unsuited` gives it, `task` as hubs name it; `repository` and license are the base's."""
    head = {
        "base_model": repository,
        "base_model_relation": "adapter" if repository else None,
        "library_name": "peft",
        "pipeline_tag": task,
        **license_keys(*((license_.license, license_.license_name, license_.license_link) if license_ else (None, None, None))),
        "tags": ["ckptd", "peft", tag(adapter.method)],
    }
    name = repository or (PurePosixPath(base.name).name if base.name and base.local else base.name)
    lines = [
        f"{front_matter(head)}",
        f"{_code(adapter.method)} adapter alone, without its base. Before it was published, PEFT loaded it over the base, and"
        " the result was compared with the model that was trained.", "",
        f"- Base: {_code(name or 'unknown')}" + (f", commit {_code(base.commit)}" if base.commit else ""),
        f"- Digest of the base's weights: {_code(digest)} ({_code(FILE)} says which files that covers)",
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
