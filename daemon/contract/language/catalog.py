"""Sentences in the language of whoever reads them: the catalogue `zh_CN/LC_MESSAGES/ckptd.po`, whose compiled `ckptd.mo` is read here.

A sentence is translated where it is shown, never where it is stored: `translated("{count} exports wait").format(count=n)`. In English
nothing is read or imported. `make messages` writes the catalogue anew from the code; docs/contributing.md, "Sentences in two languages".
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gettext import GNUTranslations

Language = Literal["en", "zh_CN"]
DOMAIN = "ckptd"
FOLDER = Path(__file__).parent
_WHERE_LOCALE_IS = ("LC_ALL", "LC_MESSAGES", "LANG")
_chosen: Language | None = None
_here: ContextVar[Language | None] = ContextVar("language", default=None)


def translated(message: str) -> str:
    """The sentence in the reader's language; as it is where the catalogue lacks it."""
    return message if language() == "en" or not message else _catalogue().gettext(message)


def translated_plural(singular: str, plural: str, count: int) -> str:
    """The form of the sentence for that many, in the reader's language; `{count}` in it is left to `format`."""
    if language() == "en":
        return singular if count == 1 else plural
    return _catalogue().ngettext(singular, plural, count)


def translated_text(text: str) -> str:
    """What is stored or given in English, in the reader's language: recorded sentences are known by their templates."""
    if language() == "en":
        return text
    from daemon.contract.language import recorded

    return recorded.translated_text(text)


def to_translate(message: str) -> str:
    """The sentence as it is: marks one that is stored, or stands in a table, for the catalogue. Who shows it calls `translated`."""
    return message


def language() -> Language:
    """The language of whom this thread answers (`answer_in`), else of this process: what `use_language` says, else what the environment
    did when it was asked first."""
    global _chosen
    if (here := _here.get()) is not None:
        return here
    if _chosen is None:
        _chosen = language_of(os.environ)
    return _chosen


def speak_english() -> None:
    """Let this process speak English to its end: it answers a program."""
    global _chosen
    _chosen = "en"


def use_environment() -> None:
    """Let this process speak what its environment asks for again."""
    global _chosen
    _chosen = None


@contextmanager
def use_language(name: Language) -> Iterator[None]:
    """Let this process, with all its threads, speak a language meanwhile."""
    global _chosen
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


@contextmanager
def answer_in(name: Language) -> Iterator[None]:
    """Let this thread, or this task, answer a reader in a language meanwhile, whatever the process speaks."""
    token = _here.set(name)
    try:
        yield
    finally:
        _here.reset(token)


def language_of(environment: Mapping[str, str]) -> Language:
    """The language that the variables of the environment ask for, in gettext's order: LANGUAGE, LC_ALL, LC_MESSAGES, LANG.

    LANGUAGE is a list by preference, and does not count where the locale is C, as in GNU gettext: `LC_ALL=C ckptd …` is English everywhere.
    The catalogue is in simplified characters with the words of the mainland; who asks for traditional ones (zh_TW, zh_HK, zh-Hant) gets
    English, unless the list has simplified ones too.
    """
    locale = next((environment[name] for name in _WHERE_LOCALE_IS if environment.get(name)), "")
    wanted = environment.get("LANGUAGE") or locale
    for name in (locale if locale in ("C", "POSIX") else wanted).split(":"):
        tag = name.partition(".")[0].partition("@")[0].replace("-", "_").lower()
        if tag in ("zh", "zh_cn", "zh_sg", "zh_my") or tag.startswith("zh_hans"):
            return "zh_CN"
        if tag == "c" or tag == "posix" or tag.partition("_")[0] == "en":
            return "en"
    return "en"


@functools.cache
def _catalogue() -> GNUTranslations:
    from gettext import translation

    return translation(DOMAIN, FOLDER, ["zh_CN"])
