"""The sentences that are recorded in English: every template of which the source makes a fault, a reason or a warning, found by its AST.

An argument of a call that makes one is followed to what it can be: literals, f-strings, both sides of a choice, what a name was given, what
a function returns and what its callers pass. An f-string is a template with a placeholder for each value: `cannot read {name}`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict, deque
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog

from daemon.cli.mistakes import CAUSES
from daemon.contract.language.recorded import JOINED
from tests.words import messages
from tests.words.messages import ROOT, Message, as_compiled, as_text, catalogue, translations

FILE = messages.FILE.with_stem("recorded")
COMPILED = FILE.with_suffix(".mo")

SOURCES = ("daemon", "handlers")
ERRORS = frozenset({"CkptdError", "Permanent", "Retryable", "UsageError", "Fault", "after"})
"""Classes that are made with an operation, a cause and a remedy."""
SHOWN = frozenset({"operation", "cause", "remedy", "reasons", "warnings", "notes", "missing", "problems", "unreadable", "unwell", "why"})
"""Keywords whose values a person reads."""
TEXTS = frozenset({*SHOWN, "reason", "text", "texts", "words", "note", "said", "problem", "refusal", "sentence", "delete", "advice", "fix", "does", "means", "what", "limit", "lacks", "purpose", "refused"})
"""Attributes whose values are followed."""
METHODS = frozenset({"get", "join", "format", "items", "values", "read", "write", "open", "find", "add", "append", "pop", "split", "strip"})
DEPTH = 7
"""How many names, calls and returns a text is followed through."""
APART = ("daemon/cli/views/", "daemon/cli/demo/", "daemon/journal/outbox.py", "daemon/operating/monitoring/metrics.py", "handlers/report/", "daemon/config/reference.py", "daemon/config/template.py", "daemon/contract/advice/", "handlers/demo/", "handlers/texts/built_in.py", "daemon/contract/disk/answers.py", "daemon/running/rules/reads.py", "handlers/folder/hard_texts.py", "handlers/validate/outside/chat.py", "handlers/executorch/runner/runner_trial.py")
"""Files whose sentences are translated where they are made, or are for no person."""
WHOLE = ("daemon/checkpoints/", "daemon/config/", "daemon/operating/diagnosis/", "daemon/operating/monitoring/", "daemon/running/rules/", "daemon/publishing/exchange/", "daemon/contract/models/", "daemon/contract/sharded/", "daemon/contract/disk/", "handlers/validate/findings.py", "daemon/watching/")
"""Folders of which every sentence is shown."""
_WORDS = re.compile(r"[A-Za-z]{2,}")
_SAID = re.compile(r"^\W*[A-Z]|\.$|^[\n#]")
"""A whole sentence: printed where it stands, and translated there."""
_CODE = re.compile(r"^(?:--|#|<!--|\\\(|ckptd |pip install |(?:sudo )?setfacl )|\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|DESC|Promise)\b|^created, ")
"""What is for a program: statements and commands alone."""
_FORMATTED = re.compile(r"(?<!\{)\{[a-z_]+\}(?!\})")
"""In a text that `format` fills in."""
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def is_prose(template: str) -> bool:
    """Whether a text has words of a sentence, outside of what stands between backticks or in placeholders."""
    if " " not in template or _CODE.search(template):
        return False
    bare = re.sub(r"\{[^{}]*\}|`[^`]*`|\S*[._/=<>]\S*", " ", template)
    return len(_WORDS.findall(bare)) >= 2 and any(word.islower() for word in _WORDS.findall(bare))


class Templates:
    """What the source makes its recorded sentences of."""

    def __init__(self, root: Path) -> None:
        self.places: dict[str, str] = {}
        """Template → FILE:LINE where it first stands."""
        self.unresolved: dict[str, str] = {}
        self._functions: dict[str, list[ast.AST]] = defaultdict(list)
        self._constants: dict[str, list[ast.expr]] = defaultdict(list)
        self._fields: dict[str, list[ast.expr]] = defaultdict(list)
        self._calls: dict[str, list[ast.Call]] = defaultdict(list)
        self._inside: dict[int, ast.AST | None] = {}
        self._file: dict[int, str] = {}
        self._classes: dict[str, list[str]] = {}
        self._imports: dict[str, dict[str, str]] = defaultdict(dict)
        self._seen: set[int] = set()
        self._queue: deque[tuple[ast.AST, int]] = deque()
        trees = {}
        for folder in SOURCES:
            for path in sorted((root / folder).rglob("*.py")):
                name = path.relative_to(root).as_posix()
                trees[name] = ast.parse(path.read_text(encoding="utf-8"))
                self._index(trees[name], name)
        for name, tree in trees.items():
            self._collect(tree, name)
        while self._queue:
            node, depth = self._queue.popleft()
            self._step(node, depth)

    def _index(self, tree: ast.AST, name: str) -> None:
        def visit(node: ast.AST, function: ast.AST | None, owner: ast.ClassDef | None) -> None:
            self._inside[id(node)] = function
            self._file[id(node)] = name
            if isinstance(node, _FUNCTION):
                self._functions[node.name].append(node)
                if owner is not None and node.name == "__init__":
                    self._functions[owner.name].append(node)
            if isinstance(node, ast.ClassDef):
                self._classes[node.name] = [item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._imports[name][alias.asname or alias.name] = (node.module or "").replace(".", "/")
            if isinstance(node, ast.Call):
                callee = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
                self._calls[callee].append(node)
                for keyword in node.keywords:
                    if keyword.arg:
                        self._fields[keyword.arg].append(keyword.value)
            if function is None and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                        if isinstance(part, ast.Name):
                            value = node.value
                            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                                value = value.elts[target.elts.index(part)]
                            (self._fields if owner is not None else self._constants)[part.id].append(value)
            for target, value in _given(node):
                if isinstance(target, ast.Attribute):
                    self._fields[target.attr].append(value)
            inner = node if isinstance(node, _FUNCTION) else function
            for child in ast.iter_child_nodes(node):
                visit(child, inner, node if isinstance(node, ast.ClassDef) else None if isinstance(node, _FUNCTION) else owner)

        visit(tree, None, None)
        
    def _collect(self, tree: ast.AST, name: str) -> None:
        whole = name.startswith(WHOLE)
        ignored: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                ignored.add(id(node.value))
            elif isinstance(node, ast.JoinedStr):
                ignored.update(id(part) for part in node.values)
            elif isinstance(node, ast.Call):
                self._look_at(node, name)
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value in ("operation", "cause", "remedy"):
                        self._follow(value, 0)
            if whole and isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in ignored:
                self._follow(node, 0)

    def _look_at(self, call: ast.Call, name: str) -> None:
        callee = call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""
        has_code = any(isinstance(a, ast.Attribute) and isinstance(a.value, ast.Name) and a.value.id == "FaultCode" for a in call.args)
        if callee in ERRORS or has_code:
            for argument in call.args:
                self._follow(argument, 0)
        if callee == "from_oserror" and len(call.args) > 1:
            self._follow(call.args[1], 0)
        for keyword in call.keywords:
            if keyword.arg in SHOWN:
                self._follow(keyword.value, 0)

    def _emit(self, template: str, node: ast.AST) -> None:
        file = self._file.get(id(node), "")
        if is_prose(template) and not file.startswith(APART) and not (file.startswith("daemon/cli/") and _SAID.search(template)):
            self.places.setdefault(template, f"{self._file.get(id(node), '?')}:{getattr(node, 'lineno', 0)}")

    def _follow(self, node: ast.AST | None, depth: int) -> None:
        if node is None or id(node) in self._seen or depth > DEPTH:
            return
        self._seen.add(id(node))
        self._queue.append((node, depth))

    def _step(self, node: ast.AST, shown: int) -> None:
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                self._emit(node.value if _FORMATTED.search(node.value) else node.value.replace("{", "{{").replace("}", "}}"), node)
        elif isinstance(node, ast.JoinedStr):
            self._emit(template_of(node), node)
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    self._follow(part.value, shown)
        elif isinstance(node, ast.IfExp):
            self._follow(node.body, shown)
            self._follow(node.orelse, shown)
        elif isinstance(node, ast.BoolOp):
            for value in node.values:
                self._follow(value, shown)
        elif isinstance(node, ast.BinOp):
            terms = _terms(node)
            if len(terms) > 1:
                self._emit(template_of(ast.JoinedStr(values=[part for term in terms for part in _parts(term)])), node)
                self._seen.update(id(term) for term in terms if isinstance(term, ast.Constant))
            for term in terms:
                for part in _parts(term):
                    if isinstance(part, ast.FormattedValue):
                        self._follow(part.value, shown)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            for item in node.elts:
                self._follow(item, shown)
        elif isinstance(node, ast.Dict):
            for value in node.values:
                self._follow(value, shown)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            self._follow(node.elt, shown)
        elif isinstance(node, ast.DictComp):
            self._follow(node.value, shown)
        elif isinstance(node, ast.Starred | ast.NamedExpr | ast.Subscript | ast.Await):
            self._follow(node.value, shown)
        elif isinstance(node, ast.Lambda):
            self._follow(node.body, shown)
        elif isinstance(node, ast.Call):
            self._follow_call(node, shown)
        elif isinstance(node, ast.Name):
            self._follow_name(node, shown)
        elif isinstance(node, ast.Attribute):
            if node.attr in TEXTS:
                self._follow_field(node.attr, shown)

    def _follow_field(self, attr: str, shown: int) -> None:
        for value in self._fields.get(attr, ()):
            self._follow(value, shown + 1)
        self._follow_functions(attr, shown)
        for name, fields in self._classes.items():
            if attr in fields:
                for call in self._calls.get(name, ()):
                    if (place := fields.index(attr)) < len(call.args):
                        self._follow(call.args[place], shown + 1)

    def _follow_call(self, node: ast.Call, shown: int) -> None:
        callee = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if callee in ("translated", "translated_plural", "to_translate"):
            return  # of the other catalogue
        if isinstance(node.func, ast.Name):
            for function in self._functions.get(callee, ()):
                if self._is_visible(callee, function, node):
                    self._follow_returns(function, shown)
        elif isinstance(node.func, ast.Attribute) and callee not in METHODS:
            self._follow_method(node.func, shown)
        if isinstance(node.func, ast.Attribute) and callee in ("join", "format", "get", "removesuffix", "removeprefix", "replace", "rstrip", "strip", "capitalize", "items", "values"):
            self._follow(node.func.value, shown)
        if callee in ("join", "get", "next", "sorted", "list", "tuple", "filter", "format", "fromkeys", "shortened", "cast"):
            for argument in node.args:
                self._follow(argument, shown)

    def _is_visible(self, name: str, target: ast.AST, place: ast.AST) -> bool:
        """Whether a plain name means what `target` defines: in the same file, or imported from its file."""
        here, there = self._file[id(place)], self._file[id(target)]
        return here == there or self._imports[here].get(name) == there.removesuffix(".py").removesuffix("/__init__")

    def _follow_method(self, node: ast.Attribute, shown: int) -> None:
        """The functions that `OBJECT.name` can be: of that module, of this file's class, or the only one of that name."""
        functions, here = self._functions.get(node.attr, ()), self._file[id(node)]
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        module = self._imports[here].get(owner)
        for function in functions:
            there = self._file[id(function)].removesuffix(".py")
            if (owner in ("self", "cls") and there == here.removesuffix(".py")) or there == f"{module}/{owner}" or len(functions) == 1:
                self._follow_returns(function, shown)

    def _follow_functions(self, name: str, shown: int) -> None:
        functions = self._functions.get(name, ())
        if len(functions) <= 3:
            for function in functions:
                self._follow_returns(function, shown)

    def _follow_returns(self, function: ast.AST, shown: int) -> None:
        for node in ast.walk(function):
            if isinstance(node, ast.Return | ast.Yield) and node.value is not None and self._inside.get(id(node)) is function:
                self._follow(node.value, shown + 1)

    def _follow_name(self, node: ast.Name, shown: int) -> None:
        function = self._inside.get(id(node))
        hit = False
        while function is not None and not hit:
            hit = self._follow_local(function, node.id, shown)
            function = self._inside.get(id(function))
        if not hit:
            for value in self._constants.get(node.id, ()):
                if self._is_visible(node.id, value, node):
                    self._follow(value, shown + 1)

    def _follow_local(self, function: ast.AST, name: str, shown: int) -> bool:
        assert isinstance(function, _FUNCTION)
        hit = False
        for node in ast.walk(function):
            for target, value in _given(node):
                if isinstance(target, ast.Name) and target.id == name:
                    self._follow(value, shown + 1)
                    hit = True
                elif isinstance(target, ast.Tuple) and any(isinstance(e, ast.Name) and e.id == name for e in target.elts):
                    place = next(i for i, e in enumerate(target.elts) if isinstance(e, ast.Name) and e.id == name)
                    hit = True
                    if isinstance(value, ast.Tuple) and place < len(value.elts):
                        self._follow(value.elts[place], shown)
                    elif isinstance(node, ast.comprehension | ast.For) and isinstance(value, ast.Tuple | ast.List):
                        for item in value.elts:
                            self._follow(item.elts[place] if isinstance(item, ast.Tuple) and place < len(item.elts) else item, shown)
                    else:
                        self._follow(value, shown + 1)
        arguments = function.args
        ordered = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        if name in ordered or name in [a.arg for a in arguments.kwonlyargs]:
            hit = True
            self._follow_callers(function, name, ordered, shown)
        return hit

    def _follow_callers(self, function: ast.AST, name: str, ordered: list[str], shown: int) -> None:
        assert isinstance(function, _FUNCTION)
        names = [function.name]
        if function.name == "__init__":
            names = [n for n, functions in self._functions.items() if function in functions and n != "__init__"]
        for callee in names:
            for call in self._calls.get(callee, ()):
                if isinstance(call.func, ast.Name) and not self._is_visible(callee, function, call):
                    continue
                offset = 1 if ordered[:1] in (["self"], ["cls"]) else 0
                if name in ordered:
                    place = ordered.index(name) - offset
                    if 0 <= place < len(call.args):
                        self._follow(call.args[place], shown + 1)
                for keyword in call.keywords:
                    if keyword.arg == name:
                        self._follow(keyword.value, shown + 1)
        defaults = dict(zip(reversed(ordered), reversed(function.args.defaults)))
        if name in defaults:
            self._follow(defaults[name], shown)


