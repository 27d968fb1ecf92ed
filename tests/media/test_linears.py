"""The linear layers to quantize are found under the names that hubs store each family by, which are not those of its modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.media.families import FAMILIES


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tensor_of_a_layer_is_the_weight_that_transformers_loads_into_it(name: str, tmp_path: Path) -> None:
    import torch
    import transformers
    from safetensors.torch import load_file

    from handlers.models.folder import ModelFolder
    from handlers.pytorch.quantize.linears import find

    torch.manual_seed(0)
    FAMILIES[name].make(transformers).save_pretrained(tmp_path)
    linears, stored = find(ModelFolder(tmp_path), "pytorch-w8a8"), load_file(tmp_path / "model.safetensors")
    loaded = getattr(transformers, FAMILIES[name].auto).from_pretrained(tmp_path)
    for tensor, linear in linears.quantized.items():
        weight = loaded.get_submodule(linear.module).weight
        assert tensor == linear.tensor and torch.equal(weight, stored[tensor]), linear
    assert linears.quantized


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_whose_tensors_are_split_while_they_are_loaded_is_known(name: str) -> None:
    import transformers

    from handlers.pytorch.quantize.linears import split_while_loading

    split = split_while_loading(FAMILIES[name].make(transformers))
    assert split == ("mlp.weights_in.weight" if name == "dinov2" else None)
