"""What a text for people names that a program can look up: commands of ours, keys of the configuration, links to files."""

from __future__ import annotations

import functools
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from daemon.cli.main import app
from daemon.contract.formats.catalog import catalog

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```\w*\n(?P<text>[\s\S]*?)^```$|(?P<indented>(?:^    .*\n|^\n(?=    ))+)", re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")
_COMMAND = re.compile(r"(?:^\s*|[;&($] ?|bin/|sudo (?:-u \w+ )?|env \S+ )ckptd(?= [^\d])(?P<rest>[^|;&#\n]*)")
"""The name and a version, `ckptd 1.0`, is no command."""
_KEY = re.compile(r"(?<![\w./-])[a-z]+(?:\.[a-z_]+)+(?![\w/])")
SEVERAL_MEANINGS = {"base", "export", "job", "limit", "log", "merge", "root", "run", "token"}
"""Also verbs, other words or parts of other words in English."""
_FILES = (".toml", ".json", ".jsonl", ".html", ".md", ".txt", ".sqlite3", ".log", ".py", ".conf", ".service", ".slice")


def blocks(text: str) -> Iterator[str]:
    """The code blocks of a Markdown text, fenced or indented, without their indentation."""
    for found in BLOCK.finditer(text):
        if found["indented"] is None:
            yield found["text"]
        elif found["indented"].strip():
            yield "\n".join(line[4:] for line in found["indented"].splitlines()).strip("\n") + "\n"


def spans(text: str) -> Iterator[str]:
    """The code within the lines of a Markdown text."""
    for part in re.split(r"\n\s*\n|^(?=\||- |\d+\. )", BLOCK.sub("\n\n", text), flags=re.MULTILINE):
        yield from (" ".join(found.split()) for found in _SPAN.findall(part))


def commands(text: str) -> list[str]:
    """Every command line of ckptd's in a Markdown text, as `ckptd VERB …`."""
    lines = [*spans(text), *(line for block in blocks(text) for line in block.replace("\\\n", " ").splitlines())]
    return [f"ckptd{found['rest']}".strip() for line in lines for found in _COMMAND.finditer(line)]


@functools.cache
def _parser() -> Any:
    return typer.main.get_command(app)


def wrong_with(command: str) -> str | None:
    """Why the command line of ckptd's is none that its parser takes; None where it is one. Values are not looked at, and a missing one
    is no mistake: a text may speak of a verb or an option by its name.
    """
    words = shlex.split(re.sub(r"(?<= )\[|\](?= |$)", "", command))[1:]
    group = _parser()
    while words and words[0] == "--set":
        words = words[2:]
    while hasattr(group, "commands"):
        if not words or words[0] in ("--help", "--version", "--install-completion"):
            return None
        if words[0] not in group.commands:
            return None if words[0] == "VERB" else f"there is no verb {words[0]!r}"
        group, words = group.commands[words[0]], words[1:]
    options = {name: one for one in group.params for name in one.opts if one.param_type_name == "option"}
    given = 0
    while words:
        name, _, value = words.pop(0).partition("=")
        if not name.startswith("-"):
            given += 1
        elif name not in options and name != "--help":
            return f"there is no option {name}"
        elif name in options and not options[name].is_flag and not value:
            words = words[1:]
    arguments = [one for one in group.params if one.param_type_name == "argument"]
    most = given if any(one.nargs == -1 for one in arguments) else len(arguments)
    return f"it takes {most} arguments" if given > most else None


@functools.cache
def known_keys() -> frozenset[str]:
    """Every key and table of config.toml and the limits of variants, with dots, and what may be set below them."""

    def below(table: dict[str, Any], before: str) -> Iterator[str]:
        for name, value in table.items():
            yield before + name
            if isinstance(value, dict):
                yield from below(value, f"{before}{name}.")

    limits = {name: one.model_dump() for name, one in catalog().thresholds.items()}
    tables = tomllib.loads((ROOT / "config.toml").read_text("utf-8"))
    return frozenset(below(tables, "")) | frozenset(below({"limits": limits, "thresholds": {}}, "validate."))


def keys(text: str) -> set[str]:
    """What in a text looks like a key of the configuration: a section of it, a dot and a name."""
    sections = {key for key in known_keys() if "." not in key}
    return {found for found in _KEY.findall(text) if found.split(".")[0] in sections and not found.endswith(_FILES)}


def is_key(name: str) -> bool:
    """Whether it is a key of ours; below a table whose keys are free, such as thresholds of variants, the table counts."""
    return name in known_keys()


def terms() -> Iterator[tuple[str, str, list[str]]]:
    """The glossary: English term, its Chinese form, what is not written for it."""
    table = (ROOT / "docs/zh-CN/operating.md").read_text("utf-8").rpartition("\n## ")[2]
    for row in re.findall(r"^\| ([a-z ]+) \| (.+?) \| (.*?) ?\|$", table, re.MULTILINE):
        yield row[0], row[1], [word for word in row[2].split("、") if word]
