"""docs/quickstarts.md: its configurations are valid, its code parses, and what it promises is what was measured."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from daemon.config.loading import load
from tests.trainers.cases import CASES, FAILED, REFUSED, SAME, Place
from tests.words.written import ROOT

TEXT = (ROOT / "docs/quickstarts.md").read_text("utf-8")
SECTIONS = {section.splitlines()[0]: section for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]}
RUNS = {
    "transformers Trainer": ["transformers_peft", "fsdp_full"], "TRL": ["trl_sft", "trl_sft_full"], "axolotl": ["axolotl_sft"],
    "LLaMA-Factory": ["llamafactory_sft"], "Unsloth": ["unsloth_sft"], "Lightning": ["lightning_full", "lightning_peft"],
    "torchtune": ["torchtune_llama", "torchtune_qwen2"],
}  # fmt: skip
"""The measured runs of each section; those of tables in their order, or several that give the same table."""
OUTCOMES = {SAME: "known already", REFUSED: "refused", FAILED: "failed"}


def code(section: str, language: str) -> list[str]:
    """The blocks of a language in a section."""
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def tables(section: str) -> list[dict[str, str]]:
    """Its tables: what the trainer writes → what becomes of it."""
    return [dict(re.findall(r"^\| `(.+)` \| `?(.+?)`? \|$", table, re.MULTILINE)) for table in section.split("| --- | --- |\n")[1:]]


def measured(case: str) -> dict[str, str]:
    """The same of a run that was measured, called `my-run`."""

    def row(place: Place) -> tuple[str, str]:
        path = "my-run" if place.path == "." else f"my-run/{place.path}"
        return path, OUTCOMES.get(place.outcome) or re.sub(f"^{case}(?=/)", "my-run", place.export)

    return dict(row(place) for one in CASES if one.name == case for place in one.places)


@pytest.mark.parametrize("trainer", SECTIONS)
def test_each_configuration_in_the_quick_starts_is_valid(tmp_path: Path, trainer: str) -> None:
    configurations = code(SECTIONS[trainer], "toml")
    assert configurations
    for text in configurations:
        (tmp_path / "my.toml").write_text(text)
        settings = load(tmp_path / "my.toml", need_roots=True)
        assert [str(root) for root in settings.watch.roots] == ["/data/runs"] and str(settings.output.directory) == "/data/exports"
        assert settings.base.search or settings.base.map


@pytest.mark.parametrize("trainer", SECTIONS)
def test_what_a_quick_start_promises_is_what_was_measured(trainer: str) -> None:
    promised, runs = tables(SECTIONS[trainer]), [measured(case) for case in RUNS[trainer]]
    assert promised and all(table in runs for table in promised)
    assert all(run in promised for run in runs), "each measured run has its table"


def test_each_trainer_of_the_quick_starts_has_its_section() -> None:
    assert list(SECTIONS) == list(RUNS)


def test_the_python_in_the_quick_starts_parses() -> None:
    for block in code(TEXT, "python"):
        ast.parse(block)