def _given(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each name with what a statement gives it."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.comprehension):
        yield node.target, node.iter
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend", "insert", "add"):
        for argument in node.args:
            yield node.func.value, argument


def _terms(node: ast.expr) -> list[ast.expr]:
    """What is added to each other in a text."""
    return [*_terms(node.left), *_terms(node.right)] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else [node]


def _parts(node: ast.expr) -> list[ast.expr]:
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
        if callee in ("quoted", "str", "len", "shortened", "sorted", "repr", "int", "min", "max", "sum", "list", "shown", "counted") and node.args:
            return _name_of(node.args[0])
        return "list" if callee == "join" else callee.strip("_").lower() or "value"
    if isinstance(node, ast.Subscript):
        return _name_of(node.value)
    if isinstance(node, ast.BinOp):
        return _name_of(node.left)
    if isinstance(node, ast.IfExp):
        return "s" if isinstance(node.body, ast.Constant) and node.body.value in ("", "s") else "choice"
    return "value"


def catalogue_file() -> Catalog:
    """The catalogue of every template, with the translations that are known."""
    known = translations(FILE) if FILE.exists() else {}
    return catalogue([Message(text) for text in sorted({*Templates(ROOT).places, *JOINED, *CAUSES})], known)


def main() -> int:
    """Write both files; 1 where a template has no translation."""
    value = catalogue_file()
    FILE.write_bytes(as_text(value))
    COMPILED.write_bytes(as_compiled(value))
    lacking = [message.id for message in value if message.id and not message.string]
    for text in lacking:
        print(f"no translation: {text!r}")
    print(f"{len(value)} recorded sentences, {len(lacking)} without a translation, in {FILE.relative_to(ROOT)}")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
