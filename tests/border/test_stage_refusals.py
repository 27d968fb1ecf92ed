"""Whatever is written in a file that a stage or its library reads: it is taken, or refused for good, with a code and a sentence."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tests.border import stage_refusals
from tests.border.hostile_sources import Case, Source, make_sources


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    """Small models and adapters, made in another process: this one is forked for each case and must have run no model."""
    folder = tmp_path_factory.mktemp("hostile") / "sources"
    stage_refusals.prepare()
    process = multiprocessing.get_context("fork").Process(target=make_sources, args=(folder, ("LORA", "LOHA", "VERA", "IA3")))
    process.start()
    process.join()
    assert process.exitcode == 0
    return stage_refusals.listed(folder)


def test_hostile_files_are_refused_for_good_with_a_code_and_a_sentence(hostile: list[Source]) -> None:
    found = stage_refusals.refusals(3, 20, hostile)
    assert found.findings == []
    assert found.cases == found.taken + found.refused
    assert min(found.taken, found.refused) > 3


def test_what_a_library_alone_refuses_has_a_code(hostile: list[Source], tmp_path: Path) -> None:
    (llama,) = (one for one in hostile if one.name == "llama")
    case = Case(llama, "checkpoint", "generation_config.json", "cache_implementation", "", "reference")
    outcome, code, sentence = stage_refusals.run_apart(case, tmp_path)
    assert (outcome, code) == ("permanent", "library-refuses"), sentence
    assert "transformers" in sentence and "ValueError" not in sentence


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [21, 22, 23])
def test_a_thousand_hostile_files_are_refused_for_good_with_a_code_and_a_sentence(seed: int, tmp_path: Path) -> None:
    stage_refusals.prepare()
    process = multiprocessing.get_context("fork").Process(target=make_sources, args=(tmp_path / "sources",))
    process.start()
    process.join()
    found = stage_refusals.refusals(seed, 1000, stage_refusals.listed(tmp_path / "sources"))
    assert found.findings == []


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (("retryable", "unexpected", "Could not run the stage merge: AssertionError: no message."), "no code"),
        (("permanent", "engine", "Could not run the model: it says so."), "no code"),
        (("retryable", "library-refuses", "Could not run the model: it says so."), "tried again"),
        (("permanent", "library-refuses", "x" * 700), "long"),
        (("permanent", "library-refuses", "Could not load it: KeyError: 'r'."), "raw"),
        (("permanent", "library-refuses", "Could not load it: math domain error."), "raw"),
        (("permanent", "library-refuses", 'Could not load it: it says "TypeError: no".'), None),
        (("crash", "died", "exit code 1"), "crash"),
    ],
)
def test_what_counts_as_a_finding(said: tuple[str, str, str], why: str | None) -> None:
    assert stage_refusals.problem(*said) == why
