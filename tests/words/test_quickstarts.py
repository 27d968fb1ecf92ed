"""The quick starts of docs/trainers.md: configurations are valid, code parses, and each trainer was measured with its settings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from daemon.config.loading import load
from daemon.contract.faults.fault_codes import FaultCode
from tests.trainers.cases import CASES, FAILED, SAME, TAKEN, Case
from tests.words.written import ROOT, spans

TEXT = (ROOT / "docs/trainers.md").read_text("utf-8").partition("## What was tested")[0]
MEASURED = TEXT.partition("\n## ms-swift")[0]
SECTIONS = {section.splitlines()[0]: section for section in re.split(r"^### ", MEASURED, flags=re.MULTILINE)[1:]}
RUNS = {
    "transformers Trainer": ["transformers_peft", "fsdp_full"], "accelerate": ["accelerate_full", "accelerate_peft"],
    "TRL": ["trl_sft", "trl_dpo", "trl_grpo", "trl_reward"],
    "axolotl": ["axolotl_sft"], "LLaMA-Factory": ["llamafactory_sft"], "Unsloth": ["unsloth_sft"],
    "Lightning": ["lightning_full", "lightning_peft"],
    "torchtune": ["torchtune_llama", "torchtune_qwen2"],
}  # fmt: skip
"""The measured runs of each section."""


def blocks_in(text: str, language: str) -> list[str]:
    """Return the blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def case_named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("configuration", blocks_in(TEXT, "toml"))
def test_each_configuration_in_the_quick_starts_is_valid(tmp_path: Path, configuration: str) -> None:
    (tmp_path / "my.toml").write_text(configuration)
    settings = load(tmp_path / "my.toml", need_roots=True)
    assert [str(root) for root in settings.watch.roots] == ["/data/runs"] and str(settings.output.directory) == "/data/exports"
    assert settings.base.search or settings.base.map


def test_each_trainer_of_the_quick_starts_has_its_section_and_was_measured() -> None:
    assert list(SECTIONS) == list(RUNS)
    for trainer, names in RUNS.items():
        assert all(case_named(name).trainer.startswith(trainer) for name in names)


@pytest.mark.parametrize("trainer", RUNS)
def test_directories_that_a_quick_start_sets_are_those_of_its_measured_runs(trainer: str) -> None:
    written = re.findall(r"/data/runs/my-run(?:/([\w/-]+))?", "".join(blocks_in(SECTIONS[trainer], "(?:python|yaml)")))
    places = [place.path for name in RUNS[trainer] for place in case_named(name).places]
    assert all(not path or any(f"{place}/".startswith(f"{path}/") for place in places) for path in written)


@pytest.mark.parametrize("trainer", RUNS)
def test_steps_that_a_quick_start_saves_are_those_that_were_exported(trainer: str) -> None:
    settings = "".join(blocks_in(SECTIONS[trainer], "(?:python|yaml)"))
    if not (every := re.search(r"save_steps\W+(\d+)", settings)):
        return
    last = int(re.search(r"max_steps\W+(\d+)", settings)[1])  # type: ignore[index]
    steps = {*range(int(every[1]), last + 1, int(every[1])), last}
    exported = [place.export for place in case_named(RUNS[trainer][0]).places if place.outcome == TAKEN]
    assert {f"step-{step}" for step in steps} <= {export.rpartition("/")[2] for export in exported}


def test_what_quick_starts_say_of_outcomes_was_measured() -> None:
    assert all(SAME in {place.outcome for place in case_named(name).places} for name in ("trl_sft", "axolotl_sft", "llamafactory_sft"))
    assert {place.outcome for place in case_named("torchtune_qwen2").places} == {FAILED} and "a **Qwen2**" in SECTIONS["torchtune"]


def test_fault_codes_in_the_quick_starts_exist() -> None:
    named = {word for section in SECTIONS.values() for word in spans(section) if re.fullmatch(r"[a-z]+(-[a-z]+)+", word)}
    assert named and named <= {*FaultCode, "fsdp-sharded"}


def test_the_python_in_the_quick_starts_parses() -> None:
    for block in blocks_in(TEXT, "python"):
        ast.parse(block)
