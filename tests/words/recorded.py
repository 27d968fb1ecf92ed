"""The catalogue of recorded sentences, made of the code: `python -m tests.words.recorded` writes it, and says which lack a translation.

Faults, reasons and warnings stay English where they are kept, and are translated when they are shown, by
`daemon.contract.language.recorded`.
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
from functools import cache

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po

from daemon.cli.parser.mistakes import CAUSES
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import DOMAIN
from daemon.contract.language.recorded import JOINED
from daemon.operating.monitoring.reasons import failure, waiting
from tests.words import borrowed, messages
from tests.words.messages import ROOT, catalogue
from tests.words.sources import Templates

FILE = messages.FILE.with_stem("recorded")
COMPILED = FILE.with_suffix(".mo")
WORDS = {
    "alone": ("rejected", "starting"),
    "able": ("nothing",),
    "choice": ("always", "appeared", "it", "missing", "never", "them"),
    "damaged": ("damaged",),
    "figure": ("KL", "agreement", "logit error"),
    "has": ("has", "lacks"),
    "kind": ("format", "overlap", "toolchain"),
    "named": ("none",),
    "noun": ("adapter", "base", "checkpoint", "model"),
    "operation": ("compare", "deliver", "explain", "export", "measure", "read", "verify", "watch"),
    "positions": ("positions", "texts", "tokens"),
    "right": ("enter", "list", "read"),
    "state": (
        "cancelled",
        "damaged",
        "failed",
        "installed",
        "not installed",
        "partial",
        "pending",
        "running",
        "skipped",
        "succeeded",
        "waiting",
    ),
    "unit": ("a position", "a token"),
    "what": ("a file", "a folder", "checked", "made"),
    "whose": ("base", "model"),
}
"""Placeholder → single words that can stand in it; "alone" are those that are all that is shown. Anywhere else they may be a name."""
FRAGMENTS = (
    "The stage {name} waits: {cause}; {remedy}.", "The export waits: {cause}; {remedy}.",
    "retry {id}", "publish {variant}", "rejected: it does not run",
    "rejected: {figure}", "rejected: {figure}, {figure2}", "rejected: {figure}, {figure2}, {figure3}",
    "waits: {failure}", "{name} (user {user}, {which}) {percent} %", "built-in texts",
    "ask {name}", "deliver {id}", "remove {version}", "upload {sha256}",
    *borrowed.OF_THE_SYSTEM, *borrowed.OF_TOML, *borrowed.OF_WINDOWS, *borrowed.OF_ERRORS,
    "the rest goes to {rivals_said}", "{name} (user {user}, {which}) {percent} % and {rivals_said}",
    "other stages of ckptd {percent} %", "other stages of ckptd {percent} % and {rivals_said}",
    "{processes} processes, most by pid {pid}", "texts sampled from the live model",
    "{option} (command line)", "{option} (command line) for {key}", "{variable} (environment)", "{variable} (environment) for {key}",
    "{file} for {key}", "must be a list in square brackets: {example}", "{name} was not measured.",
    "a section: write [{section}] and its keys below", "{worker}, prompt {number} of {count}",
    "; limits.priority decides", ", after: {sentence}", "signal {value}", "token {tokens}",
    "give it before the command: ckptd --set KEY=VALUE {verb}", "cancel {id}", "compare {id}", "measure {name}", "merge {value}",
    "pause {id}", "put first {id}", "quantize {name}", "use {option}", "run {install}", "see `ckptd logs`", "run `ckptd bench`",
    "see ckptd {verb} --help", "{value} s", "{value} min",
    "raise tensorrt.max_tokens", "run `ckptd toolchain install {name}`", "write the report",
    "{scheduler} gives no answer since {since} ({why}): what runs there goes on, the rest waits, and it is asked again.",
    "{scheduler} gives no answer since {since} ({why}); not handed in yet",
    "{scheduler} gives no answer since {since} ({why}); not known whether it was handed in",
    "{scheduler} gives no answer since {since} ({why}); job {id} was handed in",
    "not handed in to {scheduler} yet",
    "the job file says nothing about the job's stages",
    "let the daemon start the report stage, which then gives it the journal's facts",
)  # fmt: skip
"""What has too few words to be taken for a part of a sentence."""
_VALUE = re.compile(r"(?<!\{)\{(\w+)\}(?!\})")
Key = tuple[str, str]
"""The context and the English text of a message."""


@cache
def _sources() -> Templates:
    """The texts of the code, whose syntax trees stay: to look through them for garbage takes as long again as to read them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return Templates(ROOT)
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


@cache
def keys() -> tuple[Key, ...]:
    """Every recorded text that is to be translated."""
    words = {(place, word) for place, several in WORDS.items() for word in several}
    in_columns = {text(code) for code in FaultCode for text in (failure, waiting) if not text(code).startswith("waits: ")}
    words |= {(place, text) for text in in_columns for place in ("alone", "failure") if " " not in text}
    texts = {*_sources().places, *JOINED, *CAUSES, *FRAGMENTS, *(text for text in in_columns if " " in text)}
    return tuple(sorted({("", text) for text in texts} | words))


def translations() -> dict[Key, str]:
    """The catalogue as its file has it now."""
    if not FILE.exists():
        return {}
    with FILE.open("rb") as file:
        value = read_po(file, locale="zh_CN", domain=DOMAIN)
    return {(message.context or "", str(message.id)): str(message.string) for message in value if message.id and not message.fuzzy}


def catalogue_of(known: dict[Key, str]) -> Catalog:
    """The catalogue of every recorded text, with the translations that are known."""
    value = catalogue([], {})
    for place, text in keys():
        value.add(text, known.get((place, text), ""), context=place or None)
    return value


def compiled(known: dict[Key, str]) -> bytes:
    """The catalogue as the program reads it: in its templates `{why!s}` is a value that can be a sentence itself, `{name}` none."""
    value = catalogue([], {})
    for place, text in keys():
        value.add(_marked(text, _sources().sentences.get(text, set())), known.get((place, text), ""), context=place or None)
    return messages.as_compiled(value)


def _marked(text: str, sentences: set[int]) -> str:
    numbers = itertools.count()
    return _VALUE.sub(lambda match: f"{{{match[1]}!s}}" if next(numbers) in sentences else match[0], text)


def main() -> int:
    """Write both files; 1 where a text has no translation."""
    known = translations()
    return messages.write(catalogue_of(known), FILE, "recorded sentences", compiled(known))


if __name__ == "__main__":
    sys.exit(main())
