"""Decoders that keep states are run with their own caches: token after token, several at once, and in batches, as in one pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from handlers.validate.engines.pytorch.torch_causal import TorchEngine
from handlers.validate.engines.registry import EngineSpec
from tests.families import stock
from tests.models import make_tokenizer

SINGLY = ("mamba", "jamba")
"""Those that transformers goes on with correctly by single tokens alone."""


@pytest.mark.parametrize("name", ["mamba2", "bamba", "falcon_h1", "qwen3_next", "lfm2", "granitemoehybrid", *SINGLY])
def test_what_is_read_in_parts_is_what_is_read_at_once(name: str, tmp_path: Path) -> None:
    stock.make(f"{name}/decoder").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    engine = TorchEngine(EngineSpec(engine="torch", folder=str(tmp_path)))
    ids, mask, places = np.arange(5, 25)[None], np.ones((1, 20), np.int64), np.arange(20)[None]
    whole, _ = engine.step(ids, mask, places, None)
    for parts in ([9, 1, 1, 9], [19, 1], [3, 17]):
        cache, start, rows = None, 0, []
        for size in parts:
            new = slice(start, start + size)
            logits, cache = engine.step(ids[:, new], mask[:, : start + size], places[:, new], cache)
            rows.append(logits)
            start += size
        assert np.abs(np.concatenate(rows, axis=1) - whole).max() < 1e-3 * whole.std(), parts
    _, cache = engine.prefill(ids[:, :10], mask[:, :10], places[:, :10])
    kept, _ = engine.kept(ids[:, 10:], mask, places[:, 10:], cache, [0, 7])
    assert np.abs(kept - whole[:, [10, 17]]).max() < 1e-3 * whole.std()
    assert engine._forgets == (name in SINGLY)
