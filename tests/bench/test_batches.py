"""Batches are timed by every kind of driver, with real engines: all rows count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.protocol import Time, Timing
from tests.validate.bench import Direct


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT."""
    from transformers import BertConfig, BertForMaskedLM

    settings: dict[str, Any] = {
        "vocab_size": 99,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    folder = tmp_path_factory.mktemp("bert")
    BertForMaskedLM(BertConfig(**settings, max_position_embeddings=32)).save_pretrained(folder)
    return folder


def timed(engine: str, folder: Path, task: str, rows: list[list[int]], tokens: int) -> Timing:
    direct = Direct(engine, EngineSpec(engine=engine, folder=str(folder), task=task))
    direct.load()
    return direct.ask(Time(rows=rows, tokens=tokens))


def test_rows_of_a_language_model_decode_together(folders: dict[str, Path]) -> None:
    for name, engine in (("onnx", "onnx"), ("pytorch", "torch")):
        found = timed(engine, folders[name], "text-generation", [[5, 6, 7], [8, 9, 10]], 4)
        assert found.tokens == 8 and found.prefill_seconds > 0 and found.decode_seconds > 0


@pytest.mark.slow
def test_rows_of_a_translator_decode_together(marian_export: Any) -> None:
    found = timed("onnx", marian_export.onnx, "text2text-generation", [[5, 6, 7], [8, 9, 10], [11, 12, 13]], 4)
    assert found.tokens == 12 and found.decode_seconds > 0


def test_an_encoder_reads_all_rows_in_each_pass(encoder: Path) -> None:
    assert timed("torch", encoder, "fill-mask", [[5, 6, 7], [8, 9, 10]], 16).tokens == 2 * 2 * 3
