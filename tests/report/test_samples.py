"""What base, live model and artifacts write stands side by side, with the words marked that are not the live model's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.report import samples
from handlers.report.model import Sample
from tests.report import facts
from tests.report.test_page import Page, page_of


def row(live: str, base: str | None = None, **artifacts: str | None) -> Sample:
    return Sample(prompt="p", base=base, live=live, artifacts=artifacts)


def test_the_base_comes_first_then_the_live_model_with_all_that_write_the_same(tmp_path: Path) -> None:
    found = samples.cells(row("a b", base="a c", pytorch="a b", onnx="a b", int8="b b", int4="b b", odd=None))
    assert [(cell.title, cell.note) for cell in found] == [
        ("base, without fine-tuning", "differs where marked"),
        ("live model, fine-tuned", "the same: pytorch, onnx"),
        ("int8, int4", "differs where marked"),
    ]
    assert found[0].parts == (("a ", False), ("c", True))
    text = Page(page_of(facts.succeeded(), tmp_path)).text
    assert "base, without fine-tuning" in text and "the lamp was out" in text and "the lamp was lit once" in text


def test_a_full_fine_tune_has_no_column_for_a_base() -> None:
    assert [cell.title for cell in samples.cells(row("a", pytorch="a"))] == ["live model, fine-tuned"]


def test_words_that_are_missing_and_a_text_that_ends_early_are_marked() -> None:
    assert samples.parts("one two three four", "one two") == (("one two", False), (samples.ENDS, True))
    assert samples.parts("one two three", "one three") == (("one ", False), (samples.MISSING, True), ("three", False))
    assert samples.parts("one", "") == ((samples.ENDS, True),)


@given(live=st.text(max_size=40), text=st.text(max_size=40))
def test_a_text_loses_nothing_by_its_marks(live: str, text: str) -> None:
    parts = samples.parts(live, text)
    rest = "".join(part for part, _ in parts).replace(samples.MISSING, "").replace(samples.ENDS, "")
    assert rest == text.replace(samples.MISSING, "").replace(samples.ENDS, "")
    assert (live == text) == (not any(marked for _, marked in parts))


def test_long_prompts_and_texts_are_shown_in_part_and_compared_in_bounded_time() -> None:
    shown = samples.prompt_shown("x" * 5000)
    assert len(shown) < 700 and shown.startswith("(4,400 characters before this)")
    found = samples.cells(row("a b " * 20_000, base="b a " * 20_000))
    assert all(sum(len(part) for part, _ in cell.parts) < 3 * samples.MOST_TEXT for cell in found)
    assert "more characters)" in "".join(part for part, _ in found[1].parts)


@pytest.mark.parametrize(("text", "said"), [
    ("\n" * 24, "(24 line breaks)"), ("\n", "(1 line break)"), ("   ", "(3 spaces)"), ("", ""), ("a\n\n\nb", "a\n\n\nb"),
    ("a" + "\n" * 9, "a\n(9 line breaks)"), ("a\n \n\n  \nb", "a\n(4 line breaks)\nb"),
])  # fmt: skip
def test_line_breaks_that_fill_a_box_are_counted(text: str, said: str) -> None:
    assert samples.visible(text) == said


@given(text=st.text("a \n\t", max_size=60))
def test_no_text_is_a_tall_empty_box(text: str) -> None:
    shown = samples.visible(text)
    assert "\n" * 4 not in shown and (bool(shown.strip()) or not text)
    assert samples.visible(text).replace("\n", "").startswith(text.split("\n")[0].rstrip()) or not text.strip()
