"""Sentences within pages: what a template puts in is escaped, what it says itself may hold markup. For templates of jinja2."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from daemon.contract.language.catalog import translated, translated_plural


def in_page(message: str, /, **values: object) -> Markup:
    """A sentence of a template in the reader's language. It is ours, and may hold markup; values are escaped."""
    return Markup(translated(message)).format(**values)


def many_in_page(singular: str, plural: str, count: int) -> Markup:
    """The same for a number of something, `{count}` in it."""
    return Markup(translated_plural(singular, plural, count)).format(count=count)


def coded(text: str) -> Markup:
    """A sentence of ours, with what stands between backquotes as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
