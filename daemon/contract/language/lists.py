"""Parts of a text put together with the marks of the reader's language: Chinese has full-width ones, without blanks around them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from daemon.contract.language.catalog import language, translated

_CHINESE = "\u4e00-\u9fff"
_BLANK = re.compile(rf"(?<=[{_CHINESE}，。：；（）、]) +(?=[{_CHINESE}（])|(?<=[，。：；（）、]) +")
_MIXED = re.compile(rf"(?<=[{_CHINESE}])(?=[A-Za-z0-9×])|(?<=[A-Za-z0-9])(?=[{_CHINESE}])")


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


def labelled(label: str, text: str) -> str:
    """ "label: text"."""
    return f"{label}：{text}" if language() == "zh_CN" else f"{label}: {text}"


def bracketed(text: str, more: str) -> str:
    """ "text (more)"."""
    return f"{text}（{more}）" if language() == "zh_CN" else f"{text} ({more})"


def percent(number: str) -> str:
    """A number of hundredths with its sign."""
    return f"{number}%" if language() == "zh_CN" else f"{number} %"


def times(number: str) -> str:
    """How many times as much of something."""
    return f"{number} 倍" if language() == "zh_CN" else f"{number} ×"


def verdicts_of(artifacts: Mapping[str, str]) -> str:
    """Each variant of an export with its verdict."""
    if language() == "zh_CN":
        return "，".join(f"{name}：{translated(verdict)}" for name, verdict in artifacts.items())
    return " ".join(f"{name}:{translated(verdict)}" for name, verdict in artifacts.items())


def spaced(text: str) -> str:
    """A clause of words alone: in Chinese without blanks between characters, and with one before and behind Latin words and numbers."""
    return _MIXED.sub(" ", _BLANK.sub("", text)) if language() == "zh_CN" else text


def gap_after(label: str, text: str) -> str:
    """What stands between the label of a line and its text: Chinese takes a colon, unless a mark is there already."""
    if language() != "zh_CN":
        return " "
    if label.endswith(("：", "；")) or text.startswith(("（", "，")):
        return ""
    return "：" if "\u4e00" <= label[-1] <= "\u9fff" else " "
