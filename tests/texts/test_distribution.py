"""What texts are like: lengths, scripts, unknown tokens, and the warnings where they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.texts.built_in import BUILT_IN, FURTHER
from handlers.texts.distribution import Vocabulary, describe, missing_scripts, scripts, unfit
from handlers.texts.rendering import ModelFiles
from handlers.texts.rows import Text
from handlers.texts.selection import Texts
from tests import models


def texts(*lines: str) -> Texts:
    return Texts(tuple(Text(one) for one in lines), (("here", len(lines)),))


def test_lengths_are_those_of_the_tokens_that_were_used() -> None:
    figures = describe(texts("a", "b", "c", "d"), [[1], [1, 2, 3], [4] * 20, [5, 6]], Vocabulary(100, unknown=4), cut=1)
    assert (figures.texts, figures.tokens, figures.shortest, figures.median, figures.p95, figures.longest) == (4, 26, 1, 2, 20, 20)
    assert figures.cut == 1 and figures.sources == {"here": 4}
    assert figures.unknown_share == round(20 / 26, 5) and figures.byte_share is None
    assert figures.different_tokens == 6 and figures.vocabulary_share == 0.06


@pytest.mark.parametrize(
    ("text", "script"),
    [("Straße", "Latin"), ("мир", "Cyrillic"), ("你好", "Han"), ("ひらがな", "Hiragana"), ("한국", "Hangul"), ("سلام", "Arabic"),
     ("ＡＢ", "Latin"), ("हिन", "Devanagari"), ("Ελ", "Greek")],
)  # fmt: skip
def test_letters_are_of_their_script(text: str, script: str) -> None:
    assert scripts([text, " 12 €?\n"]) == {script: 1.0}


@given(st.lists(st.text()))
def test_shares_of_scripts_come_to_one_or_there_are_no_letters(lines: list[str]) -> None:
    found = scripts(lines)
    assert not found or sum(found.values()) == pytest.approx(1, abs=1e-3)


def test_the_built_in_texts_are_of_many_scripts() -> None:
    assert len(scripts(FURTHER)) >= 9 and len(scripts(BUILT_IN)) >= 3


def test_what_the_tokenizer_does_not_know_is_counted_and_told(tmp_path: Path) -> None:
    """A real WordPiece without a word of Russian, and a BPE that falls back to bytes."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import BPE, WordPiece

    words = Tokenizer(WordPiece({"[UNK]": 0, "hello": 1, "world": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 3}')
    vocabulary = Vocabulary.of(ModelFiles.in_folder(tmp_path))
    assert vocabulary == Vocabulary(3, 0)
    rows = [words.encode(one).ids for one in ("hello world", "hello мир")]
    figures = describe(texts("hello world", "hello мир"), rows, vocabulary, cut=0)
    assert figures.unknown_share == 0.25
    assert any("25.0% of the tokens" in one for one in unfit(figures, named=False))
    fallback = {f"<0x{code:02X}>": code for code in range(256)} | {"a": 256}
    Tokenizer(BPE(fallback, [], byte_fallback=True, unk_token="<0x00>")).save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary.of(ModelFiles.in_folder(tmp_path))
    assert len(vocabulary.bytes) == 256
    rows = [Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("aaмир").ids]
    figures = describe(texts("aaмир"), rows, vocabulary, cut=0)
    assert figures.byte_share == 0.75
    assert any("75% of the tokens" in one for one in unfit(figures, named=True)) and not unfit(figures, named=False)


def test_few_tokens_are_told_where_the_configuration_names_the_texts() -> None:
    figures = describe(texts("a"), [[1, 2]], Vocabulary(), cut=0)
    assert "2 tokens together" in unfit(figures, named=True)[0] and unfit(figures, named=False) == []


def test_scripts_that_only_one_side_has_are_told() -> None:
    english, russian = ["Only English here."], ["Только по-русски."]
    (one, other) = missing_scripts(english, russian)
    assert "validate.prompts are 100% Latin" in one and "validate.data are 100% Cyrillic" in other
    assert missing_scripts(english, english) == [] == missing_scripts([*english, *russian], [*english, *russian])
    assert missing_scripts(["1 2 3"], russian) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": 3}', b'{"model": {"vocab": [3, [], [1]], "unk_id": "x"}}', b"\xff"])
def test_a_tokenizer_that_cannot_be_read_leaves_it_open(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert Vocabulary.of(ModelFiles.in_folder(tmp_path)) == Vocabulary()


def test_the_tokenizers_of_the_tests_know_all_bytes(tmp_path: Path) -> None:
    models.make_tokenizer().save_pretrained(tmp_path)
    assert Vocabulary.of(ModelFiles.in_folder(tmp_path)) == Vocabulary(None, None)
