"""Weight-only forms of models of pictures and sound: what their config.json says is what is stored, under the names that hubs store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.faults.errors import Permanent
from handlers.models.folder import ModelFolder
from handlers.validate.folders import quantization
from tests.media.families import FAMILIES
from tests.merge import helpers
from tests.pytorch.forms import loaded, make
from tests.sampling import some

FORMS = ("pytorch-w4a16", "pytorch-w8a8")


def refused(name: str) -> bool:
    """Whether transformers can't load packed layers of such a model at all."""
    return name in ("whisper", "dinov2")


def fault(folder: Path, model: Any, change: Callable[[dict[str, Any]], None] = lambda _: None) -> str | None:
    """What is said of a folder's quantization_config, once it is changed."""
    from handlers.validate.engines.pytorch.folder import renamed_tensors

    config, names = json.loads((folder / "config.json").read_text()), renamed_tensors(model, folder)
    change(config["quantization_config"])
    return quantization.fault(config, {names.get(name, name): info for name, info in ModelFolder(folder).headers.items()}, folder)


def _groups(said: dict[str, Any]) -> None:
    group = next(iter(said["config_groups"].values()))["weights"]
    group["group_size"] = 16 if "group_size" in group else group.setdefault("group_size", 16)


def _ignored(said: dict[str, Any]) -> None:
    said["ignore"].append("re:.*(q_proj|pwconv1)")


@pytest.mark.parametrize(("name", "variant"), some([(name, variant) for name in FAMILIES for variant in FORMS], of=3))
def test_what_config_json_says_of_a_form_is_what_is_stored_and_a_wrong_scale_is_named(name: str, variant: str, tmp_path: Path) -> None:
    import torch
    import transformers

    from handlers.pytorch.weights.difference import difference

    torch.manual_seed(0)
    base = tmp_path / "model"
    FAMILIES[name].make(transformers).save_pretrained(base)
    FAMILIES[name].processor(base)
    if refused(name):
        with pytest.raises(Permanent, match="transformers can't"):
            make(variant, base, tmp_path / "work", error_correction=False)
        return
    folder, output = make(variant, base, tmp_path / "work", error_correction=False)
    model = loaded(folder, FAMILIES[name].auto)
    assert output.figures["quantized_layers"] > 0
    assert fault(folder, model) is None and difference(folder, base) is None
    for change in (_groups, _ignored):
        assert "says otherwise than its weights are stored" in str(fault(folder, model, change)), change

    def double(table: dict[str, Any]) -> None:
        scale = next(key for key in table if key.endswith("weight_scale"))
        table[scale][:1] *= 2

    helpers.rewrite(folder / "model.safetensors", double)
    assert "its weights are not those of the merge" in str(difference(folder, base))


READ_EARLY = {
    "gemma3": {"SiglipVisionModel"}, "dinov2": {"Dinov2ForImageClassification", "Dinov2Encoder"},
    "wav2vec2": {"Wav2Vec2Model"}, "wav2vec2-ctc": {"Wav2Vec2Model"},
}  # fmt: skip
"""Family → classes whose `_init_weights` reads weights of linear layers, in transformers' own source."""


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_whose_tower_reads_weights_before_it_is_loaded_are_known(name: str) -> None:
    import torch
    import transformers

    from handlers.pytorch.quantize.linears import unfit_without_weight

    with torch.device("meta"):
        model = FAMILIES[name].make(transformers)
    layers = [key for key, module in model.named_modules() if type(module) is torch.nn.Linear]
    unfit = unfit_without_weight(model, layers)
    assert all(model.get_submodule(key).weight is not None for key in layers), "they are as before"
    assert {*unfit.values()} == READ_EARLY.get(name, set())
    assert name != "gemma3" or all("vision_tower" in key for key in unfit)
