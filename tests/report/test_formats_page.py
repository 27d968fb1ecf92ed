"""docs/formats.md says what the formats' declarations say."""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.catalog import catalog
from handlers.report import formats_page

FILE = Path(__file__).parents[2] / "docs" / "formats.md"


def test_the_page_is_what_the_declarations_say() -> None:
    assert formats_page.text(catalog()).rstrip() == FILE.read_text().rstrip(), "python -m handlers.report.formats_page > docs/formats.md"


def test_it_names_every_variant_and_says_of_every_family_what_was_verified() -> None:
    text = FILE.read_text()
    assert all(f"| `{name}` |" in text for name in catalog().variants)
    published = [one for one in catalog().formats if one.variants]
    families = {family for one in published for family in one.families}
    assert all(families == set(one.families) and one.runtimes for one in published if one.name != "npz")
