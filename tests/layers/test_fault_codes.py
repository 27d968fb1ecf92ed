"""Fault codes are one enumeration: all of them are used and explained, and nothing says one as a literal."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.contract.errors import Fault, Permanent
from daemon.contract.fault_codes import FaultCode, OtherCode, code_of
from tests.layers.fault_codes import PAGE, ROOT, SOURCE, meanings, page


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for package in ("daemon", "handlers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path != SOURCE:
                yield path, ast.parse(path.read_text("utf-8"))


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
    explained = [code for codes in meanings().values() for code in codes]
    assert explained == [str(code) for code in FaultCode]
    assert all(code.name == code.value.upper().replace("-", "_") for code in FaultCode)


def test_in_each_group_codes_stand_in_alphabetical_order() -> None:
    for group, codes in meanings().items():
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
    names = "from daemon.contract.errors import Fault, Permanent, Retryable, UsageError"
    (tmp_path / "said.py").write_text("\n".join([names, "from daemon.contract.fault_codes import OtherCode", *wrong, right]))
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(tmp_path / "said.py")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert [line.split(":")[1] for line in done.stdout.splitlines() if "[arg-type]" in line] == ["3", "4", "5", "6", "7"], done.stdout
