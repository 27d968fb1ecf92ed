"""The text of rare tokens holds what prompts do not: special tokens, the last ones, and some from all over the vocabulary."""

from __future__ import annotations

import pytest

from handlers.validate.length import rare


@pytest.mark.parametrize(("known", "count"), [(320, 256), (151_936, 48), (60, 60), (8, 8)])
def test_each_token_of_the_text_is_another_one_that_the_model_knows(known: int, count: int) -> None:
    ids = rare.chosen([0, 1], known, count)
    assert len(ids) == len(set(ids)) == count
    assert {0, 1, known - 1} <= set(ids) and all(0 <= token < known for token in ids)


def test_special_tokens_and_the_last_ones_leave_room_for_others() -> None:
    ids = rare.chosen(list(range(1000)), 100_000, 48)
    assert sum(token < 1000 for token in ids) == 48 // rare.SPECIAL
    assert sum(token >= 100_000 - 48 // rare.LAST for token in ids) == 48 // rare.LAST
    others = sorted(token for token in ids if 1000 <= token < 99_990)
    assert others[0] < 10_000 and others[-1] > 90_000
