"""The part of config.toml that formats declare is generated, so that a format's key is documented where it is declared."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.config import template
from daemon.config.settings import Settings
from daemon.contract.formats.catalog import OWN_SECTIONS, catalog
from daemon.contract.jobs.options import Work
from daemon.contract.values import docstrings

FILE = Path(__file__).parents[2] / "config.toml"


def test_the_file_says_what_the_declarations_say() -> None:  # R5.6
    text = FILE.read_text()
    assert template.updated(text) == text, "run: python -m daemon.config.template config.toml"


def test_every_key_of_a_format_says_what_it_is() -> None:
    for options in catalog().sections.values():
        assert set(options.model_fields) - set(docstrings(options)) == set()


def test_a_file_without_marks_is_not_written_over() -> None:
    with pytest.raises(ValueError, match="no marks"):
        template.updated("[watch]\nroots = []\n")


def test_no_format_can_take_the_name_of_a_section_of_ours() -> None:
    ours = (set(Settings.model_fields) | set(Work.model_fields)) - set(catalog().sections)
    assert ours <= OWN_SECTIONS
