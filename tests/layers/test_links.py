"""Links are followed by `os.path.realpath`: before Python 3.13 `Path.resolve` raises RuntimeError, and no OSError, for one that leads to
itself, which nothing that handles a bad file expects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def resolving(text: str) -> Iterator[int]:
    """The lines at which a path is resolved; that of the running script, `Path(__file__).resolve()`, has been opened and is no loop."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Call(args=[ast.Name("__file__")]), attr="resolve"):
                continue
            case ast.Attribute(attr="resolve"):
                yield node.lineno


@pytest.mark.parametrize("room", ["daemon", "handlers"])
def test_no_path_is_resolved_by_a_call_that_a_loop_of_links_breaks(room: str) -> None:
    files = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / room).rglob("*.py"))}
    assert len(files) > 50
    calls = [f"{path.relative_to(ROOT)}:{line}" for path, text in files.items() for line in resolving(text)]
    assert not calls, "use os.path.realpath"


def test_what_a_loop_of_links_breaks_is_seen() -> None:
    wrong = ["a.resolve()", "a.resolve(strict=True)", "(a / b).resolve()", "Path(name).resolve()", "map(Path.resolve, paths)"]
    right = ["os.path.realpath(a)", "Path(__file__).resolve().parent", "resolve(a)"]
    assert [list(resolving(one)) for one in wrong] == [[1]] * len(wrong)
    assert not any(list(resolving(one)) for one in right)
