"""Quantizations that are skipped, or that take too much away."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.museum.exhibit import Exhibit, Make, Source, damaged
from tests.museum.makers import Tensors, like, weights
from tests.validate import artifacts


def _turned(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.endswith("_scale")]:
        tensors[name] = tensors[name].t().reshape(tensors[name].shape)


def _made_as(other: str) -> Make:
    def make(models: Source, variant: str, target: Path) -> None:
        shutil.copytree(models.made("sound", other), target)

    return make


def _whole(models: Source, variant: str, target: Path) -> None:
    artifacts.quantize(models.made("sound", "onnx"), target, whole=True)


EXHIBITS = {
    "attention_scale": Exhibit(
        bug="ml-explore/mlx-swift-examples#99",
        name="the scale of attention",
        happened="The scores of Gemma 2 were divided by another number than its configuration says.",
        mutant="the scores of a layer of the 4-bit graph are 5 % smaller",
        hall="twins",
        variant="onnx-int4",
        make=like("quantized", "attention scale - 5 %"),
        check="finding: structure",
        words=r"its graph is not the model that its own weights give",
    ),
    "delta_in_codes": Exhibit(
        bug="mflux-community/mflux#440",
        name="a delta that is added to codes",
        happened="A LoRA was folded into a layer whose weights are raw codes: the small delta was cut to nothing, and"
        " the adapter was gone.",
        mutant="the 8-bit form is made of the base's weights",
        hall="chat",
        variant="pytorch-bnb-int8",
        make=damaged(source="unmerged"),
        check="finding: weights",
        words=r"is not that of the merge",
    ),
    "light_fine_tune_erased": Exhibit(
        bug="ARahim3/mlx-tune#15",
        name="4 bits that erase a light fine-tune",
        happened="A lightly trained adapter was merged and rounded to 4 bits again: the model had forgotten everything.",
        mutant="the 4-bit form of a lightly trained model has the base's numbers, as where rounding takes the delta away",
        hall="light",
        variant="onnx-int4",
        make=damaged(source="unmerged"),
        check="share of the fine-tuning",
        words=r"few bits",
    ),
    "outliers_of_activations": Exhibit(
        bug="microsoft/onnxruntime#26507",
        name="activations with other scales",
        happened="A product of 4-bit weights with activations in 8 bits gave other results than PyTorch.",
        mutant="one scale of the activations is a third of what it should be",
        hall="twins static",
        variant="onnx-int8",
        make=like("quantized", "an activation's scale x 0.3"),
        check="finding: rounding",
        words=r"rounding takes too much away|moves a part",
    ),
    "scales_turned": Exhibit(
        bug="vllm-project/vllm#47115",
        name="scales that are turned",
        happened="Scales of blocks were transposed when they were loaded: their number is the same, and each block"
        " got another block's scale.",
        mutant="the scales of every matrix lie as those of its transpose",
        hall="chat",
        variant="pytorch-w4a16",
        make=damaged(weights(_turned)),
        check="finding: weights",
        words=r"is not that of the merge",
    ),
    "skipped": Exhibit(
        bug="modelscope/ms-swift#9830",
        name="a quantization that is skipped",
        happened="A command that merges and quantizes merged alone: the model stayed in 16 bits, without a word.",
        mutant="the folder of the 4-bit form has the merged model in 16 bits",
        hall="chat",
        variant="pytorch-w4a16",
        make=_made_as("pytorch"),
        check="finding: weights",
        words=r"its weights are not quantized: all of them are stored in bfloat16",
        quick=True,
    ),
    "skipped_in_a_graph": Exhibit(
        bug="modelscope/ms-swift#9830",
        name="a quantization of a graph that is skipped",
        happened="The same of a graph: nothing was quantized.",
        mutant="the folder of the 4-bit graph has the graph in fp32",
        hall="twins",
        variant="onnx-int4",
        make=_made_as("onnx"),
        check="finding: weights",
        words=r"its weights are not quantized: its files of weights have",
    ),
    "sums_overflow": Exhibit(
        bug="microsoft/onnxruntime#6004",
        name="sums of integers that overflow",
        happened="An int8 BERT gave right answers on processors with VNNI alone: elsewhere pairs of products saturate in 16 bits.",
        mutant="weights have all 8 bits",
        hall="chat",
        variant="onnx-int8",
        make=_whole,
        check="finding: portability",
        words=r"overflow|16 bits",
    ),
}
