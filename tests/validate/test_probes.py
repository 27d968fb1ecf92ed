"""Tokenizers are asked about characters that no list of usual ones holds: those of private use, those beyond the basic plane."""

from __future__ import annotations

import unicodedata

from handlers.validate.files import probes


def _letters(texts: list[str]) -> set[str]:
    return {one for text in texts for one in text} - {" ", "a"}


def test_characters_are_drawn_of_each_block_and_others_for_another_checkpoint() -> None:
    texts, numbers = probes.beyond({}, 1)
    assert numbers == [] and texts == probes.beyond({}, 1)[0] != probes.beyond({}, 2)[0]
    letters = _letters(texts)
    assert len(letters) < 400
    for low, high, _ in probes.DRAWN:
        assert sum(low <= ord(one) < high for one in letters) >= 2
    assert sum(unicodedata.category(one) == "Co" for one in letters) > 60


def test_each_token_that_stands_for_such_a_character_is_asked_in_both_directions() -> None:
    table = {byte: letter for letter, byte in probes._BYTES.items()}
    spelt = {text: "".join(table[byte] for byte in text.encode()) for text in ("\ue0ff", " 𠜎", "x", "é")}
    tokens = {token: number for number, token in enumerate([*spelt.values(), spelt["\ue0ff"][:2], "▁𐍈", "<\uf8ff>"])}
    assert {probes.spelt(token) for token in spelt.values()} == set(spelt)
    assert probes.spelt(spelt["\ue0ff"][:2]) is None, "a part of a character"
    texts, numbers = probes.beyond(tokens, 0)
    assert {"\ue0ff", "𠜎", "𐍈", "\uf8ff"} <= _letters(texts)
    assert numbers == [[0, 1, 5, 6]]


def test_of_many_such_tokens_some_are_asked() -> None:
    _, numbers = probes.beyond({chr(0x20000 + place): place for place in range(3 * probes.RARE_TOKENS)}, 0)
    assert sum(map(len, numbers)) == probes.RARE_TOKENS and max(map(len, numbers)) <= probes.CHUNK
