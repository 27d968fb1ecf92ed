"""The program's source as one index: what its functions return, what their callers pass, and what names and attributes are given."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

FOLDERS = ("daemon", "handlers")
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
NAMING = (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
LOOPS = (ast.For, ast.comprehension)
GIVING = (ast.Assign, *NAMING, *LOOPS, ast.Call)
"""Statements and expressions that give names values."""
FEW = 3
"""Functions of one name that an attribute is taken for."""


class Project:
    """Every file of the program."""

    def __init__(self, root: Path) -> None:
        self.trees: dict[str, ast.Module] = {}
        """File, relative to the root → what it holds."""
        self.file: dict[int, str] = {}
        """Node, by its id → its file."""
        self._functions: dict[str, list[ast.AST]] = defaultdict(list)
        self._called: dict[int, list[str]] = defaultdict(list)
        """Function, by its id → what calls name for it: itself, or its class."""
        self._constants: dict[str, list[ast.expr]] = defaultdict(list)
        self._fields: dict[str, list[ast.expr]] = defaultdict(list)
        self._calls: dict[str, list[ast.Call]] = defaultdict(list)
        self._inside: dict[int, ast.AST | None] = {}
        self._classes: dict[str, list[str]] = {}
        self._kinds: dict[str, set[str]] = defaultdict(set)
        """Class of ours → those made of it, itself too."""
        self._imports: dict[str, dict[str, str]] = defaultdict(dict)
        for folder in FOLDERS:
            for path in sorted((root / folder).rglob("*.py")):
                name = path.relative_to(root).as_posix()
                self.trees[name] = ast.parse(path.read_text(encoding="utf-8"))
                self._visit(self.trees[name], name, None, None)

    def _visit(self, node: ast.AST, name: str, function: ast.AST | None, owner: ast.ClassDef | None) -> None:
        self._inside[id(node)], self.file[id(node)] = function, name
        if isinstance(node, FUNCTION):
            names = [node.name] if owner is None or node.name != "__init__" else [node.name, owner.name]
            for each in names:
                self._functions[each].append(node)
            self._called[id(node)] += names[-1:]
            owner, function = None, node
        elif isinstance(node, ast.ClassDef):
            owner = node
            fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            self._classes[node.name] = [target.id for target in fields if isinstance(target, ast.Name)]
            for base in (node.name, *map(last_name, node.bases)):
                self._kinds[base].add(node.name)
        elif isinstance(node, ast.ImportFrom):
            self._imports[name].update({alias.asname or alias.name: (node.module or "").replace(".", "/") for alias in node.names})
        elif isinstance(node, ast.Call):
            self._calls[callee_of(node)].append(node)
            for keyword in node.keywords:
                self._fields[keyword.arg or ""].append(keyword.value)
        for target, value in given(node) if isinstance(node, GIVING) else ():
            if isinstance(target, ast.Attribute):
                self._fields[target.attr].append(value)
            elif function is None and isinstance(target, ast.Name):
                (self._constants if owner is None else self._fields)[target.id].append(value)
        for child in ast.iter_child_nodes(node):
            self._visit(child, name, function, owner)

    def named(self, node: ast.Name) -> Iterator[ast.AST]:
        """What a name can be: what its function gives it, catches as it or is called with, else the constant that it means."""
        function, known = self._inside.get(id(node)), False
        while isinstance(function, FUNCTION) and not known:
            for kind in _caught(function).get(node.id, ()):
                known = True
                yield from self._made(kind)
            for value in (*_local(function).get(node.id, ()), *self._passed(function, node.id)):
                known = True
                if value is not None:
                    yield value
            function = self._inside.get(id(function))
        if not known:
            yield from (value for value in self._constants.get(node.id, ()) if self._means(node.id, value, node))

    def _made(self, kind: str) -> Iterator[ast.AST]:
        """What errors of a class of ours are made of."""
        for name in self._kinds[kind] if kind in self._classes else ():
            yield from (argument for call in self._calls.get(name, ()) for argument in call.args)

    def fields(self, name: str) -> Iterator[ast.AST]:
        """What an attribute of that name can be: of a keyword, an assignment, a property, or a place in a call of its class."""
        yield from self._fields.get(name, ())
        functions = self._functions.get(name, ())
        for function in functions if len(functions) <= FEW else ():
            yield from self.returns(function)
        for owner, names in self._classes.items():
            if name in names:
                yield from (call.args[names.index(name)] for call in self._calls.get(owner, ()) if names.index(name) < len(call.args))

    def returned(self, call: ast.Call) -> Iterator[ast.AST]:
        """What a call of a function of ours can return."""
        for function in self._functions.get(callee_of(call), ()):
            plain = isinstance(call.func, ast.Name) and self._means(call.func.id, function, call)
            if plain or (isinstance(call.func, ast.Attribute) and self._is_method(call.func, function)):
                yield from self.returns(function)

    def _is_method(self, node: ast.Attribute, function: ast.AST) -> bool:
        """Whether `OBJECT.name` is that function: of that module, of this file's class, or the only one of that name."""
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        here, there = self.file[id(node)], self.file[id(function)]
        of_module = there.removesuffix(".py") == f"{self._imports[here].get(owner)}/{owner}"
        return of_module or (owner in ("self", "cls") and here == there) or len(self._functions[node.attr]) == 1

    def returns(self, function: ast.AST) -> Iterator[ast.AST]:
        """What a function can return."""
        for node in _nodes(function):
            if (
                isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)
                and node.value is not None
                and self._inside.get(id(node)) is function
            ):
                yield node.value

    def _means(self, name: str, target: ast.AST, place: ast.AST) -> bool:
        """Whether a plain name means what `target` defines: in the same file, or imported from its file."""
        here, there = self.file[id(place)], self.file[id(target)]
        return here == there or self._imports[here].get(name) == there.removesuffix(".py").removesuffix("/__init__")

    def _passed(self, function: FUNCTION, name: str) -> Iterator[ast.AST | None]:
        """What callers pass for a parameter; None at the least where it is one."""
        ordered = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        if name not in ordered and name not in [argument.arg for argument in function.args.kwonlyargs]:
            return
        yield None
        place = ordered.index(name) - (ordered[:1] in (["self"], ["cls"])) if name in ordered else -1
        for call in (call for owner in self._called[id(function)] for call in self._calls.get(owner, ())):
            if isinstance(call.func, ast.Name) and not self._means(call.func.id, function, call):
                continue
            yield from call.args[place : place + 1] if place >= 0 else ()
            yield from (keyword.value for keyword in call.keywords if keyword.arg == name)
        behind = len(ordered) - ordered.index(name) if name in ordered else 0
        if 0 < behind <= len(function.args.defaults):
            yield function.args.defaults[-behind]
        yield from (
            default
            for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
            if argument.arg == name and default is not None
        )


