"""No file is read or written in the encoding of the locale: it may be ASCII, or Latin-1, and the files of models are UTF-8."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_COMMANDS = ("run", "Popen", "check_call", "check_output")


def _argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    named = next((one.value for one in call.keywords if one.arg == name), None)
    return named or (call.args[place] if len(call.args) > place else None)


def _is_in_text_mode(mode: ast.expr | None, without: bool) -> bool:
    """`without`: what a call without a mode does. A word that is no mode belongs to an `open` of another kind."""
    if mode is None:
        return without
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) <= set("rwaxt+")


def _opens_text(call: ast.Call) -> bool:
    """Whether a call reads or writes text. `x.open()` without a mode is left out: journals and archives have it too."""
    match call.func:
        case ast.Name("open") | ast.Attribute(attr="fdopen"):
            return _is_in_text_mode(_argument(call, "mode", 1), without=True)
        case ast.Attribute(attr="open"):
            return _is_in_text_mode(_argument(call, "mode", 0), without=False)
        case ast.Attribute(attr="read_text"):
            return not call.args
        case ast.Attribute(attr="write_text"):
            return len(call.args) < 2
        case ast.Attribute(attr=name) if name in _COMMANDS:
            return any(one.arg in ("text", "universal_newlines") for one in call.keywords)
    return False


def without_encoding(text: str) -> Iterator[int]:
    """The lines at which text is read or written in the encoding of the locale."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and _opens_text(node) and not any(one.arg in ("encoding", None) for one in node.keywords):
            yield node.lineno


@pytest.mark.parametrize("room", ["daemon", "handlers"])
def test_every_text_file_is_read_and_written_as_utf_8(room: str) -> None:
    files = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / room).rglob("*.py"))}
    found = [f"{path.relative_to(ROOT)}:{line}" for path, text in files.items() for line in without_encoding(text)]
    assert not found, 'say encoding="utf-8"'


def test_what_depends_on_the_locale_is_found() -> None:
    wrong = [
        "open(a)", "open(a, 'w')", "os.fdopen(a)", "a.open('a')", "a.read_text()", "a.read_text(errors='replace')", "a.write_text(b)",
        "subprocess.run(a, text=True)",
    ]  # fmt: skip
    right = [
        "open(a, 'rb')", "a.read_text('utf-8')",
        "a.write_text(b, 'utf-8')", "os.fdopen(a, 'wb')", "a.open()", "a.open(b)", "a.open('adapter_model.safetensors')",
        "subprocess.run(a)",
        *(f"{one[:-1]}, encoding='utf-8')".replace("(, ", "(") for one in wrong),
    ]  # fmt: skip
    assert [list(without_encoding(one)) for one in wrong] == [[1]] * len(wrong)
    assert not any(list(without_encoding(one)) for one in right)
