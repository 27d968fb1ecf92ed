"""What config.json says of a decoder's cache is what transformers makes of it, for every decoder of the installed transformers."""

from __future__ import annotations

import json

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS

from daemon.contract.models.caches import SHARED, STATES, kept_besides

PLAIN = {DynamicLayer, DynamicSlidingWindowLayer}
OWN = {"rwkv", "xlstm"}
"""Their states are in no cache of transformers."""


def kinds_of_layers(name: str) -> set[type]:
    """The classes of the layers of the cache that transformers makes for a model of this type; none where it can't make it."""
    try:
        return {type(layer) for layer in DynamicCache(config=CONFIG_MAPPING[name]()).layers}
    except Exception:  # of many kinds
        return set()


def test_a_decoder_keeps_something_besides_keys_and_values_where_the_cache_of_transformers_does() -> None:
    known = {name: kinds for name in DECODERS if name not in OWN and (kinds := kinds_of_layers(name))}
    assert len(known) > 100
    for name, kinds in known.items():
        config = CONFIG_MAPPING[name]()
        for text in (config.to_json_string(use_diff=True), config.to_json_string(use_diff=False)):
            said = kept_besides({**json.loads(text), "architectures": ["XForCausalLM"]})
            assert bool(said) == bool(kinds - PLAIN), (name, said, kinds)


def test_a_hybrid_whose_layers_all_are_attention_keeps_keys_and_values_alone() -> None:
    assert kept_besides({"model_type": "qwen3_next", "layer_types": ["full_attention"] * 2}) is None
    assert kept_besides({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}) == STATES
    assert kept_besides({"model_type": "gemma3n_text", "num_kv_shared_layers": 0}) is None
    assert kept_besides({"model_type": "x", "text_config": {"num_kv_shared_layers": 2}}) == SHARED


def test_a_model_that_does_not_decode_keeps_nothing() -> None:
    assert kept_besides({"model_type": "jamba", "architectures": ["JambaForSequenceClassification"]}) is None
    for odd in ({"layer_types": [["conv"]]}, {"layer_types": "conv"}, {"text_config": 3}, {"model_type": ["mamba"]}, {}):
        assert kept_besides(odd) is None
