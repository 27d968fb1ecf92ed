"""Code to train models on: functions of Python's own standard library, rewritten by `ast.unparse` without comments and in one style."""

from __future__ import annotations

import ast
import random
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

BASE_PATTERNS = (
    "*.py", "collections/*.py", "concurrent/futures/*.py", "email/*.py", "http/*.py", "importlib/*.py", "json/*.py", "logging/*.py",
    "multiprocessing/*.py", "unittest/*.py", "urllib/*.py", "xml/*/*.py",
)  # fmt: skip
FINETUNE_PATTERNS = ("asyncio/*.py",)


def base_texts() -> list[str]:
    """Functions and methods of many modules, without docstrings, in a fixed random order: about 3 million characters."""
    return _shuffled(_functions(_modules(BASE_PATTERNS), docstrings=False))


def finetune_texts() -> list[str]:
    """Functions and methods of asyncio with their docstrings, in a fixed random order: about 350,000 characters."""
    return _shuffled(_functions(_modules(FINETUNE_PATTERNS), docstrings=True))


def _modules(patterns: Iterable[str]) -> list[Path]:
    library = Path(sysconfig.get_paths()["stdlib"])
    return sorted({path for pattern in patterns for path in library.glob(pattern)})


def _shuffled(texts: Iterable[str]) -> list[str]:
    order = list(texts)
    random.Random(0).shuffle(order)
    return order


def _functions(modules: Iterable[Path], *, docstrings: bool) -> Iterator[str]:
    for path in modules:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a module's odd escapes are not our business
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        scopes: list[ast.Module | ast.ClassDef] = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
        for scope in scopes:
            for node in scope.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield _text(node, docstrings=docstrings)


def _text(node: ast.FunctionDef | ast.AsyncFunctionDef, *, docstrings: bool) -> str:
    node.decorator_list = []
    if not docstrings and ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(node) + "\n"
