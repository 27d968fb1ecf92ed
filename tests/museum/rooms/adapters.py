"""Adapters that a program reads or writes otherwise."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import Tensors, adapter
from tests.validate.damage_files import keys


def _prefixed(tensors: Tensors) -> Tensors:
    return {name.replace("model.layers", "language_model.model.layers"): tensor for name, tensor in tensors.items()}


EXHIBITS = {
    "alpha_zero": Exhibit(
        bug="verl-project/verl#5325",
        name="an alpha of 0",
        happened="The tool that takes a LoRA adapter out of a checkpoint wrote `lora_alpha` 0: the adapter did nothing.",
        mutant="adapter_config.json says `lora_alpha` 0",
        hall="adapter",
        variant="pytorch-adapter",
        make=damaged(keys("adapter_config.json", lora_alpha=0)),
        check="share of the fine-tuning",
        words=r"a merged model without its adapter",
        quick=True,
    ),
    "keys_with_another_prefix": Exhibit(
        bug="vllm-project/vllm#34186",
        name="keys that match no module",
        happened="An adapter whose keys had another prefix than the server's modules was loaded and answered as the base does.",
        mutant="the keys of the adapter name `language_model.model.layers`",
        hall="adapter",
        variant="pytorch-adapter",
        make=damaged(adapter(_prefixed)),
        check="it runs",
        words=r"could not be run: PEFT itself can't put this adapter on its base: it leaves 16 tensors",
        quick=True,
    ),
    "rank_stabilized": Exhibit(
        bug="NVIDIA/TensorRT-LLM#1668",
        name="the factor of rsLoRA in a runtime",
        happened="A runtime divided alpha by the rank although the adapter was trained with rsLoRA.",
        mutant="adapter_config.json says `use_rslora`, and the adapter was trained without",
        hall="adapter",
        variant="pytorch-adapter",
        make=damaged(keys("adapter_config.json", use_rslora=True)),
        check="threshold: kl",
        words=r"the divergence of .* above the limit",
    ),
}
