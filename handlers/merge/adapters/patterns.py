"""PEFT's rules by which adapter_config.json names modules, with an end to the work that they may ask for.

Called by the merge's planning, and before PEFT itself matches anything, in a merge by PEFT. The rules are
those of `check_target_module_exists` and `get_pattern_key` of PEFT (0.21): the first key of rank_pattern for which
`re.match(rf"(.*\\.)?({key})$", module)` holds, `re.fullmatch` of a target. They are Python's regular expressions, so only Python's own
engine gives PEFT's answers: RE2 lacks look-around and back-references, and the `regex` package, which has a time limit, differs in
corners (nested sets, case folding, version 1 behaviour). So expressions are matched by `re` in a process of its own (`pattern_program`),
which the kernel ends when its CPU seconds are used up. Names without an operator, which nearly all are, need no expression: they are
looked up, in a time that grows with their number and not with that of the modules.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.configs import shown
from handlers.child.bounded import BoundedProcess, TooMuch

OPERATION = "match the adapter's patterns"
CPU_SECONDS = 10
"""For all expressions of one adapter: thousands of ordinary ones on a thousand modules take less than one."""
MEMORY = 1 << 30
MOST_WORK = 30_000_000
"""Comparisons of names that hold dots, which match any character, before it is given up: some seconds."""
MANY = 250
"""Keys of a pattern, or names of target modules, above which those that match nothing are left out before PEFT gets them: it compares each
with each module, and Python remembers the last 512 expressions that it compiled."""
MOVED = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Layers of experts that transformers 5 no longer builds: PEFT still takes their names, and targets what became of them."""
_PLAIN = re.compile(r"[\w.-]+")
"""Keys that hold no operator but the dot."""


@dataclass(frozen=True)
class _Question:
    """Which of `names` match which expression first. `limits`: for each name, the place from which on no expression is asked."""

    field: str
    expressions: list[tuple[int, str]]
    names: list[str]
    limits: list[int]
    whole: bool = False


def _ask(questions: Sequence[_Question], folder: Path) -> list[dict[str, int]]:
    """Return by question: name → place of the first expression that matches. Permanent where that takes too long, or it is invalid."""
    if not any(question.expressions and question.names for question in questions):
        return [{} for _ in questions]
    path = folder / "adapter_config.json"
    process = BoundedProcess("handlers.merge.adapters.pattern_program", cpu_seconds=CPU_SECONDS, memory=MEMORY)
    try:
        said = process.ask([(question.expressions, question.whole, question.names, question.limits) for question in questions])
    except TooMuch as error:
        raise _too_slow(sorted({question.field for question in questions if question.expressions}), str(error), path) from None
    finally:
        process.close()
    if "wrong" in said:
        question = questions[said["question"]]
        pattern = dict(question.expressions)[said["wrong"]]
        raise Permanent(
            FaultCode.BAD_ADAPTER_CONFIG, OPERATION,
            f"{question.field} contains a pattern that is not a valid regular expression ({said['why']}): {shown(pattern)}",
            f"correct {question.field}, or name the modules in it in plain text", path=path,
        )  # fmt: skip
    return [
        {question.names[int(name)]: place for name, place in places.items()}
        for question, places in zip(questions, said["answers"], strict=True)
    ]


def _too_slow(fields: list[str], why: str, path: Path) -> Permanent:
    """`why`: what the matching does, as a clause: "takes more than 10 s"."""
    return Permanent(
        FaultCode.PATTERNS_TOO_SLOW, OPERATION, f"matching the patterns in {' and '.join(fields)} {why}",
        "name the modules in plain text, or write the pattern without nested repetitions; PEFT would hang on it too",
        path=path,
    )  # fmt: skip


def _endings(modules: Iterable[str]) -> dict[str, list[str]]:
    """Each ending of a module's path that begins at one of its parts → the modules that have it."""
    owners: dict[str, list[str]] = {}
    for module in modules:
        start = 0
        while True:
            owners.setdefault(module[start:], []).append(module)
            start = module.find(".", start) + 1
            if not start:
                break
    return owners


class _Dotted:
    """Finds the endings that a key matches other than by being equal: a dot of the key may stand for any character."""

    def __init__(self, endings: Collection[str]) -> None:
        self._sized: dict[int, list[tuple[int, str]]] = {}
        for ending in endings:
            self._sized.setdefault(len(ending), []).append((ending.count("."), ending))
        self._tables: dict[tuple[int, int, int], dict[str, list[str]]] = {}
        self.work = 0

    def matches(self, key: str) -> Iterator[str]:
        """Endings that are not the key and that it matches: with letters where it has some of its dots."""
        dots = key.count(".")
        if not dots or len(key) not in self._sized:
            return
        head, tail = key[: key.index(".")], key[key.rindex(".") + 1 :]
        place = (len(key), dots, len(head))
        if place not in self._tables:
            table: dict[str, list[str]] = {}
            for other, ending in self._sized[len(key)]:
                if other < dots:
                    table.setdefault(ending[: len(head)], []).append(ending)
            self._tables[place] = table
            self.work += len(self._sized[len(key)])
        for ending in self._tables[place].get(head, ()):
            self.work += 1
            if ending.endswith(tail) and all(mine in (".", its) for mine, its in zip(key, ending, strict=True)):
                yield ending


