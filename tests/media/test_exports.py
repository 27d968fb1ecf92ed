"""Models that read pictures or sound through the whole `ckptd export`: what is published answers as base and adapter do, by stock code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.media.families import FAMILIES
from tests.media.measuring import RESULTS, forms_of, measure, published

TABLE = json.loads(RESULTS.read_text())
NEAR = {"pytorch": 1e-4, "pytorch-fp16": 0.1, "pytorch-bf16": 0.6, "onnx": 1e-4, "onnx-fp16": 0.1}
"""Form → most standard deviations that an output may be from the live model's; smaller ones must be nearer to it than the base is."""


def test_the_page_tells_of_each_family() -> None:
    assert TABLE.keys() == FAMILIES.keys()
    assert all(tuple(TABLE[name]["forms"]) == forms_of(name) for name in FAMILIES)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_exported_as_base_and_adapter_answer(name: str, tmp_path: Path) -> None:
    result = measure(name, tmp_path)
    assert result["moved"] > 0.1, "the adapter changes too little for a proof"
    for form, made in result["forms"].items():
        assert made["outcome"] == TABLE[name]["forms"][form]["outcome"] != "failed", (form, made)
        if made["outcome"] == "refused":
            continue
        assert made["difference"] < NEAR.get(form, result["moved"]), (form, made)
        for file in tmp_path.glob("base/*processor*.json"):
            assert json.loads((published(tmp_path) / form / file.name).read_bytes()) == json.loads(file.read_bytes())
    assert result["forms"]["pytorch"]["greedy_same"] is not False
