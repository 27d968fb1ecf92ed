"""Lists within a sentence, with the language's own commas. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from daemon.contract.language.catalog import language


def names(parts: Iterable[str]) -> str:
    """ "a, b, c"."""
    return ("、" if language() == "zh_CN" else ", ").join(parts)


def clauses(parts: Iterable[str]) -> str:
    """Parts of a sentence, one after the other."""
    return ("，" if language() == "zh_CN" else ", ").join(parts)


def sentences(parts: Iterable[str]) -> str:
    """Sentences that are one: "a; b"."""
    return ("；" if language() == "zh_CN" else "; ").join(parts)


def after_each_other(parts: Iterable[str]) -> str:
    """Whole sentences: no blank follows a full stop that is as wide as a letter."""
    return ("" if language() == "zh_CN" else " ").join(parts)
