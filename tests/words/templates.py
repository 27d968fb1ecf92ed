"""Templates of sentences: an f-string with a placeholder for each value, `cannot read {name}`, and whether a text is a sentence at all."""

from __future__ import annotations

import ast
import re

_WORDS = re.compile(r"[A-Za-z]{2,}")
_CODE = re.compile(
    r"^(?:--[\w-]+(?:[ =]\S+)?$|#|<!--|\\\(|ckptd (?:\{|[a-z]+(?:$| --| \{| KEY))|pip install |(?:sudo )?setfacl )"
    r"|\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|DESC|Promise)\b|^created, "
)
"""What is for a program: statements and commands alone."""


def is_prose(template: str) -> bool:
    """Whether a text has words of a sentence, outside of what stands between backticks or in placeholders."""
    if " " not in template or _CODE.search(template):
        return False
    bare = re.sub(r"\{[^{}]*\}|`[^`]*`|\S*[._/=<>]\S*", " ", template)
    return len(_WORDS.findall(bare)) >= 2 and any(word.islower() for word in _WORDS.findall(bare))


def terms_of(node: ast.expr) -> list[ast.expr]:
    """What is added to each other in a text."""
    return [*terms_of(node.left), *terms_of(node.right)] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else [node]


def parts_of(node: ast.expr) -> list[ast.expr]:
    """The parts of an f-string that says the same as this expression."""
    if isinstance(node, ast.JoinedStr):
        return node.values
    return [node if isinstance(node, ast.Constant) else ast.FormattedValue(value=node, conversion=-1)]


def template_of(node: ast.JoinedStr) -> str:
    """An f-string as a template: each value's place has a name made of what stands there."""
    used: dict[str, int] = {}
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value).replace("{", "{{").replace("}", "}}"))
        elif isinstance(part, ast.FormattedValue):
            name = _name_of(part.value)
            used[name] = used.get(name, 0) + 1
            parts.append(f"{{{name}{used[name] if used[name] > 1 else ''}}}")
    return "".join(parts)


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id.strip("_").lower() or "value"
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_").lower()
    if isinstance(node, ast.Call):
        callee = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if (
            callee in ("quoted", "str", "len", "shortened", "sorted", "repr", "int", "min", "max", "sum", "list", "shown", "counted")
            and node.args
        ):
            return _name_of(node.args[0])
        return "list" if callee == "join" else callee.strip("_").lower() or "value"
    if isinstance(node, ast.Subscript):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return key if isinstance(key, str) and key.isidentifier() else _name_of(node.value)
    if isinstance(node, ast.BinOp):
        return _name_of(node.left)
    if isinstance(node, ast.IfExp):
        return "s" if isinstance(node.body, ast.Constant) and node.body.value in ("", "s") else "choice"
    return "value"
