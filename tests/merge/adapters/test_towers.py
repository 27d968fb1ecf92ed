"""Models of several towers, which hubs store under other names than transformers gives their parameters."""

from __future__ import annotations

import pytest

from daemon.contract.models.safetensors import TensorInfo
from handlers.merge.adapters.name_mapping import choose_names

INFO = TensorInfo("model.safetensors", "F32", (2, 2), 0, 16)
LAYER = "layers.0.self_attn.q_proj.weight"
STORED = {
    "qwen2_5_vl": {f"model.language_model.{LAYER}": f"model.{LAYER}",
                   "model.visual.blocks.0.attn.qkv.weight": "visual.blocks.0.attn.qkv.weight",
                   "lm_head.weight": "lm_head.weight"},
    "llava": {f"model.language_model.{LAYER}": f"language_model.model.{LAYER}", "lm_head.weight": "language_model.lm_head.weight",
              "model.vision_tower.encoder.layers.0.mlp.fc1.weight": "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight",
              "model.multi_modal_projector.linear_1.weight": "multi_modal_projector.linear_1.weight"},
    "gemma3": {f"model.language_model.{LAYER}": f"language_model.model.{LAYER}",
               "model.vision_tower.encoder.layers.0.mlp.fc1.weight": "vision_tower.encoder.layers.0.mlp.fc1.weight"},
    "qwen3_vl": dict.fromkeys([f"model.language_model.{LAYER}"], f"model.language_model.{LAYER}"),
}  # fmt: skip
"""Kind → parameter → the tensor that holds it."""


@pytest.mark.parametrize("kind", STORED)
def test_each_parameter_of_each_tower_is_found_and_its_tensor_leads_back(kind: str) -> None:
    names = choose_names(list(STORED[kind]), dict.fromkeys(STORED[kind].values(), INFO))
    assert {name: names.tensor(name) for name in STORED[kind]} == STORED[kind]
    assert {names.parameter(tensor): tensor for tensor in STORED[kind].values()} == STORED[kind]


def test_names_that_only_some_parameters_have_are_no_rule() -> None:
    stored = dict.fromkeys(STORED["llava"].values(), INFO)
    names = choose_names([*STORED["llava"], "model.language_model.layers.9.mlp.up_proj.weight"], stored)
    assert not names.renames
