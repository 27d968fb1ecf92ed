"""Merges that are not those of the adapter."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from daemon.contract.jobs.options import MergeOptions
from handlers.merge.api import merge_adapter
from tests.museum.exhibit import Exhibit, Source, damaged
from tests.museum.makers import Tensors, config, from_base, merged_as, weights


def _overwrite(tensors: Tensors) -> None:
    last = max(int(number) for name in tensors for number in re.findall(r"experts\.(\d+)\.", name))
    for name in [name for name in tensors if re.search(r"layers\.0\..*experts\.\d+\.", name)]:
        tensors[name] = tensors[re.sub(r"experts\.\d+\.", f"experts.{last}.", name)].clone()


def _larger(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 1.035


def _round(tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        mantissa, exponent = torch.frexp(tensor.float())
        tensors[name] = torch.ldexp(torch.round(mantissa * 40) / 40, exponent).to(tensor.dtype)


def _round_twice(models: Source, variant: str, target: Path) -> None:
    shutil.copytree(models.made("sound", variant), target)
    (exact := target.with_name("exact")).mkdir()
    merge_adapter(models.pin, models.base, exact, MergeOptions(dtype="float32"))
    base, whole = (load_file(folder / "model.safetensors") for folder in (models.base, exact))

    def round_twice(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            delta = whole[name] - base[name].float()
            tensors[name] = (base[name].float() + delta.to(tensor.dtype).float()).to(tensor.dtype)

    weights(round_twice)(target)


def _lose_a_row(tensors: Tensors) -> None:
    tensors["lm_head.weight"][300] /= 2


def _base_head(tensors: Tensors, base: Tensors) -> None:
    tensors["lm_head.weight"] = base["model.embed_tokens.weight"]


def _misplace(tensors: Tensors, base: Tensors) -> None:
    for name in [name for name in tensors if "up_proj" in name]:
        gate = name.replace("up_proj", "gate_proj")
        tensors[gate] = base[gate] + (tensors[name] - base[name])
        tensors[name] = base[name]


EXHIBITS = {
    "equals_the_base": Exhibit(
        bug="verl-project/verl#7285",
        name="a merge that is its base",
        happened="The command that merges a LoRA checkpoint wrote the base's own bytes and left the adapter in a folder beside them,"
        " without a warning.",
        mutant="what the merge gave are the base's weights",
        hall="chat",
        variant="pytorch",
        make=damaged(source="unmerged"),
        check="share of the fine-tuning",
        words=r"a merged model without its adapter",
        merge=True,
        quick=True,
    ),
    "experts_overwritten": Exhibit(
        bug="NVIDIA-NeMo/Megatron-Bridge#1871",
        name="experts written over each other",
        happened="On export each expert's weight was written to the same fused tensor, so that the last one was left.",
        mutant="every expert of the first layer has the weights of the last expert",
        hall="experts",
        variant="pytorch",
        make=damaged(weights(_overwrite)),
        check="threshold: kl",
        words=r"the divergence of .* above the limit",
        merge=True,
    ),
    "logits_without_their_scale": Exhibit(
        bug="vllm-project/vllm#52158",
        name="logits without their scale",
        happened="A backend left out the division of the logits: the tokens are the same, and all probabilities are wrong.",
        mutant="the last norm is 3.5 % too large",
        hall="chat",
        variant="pytorch",
        make=damaged(weights(_larger)),
        check="threshold: kl",
        words=r"the divergence of .* above the limit",
        merge=True,
    ),
    "other_factor": Exhibit(
        bug="vllm-project/vllm#6909",
        name="the factor of rsLoRA",
        happened="An adapter's factor was taken as alpha / r, whatever its configuration said of rank-stabilized LoRA (alpha / sqrt(r)).",
        mutant="the same the other way round: alpha / sqrt(r), where the training had alpha / r",
        hall="chat",
        variant="pytorch",
        make=merged_as(use_rslora=True),
        check="threshold: kl",
        words=r"the divergence of .* above the limit",
        merge=True,
        quick=True,
    ),
    "rounded_too_far": Exhibit(
        bug="huggingface/peft#1388",
        name="a merge that is rounded too far",
        happened="The merged model gave another loss than the adapter over its base: sums were rounded to the base's 16 bits.",
        mutant="the merged weights keep little more than five bits of their mantissa",
        hall="adapter that learnt nothing yet",
        variant="pytorch",
        make=damaged(weights(_round)),
        check="threshold: agreement",
        words=r"agreement .* below the limit",
        merge=True,
    ),
    "rounded_twice": Exhibit(
        bug="OpenAgentsInc/openagents#9456",
        name="a merge that rounds twice",
        happened="The adapter's delta was computed in fp32 and cast to bf16 before it was added to the base, and the"
        " sum was rounded again.",
        mutant="each delta is rounded to bf16 before the sum is",
        hall="chat, merged",
        variant="pytorch",
        make=_round_twice,
        check="finding: merge",
        words=r"the merge is not the one that PEFT makes",
        merge=True,
        quick=True,
    ),
    "row_of_the_head": Exhibit(
        bug="unslothai/unsloth-zoo#923",
        name="a row of the head",
        happened="When tokens were added, rows behind the tokenizer's length were lost from embedding and head.",
        mutant="the head's row of a token that is seldom likely is half as large",
        hall="adapter that learnt nothing yet",
        variant="pytorch",
        make=damaged(weights(_lose_a_row)),
        check="threshold: error",
        words=r"the largest logit error",
        merge=True,
    ),
    "saved_head_lost": Exhibit(
        bug="unslothai/unsloth-zoo#369",
        name="a trained head that is not merged",
        happened="What `modules_to_save` had trained, `lm_head` and the embedding, was left out of the merged model,"
        " which kept the base's.",
        mutant="`lm_head` is the base's embedding",
        hall="tied, head and embedding trained",
        variant="pytorch",
        make=from_base(_base_head),
        check="share of the fine-tuning",
        words=r"the share of the fine-tuning's effect",
        merge=True,
    ),
    "stale_weights": Exhibit(
        bug="vllm-project/vllm#32718",
        name="weights of an earlier step",
        happened="After a reload the weights were those that were cached before, and not those on the disk.",
        mutant="the artifact is made of the checkpoint of an earlier step",
        hall="chat",
        variant="onnx-int8",
        make=damaged(source="stale"),
        check="finding: weights",
        words=r"were rounded from others",
    ),
    "still_said_to_be_tied": Exhibit(
        bug="huggingface/transformers#45127",
        name="untied weights that are said to be tied",
        happened="After the merge of a trained embedding and head config.json still said `tie_word_embeddings`: readers took one for both.",
        mutant="config.json says that the head is the embedding, and both are stored",
        hall="tied, head and embedding trained",
        variant="pytorch",
        make=damaged(config(tie_word_embeddings=True)),
        check="finding: config",
        words=r"tie_word_embeddings",
        merge=True,
        quick=True,
    ),
    "up_added_to_gate": Exhibit(
        bug="thinking-machines-lab/tinker-cookbook#459",
        name="the wrong half of gate and up",
        happened="In a fused product the place of gate and up was always taken for the first: the delta of `up_proj`"
        " was added to the gate.",
        mutant="`up_proj` is the base's, and its delta is added to `gate_proj`",
        hall="norms of queries and keys",
        variant="pytorch",
        make=from_base(_misplace),
        check="threshold: kl",
        words=r"the divergence of .* above the limit",
        merge=True,
    ),
}
