"""docs/configuration.md says what config.toml and the settings say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from daemon.config import reference
from daemon.config.older_keys import HIDDEN
from daemon.config.settings import Settings
from daemon.contract.formats.catalog import catalog

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_file_and_the_settings() -> None:
    made = reference.page((ROOT / "config.toml").read_text())
    assert made == (ROOT / "docs" / "configuration.md").read_text(), "python -m daemon.config.reference config.toml > docs/configuration.md"


def test_no_table_of_the_page_is_empty() -> None:
    lines = (ROOT / "docs" / "configuration.md").read_text().splitlines()
    assert [
        line for line, after in zip(lines, [*lines[1:], ""], strict=True) if line.startswith("| --- ") and not after.startswith("| ")
    ] == []


def test_every_key_has_a_row_with_its_meaning_and_its_variable() -> None:
    made = reference.page((ROOT / "config.toml").read_text())
    for variable in _variables("CKPTD", Settings):
        if variable.removeprefix("CKPTD_").lower().replace("__", ".") not in HIDDEN:
            (row,) = [line for line in made.splitlines() if f"`{variable}`" in line]
            assert row.split(" | ")[-1].strip(" |"), variable


def test_the_limits_of_every_variant_have_a_row() -> None:
    rows = reference.page("").splitlines()
    for name, limits in catalog().thresholds.items():
        numbers = f"{limits.agreement} | {limits.kl} | {limits.error} | {float(f'{limits.perplexity_ratio:.4g}')}"
        assert f"| `{name}` | {numbers} |" in rows


def _variables(above: str, model: type[BaseModel]) -> Iterator[str]:
    """The variable of each key, those of inner tables too."""
    for name, field in model.model_fields.items():
        variable = f"{above}{'_' if above == 'CKPTD' else '__'}{name}".upper()
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _variables(variable, inner)
        else:
            yield variable