def first_keys(keys: Collection[str], modules: Collection[str], field: str, folder: Path) -> dict[str, str]:
    """Module → the first key of rank_pattern or alpha_pattern that names it, as PEFT finds it; others are left out.

    `field`: what the error names. Permanent for an expression that takes too long, or is none, where PEFT comes to it.
    """
    (first,) = _first_keys({field: list(keys)}, modules, folder, [])
    return first


def _first_keys(fields: Mapping[str, list[str]], modules: Collection[str], folder: Path, more: list[_Question]) -> list[dict[str, str]]:
    """Return the same for several fields, and the questions `more`, at once."""
    plain = [_plain_places(keys, modules, field, folder) for field, keys in fields.items()]
    questions = []
    names = list(modules)
    for (field, keys), places in zip(fields.items(), plain, strict=True):
        odd = any("\n" in name for name in names)
        expressions = [(place, rf"(.*\.)?({key})$") for place, key in enumerate(keys) if odd or not _PLAIN.fullmatch(key)]
        limits = [len(keys) if "\n" in name else places.get(name, len(keys)) for name in names]
        questions.append(_Question(field, expressions, names if expressions else [], limits if expressions else []))
    answers = _ask([*questions, *more], folder)
    return [
        {name: keys[place] for name, place in {**places, **answer}.items()}
        for keys, places, answer in zip(fields.values(), plain, answers, strict=False)
    ]


def _plain_places(keys: Sequence[str], modules: Collection[str], field: str, folder: Path) -> dict[str, int]:
    """Module → place of the first key without operators that names it."""
    if not keys:
        return {}
    endings = _endings(name for name in modules if "\n" not in name)
    dotted, places = _Dotted(endings), dict[str, int]()
    for place, key in enumerate(keys):
        if not _PLAIN.fullmatch(key):
            continue
        for ending in (key, *dotted.matches(key)):
            owners = endings.get(ending, ())
            dotted.work += len(owners)
            for module in owners:
                places.setdefault(module, place)
        if dotted.work > MOST_WORK:
            raise _too_slow([field], f"takes more than {CPU_SECONDS} s", folder / "adapter_config.json")
    return places


def named(targets: str | Collection[str] | None, modules: Collection[str], field: str, folder: Path) -> set[str]:
    """Return the modules that target_modules or exclude_modules names: an expression for the whole path, or a list of endings."""
    if isinstance(targets, str):
        (matched,) = _ask([_Question(field, [(0, targets)], list(modules), [1] * len(modules), whole=True)], folder)
        return set(matched)
    wanted = set(targets or ())
    return {module for module in modules if any(module[start:] in wanted for start in _starts(module))} if wanted else set()


def _starts(module: str) -> list[int]:
    return [0, *(place + 1 for place, character in enumerate(module) if character == ".")]


def bound(config: Any, names: Collection[str], folder: Path) -> None:
    """Prove that PEFT's own matching of `config`, a PeftConfig, over `names` comes to an end, and make it short.

    `names`: the paths of all modules of a model and the names of all its parameters, since PEFT matches both (parameters:
    `target_parameters`). Where there are more than MANY keys or target modules, those that match none of `names` are left out of `config`,
    which changes nothing for those that do. Permanent as `first_keys`.
    """
    ordered = sorted(name for name in names if name)
    fields = {} if _method(config) == "ADALORA" else {
        name: list(value) for name, value in vars(config).items() if name.endswith("_pattern") and isinstance(value, dict) and value
    }  # fmt: skip
    chosen_keys = _first_keys(fields, ordered, folder, list(_questions(config, ordered)))
    for field, chosen in zip(fields, chosen_keys, strict=True):
        if len(fields[field]) > MANY:
            used = set(chosen.values())
            setattr(config, field, {key: value for key, value in getattr(config, field).items() if key in used})
    for field in ("target_modules", "exclude_modules"):
        listed = getattr(config, field, None)
        if isinstance(listed, list | set | tuple) and len(listed) > MANY:
            endings, moved = _endings(ordered), {last: target for target in sorted(listed) if (last := target.rpartition(".")[2]) in MOVED}
            setattr(config, field, {target for target in listed if target in endings} | set(moved.values()) or set(sorted(listed)[:1]))


def _method(config: Any) -> str:
    kind = getattr(config, "peft_type", "")
    return str(getattr(kind, "value", kind)).upper()


def _questions(config: Any, names: list[str]) -> Iterator[_Question]:
    """Return what PEFT matches beside the keys of patterns: each expression as it writes it."""
    ask = functools.partial(_each, names)
    for field in ("target_modules", "exclude_modules"):
        if isinstance(given := getattr(config, field, None), str):
            yield from ask(field, [given], "{}", whole=True)
    yield from ask("modules_to_save", getattr(config, "modules_to_save", None), r"(^|.*\.){}($|\..*)")
    if getattr(config, "layers_to_transform", None) is not None:
        yield from ask("layers_pattern", getattr(config, "layers_pattern", None), r"(?:^|.*?\.){}\.(?P<idx>\d+)\.")


def _each(names: list[str], field: str, given: Any, form: str, *, whole: bool = False) -> Iterator[_Question]:
    listed = [given] if isinstance(given, str) else list(given or ())
    for pattern in listed:
        if isinstance(pattern, str) and (whole or not _PLAIN.fullmatch(pattern)):
            yield _Question(field, [(0, form.replace("{}", pattern, 1))], names, [1] * len(names), whole)
