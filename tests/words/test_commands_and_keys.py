"""Commands and keys that pages and messages name are those that the program takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.config.older_keys import HIDDEN
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from tests.words.written import ROOT, commands, is_key, keys, spans, wrong_with

PAGES = sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")])
NO_KEYS = {"onnx.load"}
"""What looks like a key and is a function of the package of that name."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_is_one_that_the_parser_takes(page: Path) -> None:
    wrong = {command: why for command in commands(page.read_text("utf-8")) if (why := wrong_with(command))}
    assert not wrong


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "events.md"], ids=lambda page: page.name)
def test_every_key_on_a_page_is_one_of_config_toml(page: Path) -> None:
    named = {key for code in spans(page.read_text("utf-8")) for key in keys(code)}
    older = HIDDEN if page.name == "configuration.md" else frozenset[str]()  # it lists those of earlier versions
    assert sorted(key for key in named - NO_KEYS - older if not is_key(key)) == []


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("ckptd statsu", "there is no verb 'statsu'"), ("ckptd toolchain bring", "there is no verb 'bring'"),
        ("ckptd status --verbose", "there is no option --verbose"), ("ckptd status JOB", "it takes 0 arguments"),
        ("ckptd logs -n 3 -f", None), ("ckptd --set limits.jobs=2 export PATH -o DIR", None), ("ckptd check --help", None),
    ],
)  # fmt: skip
def test_a_command_that_does_not_exist_is_noticed(command: str, why: str | None) -> None:
    assert commands(f"Run `{command}` now.") == [command] and wrong_with(command) == why


def said_in_code() -> Iterator[tuple[str, str]]:
    """Every text in the source that names a command of ours, with its place; what is filled in stands as X."""
    for package in ("daemon", "handlers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node) if part is not node}
            for node in ast.walk(tree):
                text = ""
                if isinstance(node, ast.JoinedStr):
                    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in within:
                    text = node.value
                if "`ckptd " in text:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def test_every_command_in_a_message_or_a_help_text_is_one_that_the_parser_takes() -> None:
    found = [(place, command) for place, text in said_in_code() for command in commands(text)]
    assert [(place, command, why) for place, command in found if (why := wrong_with(command))] == []
    assert len(found) > 40


SYMPTOMS = re.split(r"^## ", (ROOT / "docs/troubleshooting.md").read_text("utf-8"), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("section", SYMPTOMS, ids=lambda section: section.splitlines()[0])
def test_each_symptom_has_steps_in_an_order_and_a_command_of_ours(section: str) -> None:
    steps = [int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 1
    assert commands(section)


def test_words_with_a_hyphen_in_the_troubleshooting_are_fault_codes_or_variants() -> None:
    named = {word for section in SYMPTOMS for word in spans(section) if re.fullmatch(r"[a-z]+(-[a-z0-9]+)+", word)}
    assert named <= {*FaultCode, *catalog().thresholds} and len(named & set(FaultCode)) > 8
