"""The sentences that are recorded in English: every template of which the source makes a fault, a reason or a warning, found by its AST.

An argument of a call that makes one is followed to what it can be: literals, f-strings, both sides of a choice, what a name was given, what
a function returns and what its callers pass. An f-string is a template with a placeholder for each value: `cannot read {name}`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.words.project import FUNCTION, GIVING, Project, callee_of, given, last_name
from tests.words.templates import is_prose, parts_of, template_of, terms_of

ERRORS = frozenset({"CkptdError", "Permanent", "Retryable", "UsageError", "Fault", "after"})
"""Classes that are made with an operation, a cause and a remedy."""
SHOWN = frozenset({
    "operation", "cause", "remedy", "reasons", "warnings", "notes", "missing", "problems", "unreadable", "unwell", "why", "elsewhere",
    "limited", "method", "needs", "no_base", "why_not_moved",
})  # fmt: skip
"""Keywords whose values a person reads."""
PROGRESS = frozenset({"progress", "_progress", "tell"})
"""Functions that are called with a share and what is done."""
COLLECTED = frozenset({"notes", "problems", "reasons", "warnings"})
"""Names of lists of such texts, which functions are given and add to."""
TELLING = re.compile(r"(?:^|_)(?:faults?|problems|warnings|difference)$")
"""Functions that return such texts, or None: some are looked up by their name."""
IN_MAPPINGS = frozenset({"operation", "cause", "remedy", "needs", "told"})
"""Names in a mapping whose values are such texts."""
TEXTS = SHOWN | {
    "advice", "delete", "does", "failing_types", "fix", "lacks", "limit", "manual", "meaning", "means", "not_types", "note", "problem",
    "purpose", "reason", "refusal", "refused", "said", "sentence", "text", "texts", "what", "words",
}  # fmt: skip
"""Attributes whose values are followed."""
OTHERS = frozenset({"translated", "translated_plural", "to_translate"})
"""Functions whose texts are in the other catalogue."""
OF_OBJECT = frozenset(
    {"join", "format", "get", "removesuffix", "removeprefix", "replace", "rstrip", "strip", "capitalize", "items", "values"}
)
OF_ARGUMENTS = frozenset({"join", "get", "next", "sorted", "list", "tuple", "filter", "format", "fromkeys", "shortened", "cast", "str"})
"""Methods and functions whose result is made of what they are called on, or with."""
DEPTH = 10
"""How many names, calls and returns a text is followed through."""
APART = (
    "daemon/cli/views/", "daemon/operating/wording/",
    "daemon/cli/demo/", "daemon/journal/outbox.py", "daemon/operating/monitoring/metrics/table.py", "handlers/report/",
    "daemon/config/reference.py", "daemon/config/template.py", "daemon/contract/advice/", "handlers/demo/", "handlers/texts/built_in.py",
    "daemon/contract/disk/answers.py", "daemon/running/rules/reads.py", "handlers/folder/hard_texts.py",
    "daemon/publishing/telling/messages.py", "daemon/publishing/telling/quiet.py",
    "handlers/folder/examples/", "handlers/validate/files/probes.py", "handlers/onnx/activations/contract.py",
    "handlers/validate/outside/chat.py", "handlers/executorch/runner/runner_trial.py",
)  # fmt: skip
"""Files whose sentences are translated where they are made, or are for no person."""
WHOLE = (
    "daemon/checkpoints/", "daemon/config/", "daemon/operating/diagnosis/", "daemon/operating/monitoring/", "daemon/running/rules/",
    "daemon/publishing/exchange/", "daemon/contract/models/", "daemon/contract/sharded/", "daemon/contract/disk/", "daemon/watching/",
    "daemon/system/filesystems/disks.py", "daemon/system/processes/rivals.py", "daemon/publishing/keeping.py",
    "daemon/publishing/retention.py", "daemon/installing/", "handlers/validate/findings.py", "handlers/validate/files/",
    "handlers/validate/folders/", "handlers/validate/length/", "handlers/validate/outside/", "handlers/validate/speeds/",
    "handlers/validate/twins/", "handlers/convert/", "handlers/gguf/reading/", "handlers/gguf/twin/", "handlers/merge/engine/readback.py",
    "handlers/models/sentence.py", "handlers/static_programs/published/feeding.py",
    "daemon/contract/jobs/fallbacks.py", "daemon/contract/jobs/options.py", "daemon/contract/jobs/verdicts.py",
    "daemon/journal/rewrites.py", "daemon/operating/measuring/", "daemon/operating/service.py", "daemon/publishing/telling/",
    "daemon/operating/integrity/maintenance.py", "daemon/contract/delivering/", "handlers/deliver/servers/answers.py",
    "handlers/deliver/servers/options.py", "handlers/deliver/repository/signature.py",
    *(f"handlers/deliver/{kind}/declaration.py" for kind in ("command", "hub", "oci", "repository", "rsync", "servers/ollama", "store")),
)  # fmt: skip
"""Folders of which every sentence is shown."""
_SAID = re.compile(r"^\W*[A-Z]|\.$|^[\n#]")
"""A whole sentence of a command: printed where it stands, and translated there."""
_FORMATTED = re.compile(r"(?<!\{)\{[a-z_]+\}(?!\})")
"""In a text that `format` fills in."""
_VERB = re.compile(r"[a-z]+ing(?: [a-z]+)* \{")
"""What is done, with a value behind it."""
_PLACE = re.compile(r"(?<!\{)\{\w+\}(?!\})")


class Templates:
    """What the source makes its recorded sentences of."""

    def __init__(self, root: Path) -> None:
        self.places: dict[str, str] = {}
        """Template → FILE:LINE where it first stands. Of those that differ only in the names of their values the first counts."""
        self.sentences: dict[str, set[int]] = {}
        """Template → the places of its values that can be sentences themselves."""
        self._shapes: dict[str, str] = {}
        self._seen: set[int] = set()
        self._sources: dict[int, set[int]] = defaultdict(set)
        """Node → those that can be what it is, or are made of it."""
        self._prose: set[int] = set()
        self._values: list[tuple[str, list[ast.expr]]] = []
        """Each template that was met, with the expressions of its values."""
        self._queue: deque[tuple[ast.AST, int]] = deque()
        self._brief: set[int] = set()
        """Nodes of what says how far something is: a verb and a name are enough."""
        self._project = Project(root)
        for name, tree in self._project.trees.items():
            nodes = list(ast.walk(tree))
            calls = (node for node in nodes if isinstance(node, ast.Call) and callee_of(node) in PROGRESS)
            self._brief.update(id(argument) for call in calls for argument in call.args[1:2])
            for node in _shown(nodes, whole=name.startswith(WHOLE)):
                self._follow(node, 0)
            for node in nodes:
                if isinstance(node, FUNCTION) and TELLING.search(node.name) and "str" in ast.unparse(node.returns or ast.Constant(None)):
                    for value in self._project.returns(node):
                        self._follow(value, 0)
        while self._queue:
            node, depth = self._queue.popleft()
            for part, more in self._step(node):
                self._sources[id(part)].add(id(node))
                self._follow(part, depth + more)
        speaking = self._speaking()
        for template, values in self._values:
            places = self.sentences.setdefault(template, set())
            places.update(place for place, value in enumerate(values) if id(value) in speaking)

    def _speaking(self) -> set[int]:
        """Every expression that can be a sentence."""
        known, queue = set(self._prose), deque(self._prose)
        while queue:
            for node in self._sources[queue.popleft()] - known:
                known.add(node)
                queue.append(node)
        return known

    def _follow(self, node: ast.AST, depth: int) -> None:
        if id(node) not in self._seen and depth <= DEPTH:
            self._seen.add(id(node))
            self._queue.append((node, depth))

    def _emit(self, template: str, node: ast.AST, values: Sequence[ast.expr] = ()) -> None:
        file = self._project.file.get(id(node), "")
        if file.startswith(APART) or (file.startswith("daemon/cli/") and _SAID.search(template)):
            return
        for line in template.split("\n"):
            if is_prose(line) or (id(node) in self._brief and _VERB.match(line)):
                text = line if line == template else line.strip()
                first = self._shapes.setdefault(_PLACE.sub("{}", text), text)
                self.places.setdefault(first, f"{file}:{getattr(node, 'lineno', 0)}")
                self._prose.add(id(node))
                before = len(_PLACE.findall(template[: template.index(line)]))
                self._values.append((first, list(values[before : before + len(_PLACE.findall(line))])))

    def _step(self, node: ast.AST) -> Iterator[tuple[ast.AST, int]]:
        """What a text is made of, each with 1 where it stands elsewhere."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                self._emit(node.value if _FORMATTED.search(node.value) else node.value.replace("{", "{{").replace("}", "}}"), node)
        elif isinstance(node, ast.JoinedStr):
            values = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
            self._emit(template_of(node), node, values)
            yield from ((value, 0) for value in values)
        elif isinstance(node, ast.BinOp):
            yield from self._added(node)
        elif isinstance(node, ast.Call):
            if callee_of(node) not in OTHERS:
                yield from self._called(node)
        elif isinstance(node, ast.Name):
            yield from ((value, 1) for value in self._project.named(node))
        elif isinstance(node, ast.Attribute):
            yield from ((value, 1) for value in (self._project.fields(node.attr) if node.attr in TEXTS else ()))
        else:
            yield from ((part, 0) for part in _parts(node))

    def _added(self, node: ast.BinOp) -> Iterator[tuple[ast.AST, int]]:
        """A sum of texts is one template."""
        terms = terms_of(node)
        if len(terms) > 1:
            whole = ast.JoinedStr(values=[part for term in terms for part in parts_of(term)])
            self._emit(template_of(whole), node, [part.value for part in whole.values if isinstance(part, ast.FormattedValue)])
            self._seen.update(id(term) for term in terms if isinstance(term, ast.Constant))
        yield from ((part.value, 0) for term in terms for part in parts_of(term) if isinstance(part, ast.FormattedValue))

    def _called(self, node: ast.Call) -> Iterator[tuple[ast.AST, int]]:
        yield from ((value, 1) for value in self._project.returned(node))
        if isinstance(node.func, ast.Attribute) and node.func.attr in OF_OBJECT:
            yield node.func.value, 0
        if callee_of(node) in OF_ARGUMENTS:
            yield from ((argument, 0) for argument in node.args)


