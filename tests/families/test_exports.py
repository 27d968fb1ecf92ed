"""Each family through the whole `ckptd export`, read by transformers and ONNX Runtime alone: what came of it is what the page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.families.measuring import RESULTS, VARIANTS, measure

TABLE = json.loads(RESULTS.read_text())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", TABLE)
def test_what_comes_of_a_family_is_what_the_page_says(family: str, tmp_path: Path) -> None:
    result = measure(tmp_path, [family])[family]
    for name in VARIANTS:
        known, now = TABLE[family]["variants"][name], result["variants"][name]
        assert now["outcome"] == known["outcome"], now
        if now["outcome"] == "refused":  # the sentence says which of the others will work, and these are what was published
            possible = [other for other in VARIANTS if result["variants"][other]["outcome"] == "equal"]
            assert not possible or now["remedy"].endswith(f"of what was asked for, {' and '.join(possible)} can be made")
