"""The catalogue of translated sentences, made of the code: `python -m tests.words.messages` writes it, and says which lack a translation.

What is extracted: arguments of `translated`, `translated_plural` and `to_translate` in our Python and in the templates of pages, and the
help of every command. The file has no places, no dates and no wrapped lines, so that git merges it.
"""

from __future__ import annotations

import ast
import io
import re
import string
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import typer
from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from daemon.cli.main import app
from daemon.contract.formats.catalog import catalog as formats
from daemon.contract.language.catalog import DOMAIN, FOLDER
from daemon.installing import first_config
from daemon.toolchains.registry import Toolchains

ROOT = Path(__file__).parents[2]
FILE = FOLDER / "zh_CN" / "LC_MESSAGES" / f"{DOMAIN}.po"
COMPILED = FILE.with_suffix(".mo")
_KEYWORDS: dict[str, Any] = {
    "translated": None, "to_translate": None, "translated_plural": (1, 2),
    # What translates a label or a title itself.
    "hanging": (1,), "Column": (1,), "put_field": (2,), "line": (1,), "_fact": (1,),
}  # fmt: skip
_MARKED = re.compile(rb"\b(?:translated|to_translate|translated_plural|Column|hanging|put_field)\(")
_HEADERS = (
    ("Project-Id-Version", "ckptd"),
    ("Language", "zh_CN"),
    ("MIME-Version", "1.0"),
    ("Content-Type", "text/plain; charset=utf-8"),
    ("Content-Transfer-Encoding", "8bit"),
    ("Plural-Forms", "nplurals=1; plural=0;"),
)


@dataclass(frozen=True, order=True)
class Message:
    """A sentence of the catalogue, in English; `plural` is empty where it has one form."""

    text: str
    plural: str = ""

    @property
    def id(self) -> str | tuple[str, str]:
        """The name by which Babel knows it."""
        return (self.text, self.plural) if self.plural else self.text


class _Catalogue(Catalog):
    """A catalogue whose header changes with nothing: no date, no version of a tool."""

    mime_headers = cast(Any, property(lambda self: list(_HEADERS), lambda self, headers: None))


@cache
def extracted() -> list[Message]:
    """Every sentence of the program that is shown in the reader's language, in order and once."""
    return sorted({*_of_sources(), *_of_help(), *_of_formats(), *map(Message, first_config.comments())})


def _of_sources() -> Iterator[Message]:
    for path in sorted(path for folder in ("daemon", "handlers") for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".html")):
        source = path.read_bytes()
        if not _MARKED.search(source):
            continue
        if path.suffix == ".py":
            yield from of_python(source)
        else:
            for _, message, _, _ in extract("jinja2", io.BytesIO(source), _KEYWORDS):
                yield Message(*message) if isinstance(message, tuple) else Message(message)


def of_python(source: bytes) -> Iterator[Message]:
    """The sentences of a module, also of calls within an f-string, which Babel does not see. What is not written out is no sentence."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _KEYWORDS:
            places = _KEYWORDS[node.func.id] or (1,)
            given = [node.args[place - 1] for place in places if place <= len(node.args)]
            texts = [part.value for part in given if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value]
            if len(texts) == len(places):
                yield Message(*texts)


def _of_help() -> Iterator[Message]:
    """What `--help` says of commands, arguments and options."""
    for command in _commands(typer.main.get_command(app)):
        epilog = (command.epilog or "").removeprefix("Example: ")
        texts = [command.help, *(parameter.help for parameter in command.params)]
        yield from (Message(text) for text in texts if text)
        if epilog == command.epilog and epilog:
            yield Message(epilog)


def _of_formats() -> Iterator[Message]:
    """What `ckptd formats` says of variants and toolchains."""
    yield from (Message(spec.about) for spec in formats().variants.values())
    yield from (Message(chain.about) for chain in Toolchains(ROOT).known.values())


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _commands(inner)


def translations(path: Path = FILE) -> dict[str, tuple[str, ...]]:
    """English text → its Chinese, as the file has it now; a sentence with a plural has a tuple of one as well. Fuzzy ones count as none."""
    with path.open("rb") as file:
        catalogue = read_po(file, locale="zh_CN", domain=DOMAIN)
    return {message_text(message.id): _forms(message.string) for message in catalogue if message.id and not message.fuzzy}


def message_text(name: Any) -> str:
    """The singular of a name that Babel gives a message."""
    return name if isinstance(name, str) else name[0]


def _forms(text: Any) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else tuple(text)


def catalogue(messages: list[Message], known: dict[str, tuple[str, ...]]) -> Catalog:
    """The catalogue of these messages, with the translations that are known."""
    value = _Catalogue(locale="zh_CN", domain=DOMAIN, header_comment="", fuzzy=False)
    for message in messages:
        forms = known.get(message.text, ("",))
        value.add(message.id, forms if message.plural else forms[0])
    return value


def as_text(value: Catalog) -> bytes:
    """The catalogue as its file has it."""
    target = io.BytesIO()
    write_po(target, value, width=0, sort_output=True, no_location=True)
    return target.getvalue()


def as_compiled(value: Catalog) -> bytes:
    """The catalogue as the program reads it."""
    target = io.BytesIO()
    write_mo(target, value)
    return target.getvalue()


def placeholders(text: str) -> set[str]:
    """The names in braces that `format` replaces, without what is done with them."""
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def main() -> int:
    """Write both files; 1 where a sentence has no translation."""
    value = catalogue(extracted(), translations() if FILE.exists() else {})
    return write(value, FILE, "sentences", as_compiled(value))


def write(value: Catalog, file: Path, noun: str, compiled: bytes) -> int:
    """Write a catalogue and its compiled form, and say what it lacks; 1 where a sentence has no translation."""
    file.write_bytes(as_text(value))
    file.with_suffix(".mo").write_bytes(compiled)
    lacking = [message_text(message.id) for message in value if message.id and not all(_forms(message.string))]
    for text in lacking:
        print(f"no translation: {text!r}")
    print(f"{len(value)} {noun}, {len(lacking)} without a translation, in {file.relative_to(ROOT)}")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