def _shown(nodes: Sequence[ast.AST], *, whole: bool) -> Iterator[ast.AST]:
    """Every text of a file, given as its nodes from the top down, that a person reads."""
    apart: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            apart.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            apart.update(map(id, node.values))
        elif isinstance(node, ast.Call):
            apart.update(map(id, node.args) if callee_of(node) in OTHERS else ())
            yield from _said(node)
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield from (value for key, value in pairs if isinstance(key, ast.Constant) and key.value in IN_MAPPINGS)
        if isinstance(node, GIVING):
            yield from (value for target, value in given(node) if last_name(target) in COLLECTED)
        if whole and isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in apart:
            yield node


def _said(call: ast.Call) -> Iterator[ast.AST]:
    callee = callee_of(call)
    has_code = any(isinstance(part, ast.Attribute) and getattr(part.value, "id", "") == "FaultCode" for part in call.args)
    yield from call.args if callee in ERRORS or has_code else call.args[1:2] if callee == "from_oserror" else ()
    yield from call.args[1:2] if callee in PROGRESS else ()
    yield from (keyword.value for keyword in call.keywords if keyword.arg in SHOWN)


def _parts(node: ast.AST) -> list[ast.expr]:
    """What an expression of another kind can be, or is made of."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.BoolOp | ast.Dict):
        return node.values
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return node.elts
    if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
        return [node.elt]
    if isinstance(node, ast.Lambda):
        return [node.body]
    return [node.value] if isinstance(node, ast.DictComp | ast.Starred | ast.NamedExpr | ast.Subscript | ast.Await) else []
