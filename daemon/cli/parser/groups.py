"""What `ckptd --help` shows of a verb beside its own words: the group it stands in, and an example; and the names that verbs had before.

A verb that gets another name keeps answering to the old one until the next major version (docs/contributing.md, "Versions").
"""

from __future__ import annotations

from typing import TypedDict

from daemon.contract.language.catalog import to_translate

GROUPS: dict[str, tuple[str, ...]] = {
    to_translate("See"): ("status", "list", "show", "quality", "compare", "explain", "logs"),
    to_translate("Do"): ("export", "deliver", "bench", "convert", "demo"),
    to_translate("Mend"): ("check", "queue", "verify", "prune", "reload"),
    to_translate("Set up"): ("init", "run", "install-service", "config", "formats", "toolchain", "notify", "version"),
}
"""Title → its verbs, in the order of the help."""
HELP_NAMES = {"help_option_names": ["-h", "--help"]}
"""Settings of the parser, which each verb takes from the group above it."""
RENAMED: dict[str, tuple[str, ...]] = {
    **{verb: ("queue", verb) for verb in ("retry", "cancel", "pause", "resume", "first")},
    "fsck": ("verify", "--journal"),
    "notify-test": ("notify", "test"),
}
"""Name of a verb in version 1.0 → what it is called now."""


class Place(TypedDict):
    """What typer's `command` and `add_typer` take."""

    rich_help_panel: str
    epilog: str


def place(verb: str, example: str) -> Place:
    """The place of a verb in the help. `example`: a command line that can be typed as it stands, of at most 66 characters."""
    return {"rich_help_panel": next(group for group, verbs in GROUPS.items() if verb in verbs), "epilog": f"Example: {example}"}
