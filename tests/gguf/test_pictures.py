"""Models that read pictures, as GGUF: llama.cpp's library for pictures says what transformers says, and damage to the towers is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gguf import forms
from tests.media.families import FAMILIES, PAD
from tests.stages import refused

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]
NAMES = ("qwen2.5-vl", "qwen3-vl", "gemma3", "smolvlm")


def model(name: str, folder: Path, **changes: Any) -> Path:
    """A model of a family with its processor, and `changes` of its config.json's vision_config."""
    import torch
    import transformers

    torch.manual_seed(5)
    FAMILIES[name].make(transformers).save_pretrained(folder)
    FAMILIES[name].processor(folder)
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_read_as_transformers_reads_it(name: str, tmp_path: Path) -> None:
    import torch
    import transformers

    from handlers.validate.engines.media import as_seen, processors

    source = model(name, tmp_path / "model")
    folder = forms.exact(source, tmp_path / "work")
    live = getattr(transformers, FAMILIES[name].auto).from_pretrained(source).eval()
    processor, engine = processors.load([source], "image"), forms.engine(folder)
    mark = PAD if "qwen" in name else 2
    for number in range(2):
        inputs = processors.prepared(processor, "image", number)
        with torch.inference_mode():
            wanted = live(**inputs).logits[0].numpy()
            written = live.generate(**inputs, max_new_tokens=5, do_sample=False)[0, len(wanted) :].tolist()
        seen = as_seen.seen(processor, inputs, number)
        rows, places, tokens = engine.read_prompt(inputs["input_ids"][0].tolist(), mark, seen, 5)
        assert np.abs(rows - wanted[places]).max() < 3e-2 * wanted.std() and tokens == written[: len(tokens)]
        other, _, _ = engine.read_prompt(inputs["input_ids"][0].tolist(), mark, 255 - seen, 1)
        assert np.abs(other - wanted[places]).max() > 0.3 * wanted.std(), "the picture decides what follows it"


@pytest.mark.parametrize("name", NAMES)
def test_a_tower_that_is_not_that_of_the_merge_is_named(name: str, tmp_path: Path) -> None:
    import gguf

    from handlers.gguf import comparison

    source = model(name, tmp_path / "model")
    folder, output = forms.make("gguf-q8_0", source, tmp_path / "work")
    (path,) = folder.glob("mmproj-*.gguf")
    assert output.figures["towers"] == path.name and f"FROM ./{path.name}" in (folder / "Modelfile").read_text()
    assert comparison.difference(folder, source) is None
    reader = gguf.GGUFReader(path, "r+")
    tensor = next(tensor for tensor in reader.tensors if tensor.name == "v.blk.1.ffn_down.weight")
    tensor.data[:1] = 0
    reader.data.flush()
    del reader, tensor
    assert "v.blk.1.ffn_down.weight is not that of the merge" in str(comparison.difference(folder, source))


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("qwen2.5-vl", {"window_size": 56}, "56 pixels wide, and llama.cpp's 112"),
        ("qwen2.5-vl", {"fullatt_block_indexes": [0]}, "see everything are"),
        ("gemma3", {"hidden_act": "gelu"}, "the activation of its tower is gelu"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(name: str, changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    source = model(name, tmp_path / "model", **changes)
    refused(why, forms.make, "gguf-f16", source, tmp_path / "work")


def test_the_declaration_names_the_types_whose_towers_are_written() -> None:
    from handlers.gguf.file.projector import KINDS
    from handlers.gguf.format import READERS

    assert KINDS.keys() == READERS
