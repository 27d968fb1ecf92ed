"""The parts of config.toml that follow from the formats' declarations: their sections.

`python -m daemon.config.template` prints them for all formats that are installed; with a file's path it writes them into that file,
between its two marks. A test holds config.toml equal.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from daemon.config.older_keys import HIDDEN
from daemon.contract.formats.catalog import catalog
from daemon.contract.values import Frozen, docstrings

BEGIN = "# >>> From the formats' declarations; `python -m daemon.config.template config.toml` writes it."
END = "# <<< End of what the formats declare."
WIDTH = 130


def section(name: str, options: type[Frozen]) -> str:
    """A section of the file: each key with its comment and its default."""
    return "\n".join([*comment((options.__doc__ or "").strip()), f"[{name}]", *_keys(name, options)])


def comment(text: str) -> list[str]:
    """A text as lines of a comment."""
    return textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _keys(section: str, options: type[Frozen]) -> Iterator[str]:
    defaults = options().model_dump(mode="json")
    texts = docstrings(options)
    for key, field in options.model_fields.items():
        if f"{section}.{key}" in HIDDEN:
            continue
        yield from comment(field.description or texts.get(key, ""))
        yield f"{key} = {json.dumps(defaults[key], ensure_ascii=False)}"


def text() -> str:
    """All that stands between the marks."""
    return "\n\n".join(section(name, options) for name, options in catalog().sections.items())


def updated(file: str) -> str:
    """A file's text with what is between its marks renewed. Raises ValueError where they are missing."""
    before, begin, rest = file.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the file has no marks between which to write")
    return f"{before}{BEGIN}\n\n{text()}\n\n{END}{after}"


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(text())
    else:
        path = Path(sys.argv[1])
        path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
