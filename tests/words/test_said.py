"""Every sentence of the command line is translated where it is shown, or recorded in English and translated by its template."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.words.messages import _KEYWORDS, ROOT, extracted, translations
from tests.words.recorded import FILE as RECORDED_FILE
from tests.words.templates import is_prose, template_of

FOLDER = ROOT / "daemon/cli"
FILES = sorted(FOLDER.rglob("*.py"))
APART = {
    "manual.py": "ckptd(1) is English",
    "parser/mistakes.py": "the parser's words, which its own list turns into recorded sentences",
    "demo/setup.py": "the demo's configuration and texts, which are files; its errors are translated",
}
"""Modules whose texts are for no terminal."""
NOT_SAID = ("Option", "Argument", "Typer", "command", "place", "compile", "sub", "replace", "startswith", "glob")
"""Calls whose texts are the parser's, from which messages.py takes them; and those that compare."""
EXCEPTIONS = {
    "Notifications of exports will arrive here.": "of a notification",
    "ckptd on {gethostname}: a test message": "of a notification",
    "that {replace}": "the English form of what is recorded as `waits for …`",
    "did you mean": "looked for",
    "command line)": "looked for",
    "give them with --root": "the beginning of a recorded sentence",
    "another folder with --output": "looked for in a recorded sentence",
    "run the same command again": "put into a recorded sentence, before that is translated",
    "\\[env var: ": "looked for in the parser's page",
}
"""Sentences for others than who reads the terminal."""


@functools.cache
def messages() -> frozenset[str]:
    """Return the texts of the catalogue's entries."""
    return frozenset(text for message in extracted() for text in (message.text, message.plural) if text)


def unnamed(template: str) -> str:
    """A template, or a part of one, without the names of its places and the blanks around it."""
    return re.sub(r"\{\w*\}", "{}", template).strip(" {}:\n")


def sentences(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, text or template, and the innermost call that it is an argument of, of each sentence that is no docstring."""

    def visit(node: ast.AST, call: str) -> Iterator[tuple[int, str, str]]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.Call):
            yield from visit(node.func, call)
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from visit(argument, name)
            return
        if isinstance(node, ast.JoinedStr):
            if is_prose(template := template_of(node)):
                yield node.lineno, template, call
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    yield from visit(part.value, call)
            return
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and is_prose(node.value):
                yield node.lineno, node.value, call
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, call)

    yield from visit(tree, "")


RECORDED = "\n".join(map(unnamed, translations(RECORDED_FILE)))


@pytest.mark.parametrize("file", [file for file in FILES if str(file.relative_to(FOLDER)) not in APART], ids=lambda file: file.stem)
def test_every_sentence_of_a_command_is_translated_or_recorded(file: Path) -> None:
    untold = [
        (line, text)
        for line, text, call in sentences(ast.parse(file.read_text("utf-8")))
        if call not in _KEYWORDS
        and call not in NOT_SAID
        and unnamed(text) not in RECORDED
        and text not in messages()
        and text not in EXCEPTIONS
    ]
    assert untold == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_is_translated_is_written_out_or_has_a_name(file: Path) -> None:
    wrong = [
        node.lineno
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("translated", "to_translate", "translated_plural")
        for argument in node.args[:2]
        if isinstance(argument, ast.JoinedStr) or (isinstance(argument, ast.Constant) and argument.value not in messages())
    ]
    assert wrong == [], "an f-string has no entry in the catalogue: use names in braces and .format()"
