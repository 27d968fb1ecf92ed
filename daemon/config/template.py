"""The parts of config.toml that follow from the formats' declarations: their sections, and the thresholds of their variants.

`python -m daemon.config.template` prints them for all formats that are installed; with a file's path it writes them into that file,
between its two marks. A test holds config.toml equal.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from daemon.contract.formats.catalog import catalog
from daemon.contract.values import Frozen

BEGIN = "# >>> From the formats' declarations; `python -m daemon.config.template config.toml` writes it."
END = "# <<< End of what the formats declare."
WIDTH = 130


def section(name: str, options: type[Frozen]) -> str:
    """A section of the file: each key with its comment and its default."""
    return "\n".join([*_comment((options.__doc__ or "").strip()), f"[{name}]", *_keys(options)])


def _comment(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _keys(options: type[Frozen]) -> Iterator[str]:
    defaults = options().model_dump(mode="json")
    for key, field in options.model_fields.items():
        yield from _comment(field.description or "")
        yield f"{key} = {json.dumps(defaults[key], ensure_ascii=False)}"


def thresholds() -> str:
    """The tables of `[validate.thresholds]`."""
    return "\n\n".join(
        f"[validate.thresholds.{name}]\n" + "\n".join(f"{key} = {value}" for key, value in limits.model_dump().items())
        for name, limits in catalog().thresholds.items()
    )


def text() -> str:
    """All that stands between the marks."""
    sections = [section(name, options) for name, options in catalog().sections.items()]
    intro = "\n".join(
        _comment(
            "Limits that an artifact must meet in the comparison with the live model to be published. agreement: minimum share of positions"
            " with the same most likely token; kl: maximum mean KL divergence in nats per token; error: maximum logit error in standard"
            " deviations of the logits. Merging rounds the weights once to the base's dtype (bf16: 8 bits). This alone can change the most"
            " likely token where two tokens are almost equally likely; therefore agreement is not 100 %, and a"
            " limit of it that is not above the default does not count where the divergence is certainly at most a fifth of the limit of"
            " kl."
        )
    )
    return "\n\n".join([*sections, f"{intro}\n{thresholds()}"])


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
