"""docs/tour.md and docs/architecture.md lead to what they name: links, modules, and names that are defined in the file behind a link."""

from __future__ import annotations

import ast
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
LINKS = LINK.findall((DOCS / "tour.md").read_text())
NAMES = [(name.strip("`"), target) for name, target in LINKS if name.startswith("`")]


def defined(file: Path) -> set[str]:
    """Functions and classes of a module, and Class.method."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def test_the_tour_has_fifteen_stops_and_each_of_them_names_code() -> None:
    stops = re.split(r"^\d+\. ", (DOCS / "tour.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(stops) == 15 and all(any(target.startswith("../") for _, target in LINK.findall(stop)) for stop in stops)


def test_what_a_link_of_the_tour_names_exists() -> None:
    assert [target for _, target in LINKS if not (DOCS / target).exists()] == []


def test_a_name_in_a_link_of_the_tour_is_defined_there() -> None:
    assert [(name, target) for name, target in NAMES if name not in defined(DOCS / target)] == [] != NAMES


def test_a_module_that_the_architecture_names_is_where_it_says() -> None:
    """A path may leave out what its paragraph is about: `rules/ready.py` stands in the one on `running/`."""
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", (DOCS / "architecture.md").read_text()))
    places = {str(path.relative_to(DOCS.parent)) for room in ("daemon", "handlers", "tests") for path in (DOCS.parent / room).rglob("*.py")}
    assert len(named) > 30
    assert [name for name in sorted(named) if not any(place.endswith(f"/{name}") or place == name for place in places)] == []
