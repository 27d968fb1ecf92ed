"""Fault codes are one enumeration: all of them are used and explained, and nothing says one as a literal."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from daemon.contract.faults.errors import Fault, Permanent
from daemon.contract.faults.fault_codes import FaultCode, OtherCode, code_of
from tests.layers.fault_codes import PAGE, ROOT, SOURCE, explanations, page
from tests.words.written import commands, is_key, keys, wrong_with


@functools.cache
def trees() -> list[tuple[Path, ast.Module]]:
    """The modules that speak of codes."""
    paths = [path for package in ("daemon", "handlers") for path in sorted((ROOT / package).rglob("*.py")) if path != SOURCE]
    texts = ((path, path.read_text("utf-8")) for path in paths)
    return [(path, ast.parse(text)) for path, text in texts if "FaultCode" in text or ".code" in text or "code=" in text]


def test_every_code_is_used() -> None:
    used = {
        node.attr
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "FaultCode"
    }
    assert sorted(set(FaultCode.__members__) - used) == [], "remove what nothing raises"


def test_no_code_is_said_or_compared_as_a_literal() -> None:
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            said: list[ast.expr] = []
            if isinstance(node, ast.Call):
                said = [word.value for word in node.keywords if word.arg == "code"]
            elif isinstance(node, ast.Compare) and any(isinstance(side, ast.Attribute) and side.attr == "code" for side in _sides(node)):
                # The diagnosis of an exporter's error has names of its own.
                said = [] if "diagnosis" in ast.unparse(node) else _sides(node)
            found += [f"{path.relative_to(ROOT)}:{node.lineno}: {text!r}" for part in said for text in _literals(part)]
    assert found == []


def _literals(said: ast.expr) -> list[str]:
    """The strings that an expression may give, not those that it calls or indexes something with."""
    if isinstance(said, ast.Constant):
        return [said.value] if isinstance(said.value, str) else []
    parts = said.elts if isinstance(said, ast.Tuple | ast.List | ast.Set) else ()
    parts = (said.body, said.orelse) if isinstance(said, ast.IfExp) else parts
    return [text for part in parts for text in _literals(part)]


def _sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def test_the_page_of_codes_is_what_the_source_says() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `python -m tests.layers.fault_codes`"


def test_every_code_says_what_it_means_and_is_spelled_as_its_name() -> None:
    explained = [code for codes in explanations().values() for code in codes]
    assert explained == [str(code) for code in FaultCode]
    assert all(code.name == code.value.upper().replace("-", "_") for code in FaultCode)


ADVICE = {code: said.advice for codes in explanations().values() for code, said in codes.items()}


def test_every_code_says_what_to_do_by_commands_and_keys_that_exist() -> None:
    assert [code for code, advice in ADVICE.items() if not advice.endswith(".")] == [], 'add "To do: …" below the meaning'
    assert [(code, command) for code, advice in ADVICE.items() for command in commands(advice) if wrong_with(command)] == []
    assert [(code, key) for code, advice in ADVICE.items() for key in keys(advice) if not is_key(key)] == []


def test_the_advice_for_a_code_names_every_key_that_the_remedies_name() -> None:
    named: dict[str, set[str]] = {}
    for _, tree in trees():
        for code, remedy in _remedies(tree):
            named.setdefault(FaultCode[code].value, set()).update(key for key in keys(remedy) if is_key(key))
    missing = {code: sorted(found - keys(ADVICE[code])) for code, found in named.items() if found - keys(ADVICE[code])}
    assert missing == {}, "what to do about a code must not leave out what its sentence advises"
    assert sum(map(len, named.values())) > 30


def _remedies(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name of each code that is raised or given with a remedy in so many words, and these words."""
    constants = _assigned(tree.body)
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        names = {**constants, **_assigned(ast.walk(function))}
        for node in ast.walk(function):
            if not isinstance(node, ast.Call | ast.Tuple):
                continue
            said, keywords = (node.args, node.keywords) if isinstance(node, ast.Call) else (node.elts, [])
            codes = [part.attr for part in [*said, *(word.value for word in keywords)] if _is_code(part)]
            given = [word.value for word in keywords if word.arg == "remedy"]
            after = next((number for number, part in enumerate(said) if _is_code(part)), None)
            # Behind the code come operation, cause and remedy; where the operation is known already, cause and remedy.
            given += said[after + 2 : after + 4][-1:] if after is not None else []
            yield from ((code, _text(remedy, names).partition("for example --set")[0]) for code in codes for remedy in given)


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Name → all the words that it is set to."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = f"{found.get(node.targets[0].id, '')} {_text(node.value, {})}"
    return found


def _is_code(part: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "FaultCode"


def _text(part: ast.expr, names: dict[str, str]) -> str:
    """The words of a text that is put together of literals and of names of such."""
    said = [node for node in ast.walk(part) if isinstance(node, ast.Constant | ast.Name)]
    return " ".join(str(one.value) if isinstance(one, ast.Constant) else names.get(one.id, "") for one in said)


def test_in_each_group_codes_stand_in_alphabetical_order() -> None:
    for group, codes in explanations().items():
        assert list(codes) == sorted(codes), group


@pytest.mark.parametrize("code", ["vendor.too-odd", "exit-137", "a-code-of-the-next-version"])
def test_a_fault_with_a_code_that_is_not_ours_is_read_and_written_as_it_is(code: str) -> None:
    text = Permanent(OtherCode(code), "export", "it is odd", "make it even").fault.model_dump_json()
    fault = Fault.model_validate_json(text)
    assert (fault.code, type(fault.code)) == (code, str)
    assert code_of(code) == code
    assert fault.model_dump_json() == text and f'"code":"{code}"' in text


def test_a_fault_that_is_read_has_the_member_of_its_code() -> None:
    fault = Fault.model_validate_json('{"code": "disk-full", "operation": "write", "cause": "it is full", "remedy": "free space"}')
    assert fault.code is FaultCode.DISK_FULL and code_of("disk-full") is FaultCode.DISK_FULL
    assert '"code":"disk-full"' in fault.model_dump_json()


@pytest.mark.slow
def test_the_type_checker_refuses_a_code_as_a_literal(tmp_path: Path) -> None:
    wrong = (
        'Permanent("disk-full", "", "", "")',
        'Retryable("disk-full", "", "", "")',
        'Retryable.after(1, "disk-full", "", "", "")',
        'UsageError("disk-full", "", "", "")',
        'Fault(code="disk-full", operation="", cause="", remedy="")',
    )
    right = 'Permanent(OtherCode("vendor.odd"), "", "", "")'
    names = "from daemon.contract.faults.errors import Fault, Permanent, Retryable, UsageError"
    (tmp_path / "said.py").write_text("\n".join([names, "from daemon.contract.faults.fault_codes import OtherCode", *wrong, right]))
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(tmp_path / "said.py")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert [line.split(":")[1] for line in done.stdout.splitlines() if "[arg-type]" in line] == ["3", "4", "5", "6", "7"], done.stdout