def callee_of(call: ast.Call) -> str:
    """The name of what is called, without where it is from."""
    return last_name(call.func)


def given(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each name with what a statement gives it, or adds to it; of several at once each with its own."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _each(target, [node.value])
    elif isinstance(node, NAMING) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, LOOPS):
        yield from _each(node.target, node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List) else [node.iter])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend", "insert", "add"):
        yield from ((node.func.value, argument) for argument in node.args)


def _each(target: ast.expr, values: list[ast.expr]) -> Iterator[tuple[ast.expr, ast.expr]]:
    for value in values:
        if isinstance(target, ast.Tuple):
            alike = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
            yield from zip(target.elts, value.elts if alike else [value] * len(target.elts), strict=True)
        else:
            yield target, value


def last_name(node: ast.expr) -> str:
    """A name without what it is of; "" for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@cache
def _nodes(function: ast.AST) -> list[ast.AST]:
    """All that a function is made of: several look through it."""
    return list(ast.walk(function))


@cache
def _caught(function: FUNCTION) -> Mapping[str, set[str]]:
    """Each name by which a function catches errors, with their classes."""
    classes: dict[str, set[str]] = defaultdict(set)
    for node in _nodes(function):
        if isinstance(node, ast.ExceptHandler) and node.name and node.type is not None:
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            classes[node.name].update(map(last_name, kinds))
    return classes


@cache
def _local(function: FUNCTION) -> Mapping[str, list[ast.expr]]:
    """Each plain name of a function with what it is given there."""
    values: dict[str, list[ast.expr]] = defaultdict(list)
    for node in _nodes(function):
        for target, value in given(node) if isinstance(node, GIVING) else ():
            if isinstance(target, ast.Name):
                values[target.id].append(value)
    return values
