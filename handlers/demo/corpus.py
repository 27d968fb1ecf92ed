"""The text that the demo's models learn from: what Python's own standard library says of its functions and classes.

Every Python installation has it, so nothing is downloaded. `make_base` learns the sentences of many modules; `finetune` learns
asyncio's, which the base has never seen. Only whole sentences of prose are taken: a model of a million parameters has enough to do.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

FINETUNE = "asyncio"
LONGEST = 200
"""Characters of a text of the base's."""
LEFT_OUT = frozenset({FINETUNE, "site-packages", "dist-packages", "test", "tests", "idlelib"})
_PROSE = re.compile(r"[A-Z][^<>{}=\\|]{15,}[.!]")
"""A paragraph that is neither code nor a table."""


def base_texts() -> list[str]:
    """How the docstrings of all modules but asyncio's begin, in a fixed random order: about 370,000 characters.

    First paragraphs are short and much alike ("Return the …"), so that 200 steps suffice for sentences.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = _docstrings(path for path in library.rglob("*.py") if not LEFT_OUT & {*path.relative_to(library).parts})
    return _shuffled(first + "\n" for text in texts if len(first := text.partition("\n")[0]) <= LONGEST)


def finetune_texts() -> list[str]:
    """The docstrings of asyncio, in a fixed random order: about 55,000 characters."""
    return _shuffled(_docstrings((Path(sysconfig.get_paths()["stdlib"]) / FINETUNE).glob("*.py")))


def _shuffled(texts: Iterable[str]) -> list[str]:
    order = list(texts)
    random.Random(0).shuffle(order)
    return order


def _docstrings(modules: Iterable[Path]) -> Iterator[str]:
    for path in sorted(modules):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a module's odd escapes are not our business
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (text := _prose(node)):
                yield text + "\n"


def _prose(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The paragraphs of its docstring that are sentences, each in one line."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", ast.get_docstring(node) or ""))
    return "\n".join(paragraph for paragraph in paragraphs if _PROSE.fullmatch(paragraph))
