"""Two habits that a line of code breaks unseen: text is UTF-8 whatever the locale says, and links are followed by `os.path.realpath`.

The encoding of the locale may be ASCII, or Latin-1, and the files of models are UTF-8. `Path.resolve` raises RuntimeError before Python
3.13, and no OSError, for a link that leads to itself, which nothing that handles a bad file expects.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COMMANDS = ("run", "Popen", "check_call", "check_output")


def _argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    named = next((word.value for word in call.keywords if word.arg == name), None)
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
            return any(word.arg in ("text", "universal_newlines") for word in call.keywords)
    return False


def habits(text: str) -> Iterator[tuple[int, str]]:
    """Line and remedy of each bad habit; the running script's path, `Path(__file__).resolve()`, has been opened and is no loop."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call() if _opens_text(node) and not any(word.arg in ("encoding", None) for word in node.keywords):
                yield node.lineno, 'say encoding="utf-8"'
            case ast.Attribute(value=ast.Call(args=[ast.Name("__file__")]), attr="resolve"):
                continue
            case ast.Attribute(attr="resolve"):
                yield node.lineno, "use os.path.realpath"


def test_text_is_read_and_written_as_utf_8_and_no_path_is_resolved_by_a_call_that_a_loop_of_links_breaks() -> None:
    files = [path for room in ("daemon", "handlers") for path in sorted((ROOT / room).rglob("*.py"))]
    assert len(files) > 500
    assert [f"{path.relative_to(ROOT)}:{line}: {said}" for path in files for line, said in habits(path.read_text("utf-8"))] == []


def test_a_bad_habit_is_seen() -> None:
    resolving = ["a.resolve()", "a.resolve(strict=True)", "(a / b).resolve()", "map(Path.resolve, paths)"]
    opening = [
        "open(a)", "open(a, 'w')", "os.fdopen(a)", "a.open('a')", "a.read_text()", "a.read_text(errors='replace')", "a.write_text(b)",
        "subprocess.run(a, text=True)",
    ]  # fmt: skip
    right = [
        "os.path.realpath(a)", "Path(__file__).resolve().parent", "resolve(a)", "open(a, 'rb')", "a.read_text('utf-8')",
        "a.write_text(b, 'utf-8')", "os.fdopen(a, 'wb')", "a.open()", "a.open(b)", "a.open('adapter_model.safetensors')",
        "subprocess.run(a)", *(f"{text[:-1]}, encoding='utf-8')".replace("(, ", "(") for text in opening),
    ]  # fmt: skip
    assert [len(list(habits(text))) for text in (*resolving, *opening)] == [1] * len([*resolving, *opening])
    assert [text for text in right if list(habits(text))] == []
