"""docs/configuration.md says what config.toml and the settings say."""

from __future__ import annotations

from pathlib import Path

from daemon.config import reference
from daemon.config.settings import Settings

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_file_and_the_settings() -> None:
    made = reference.page((ROOT / "config.toml").read_text())
    assert made == (ROOT / "docs" / "configuration.md").read_text(), "python -m daemon.config.reference config.toml > docs/configuration.md"


def test_every_key_has_a_row_with_its_meaning_and_its_variable() -> None:
    made = reference.page((ROOT / "config.toml").read_text())
    for section, field in Settings.model_fields.items():
        keys = getattr(field.annotation, "model_fields", None) or {"": None}
        for key in keys:
            if (section, key) != ("validate", "thresholds"):
                variable = f"CKPTD_{section}__{key}".upper().removesuffix("__")
                (row,) = [line for line in made.splitlines() if f"`{variable}`" in line]
                assert row.split(" | ")[-1].strip(" |"), variable
