"""Names in product code say what a value is, and docstrings name modules and packages that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.words.written import ROOT

BANNED = {"one", "found", "told", "thing", "things"}
"""What every value is, so that it says nothing of any: the field has a noun for it. A leading underscore changes nothing."""

LOCATION = re.compile(r"`((?:daemon|handlers)(?:[./][A-Za-z_][A-Za-z0-9_]*)+(?:\.py)?/?)`")
"""`daemon.x.y` and `handlers/x`, as docstrings write them. What has a placeholder in capitals alone is no name of a module."""


def sources() -> list[Path]:
    return sorted(path for package in ("daemon", "handlers") for path in (ROOT / package).rglob("*.py"))


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of all that code binds: variables, loop variables, arguments, fields, functions, classes, `as` names."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.arg():
                yield node.lineno, node.arg
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name


@dataclass(frozen=True)
class Module:
    """What is asked of a module. Its tree is not kept: with all of them in memory, each garbage collection takes a second."""

    bound: list[tuple[int, str]]
    """All that its code binds but for what it imports."""
    names: set[str]
    """The same with its imports."""
    docstrings: list[str]
    """Of the module, its classes and functions, and the texts below constants and fields."""


@cache
def module_at(path: Path) -> Module:
    tree = ast.parse(path.read_text("utf-8"))
    names, imported, texts = list(bound(tree)), set(), []
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                imported |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            case ast.Expr(value=ast.Constant(value=str(text))):
                texts.append(text)
    return Module(names, imported | {name for _, name in names}, texts)


def test_no_name_says_nothing() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{line} {name}" for path in sources() for line, name in module_at(path).bound if name.strip("_") in BANNED
    ]
    assert named == []


@pytest.mark.parametrize(
    "code",
    [
        "one = 1", "for found in x: pass", "def f(told): pass", "def _found(): pass", "[one for one in x]", "(one := 1)",
        "try: pass\nexcept E as found: pass", "import a as one", "class A:\n    told: bool", "lambda one: 1", "with a as (thing, b): pass",
    ],
)  # fmt: skip
def test_each_way_to_bind_a_name_is_seen(code: str) -> None:
    assert any(name.strip("_") in BANNED for _, name in bound(ast.parse(code)))


def leads_nowhere(location: str) -> bool:
    """Whether neither a module or package of this name exists nor, for a dotted one, a module that binds its end."""
    if "/" in location:
        return not (ROOT / location).exists() and not (ROOT / f"{location}.py").is_file()
    parts = location.split(".")
    for end in range(len(parts), 0, -1):
        folder = ROOT.joinpath(*parts[:end])
        file = folder.with_suffix(".py") if folder.with_suffix(".py").is_file() else folder / "__init__.py"
        if file.is_file():
            return not set(parts[end : end + 1]) <= module_at(file).names
    return True


def test_modules_and_packages_that_docstrings_name_exist() -> None:
    wrong = Counter(
        f"{path.relative_to(ROOT)}: {location}"
        for path in sources() for text in module_at(path).docstrings for location in LOCATION.findall(text)
        if leads_nowhere(location)
    )  # fmt: skip
    assert sorted(wrong) == []


@pytest.mark.parametrize(
    ("location", "wrong"),
    [
        ("daemon.cli", False), ("daemon.cli.queue", False), ("daemon.cli.queue.retry", False), ("handlers/onnx", False),
        ("handlers/onnx/format.py", False), ("daemon.cli.gone", True), ("daemon.cli.queue.gone", True), ("handlers/gone", True),
    ],
)  # fmt: skip
def test_a_name_that_leads_nowhere_is_noticed(location: str, wrong: bool) -> None:
    assert LOCATION.findall(f"See `{location}`.") == [location]
    assert leads_nowhere(location) is wrong
