"""Graphs that compute something else than the model."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.museum.exhibit import Exhibit, Source, damaged
from tests.museum.makers import Tensors, config, like, traced
from tests.validate import artifacts
from tests.validate.damage_files import text
from tests.validate.damage_length import scale_logits


def _with_another_epsilon(models: Source, variant: str, target: Path) -> None:
    other = target.with_name("pytorch")
    damaged(config(rms_norm_eps=1e-5))(models, "pytorch", other)
    artifacts.export_onnx(other, target)
    shutil.copyfile(models.made("sound", "pytorch") / "config.json", target / "config.json")


def _tiled(tensors: Tensors) -> None:
    for name in [name for name in tensors if "q_proj" in name or "o_proj" in name]:
        turned = tensors[name] if "q_proj" in name else tensors[name].t()
        heads = turned.reshape(4, -1, turned.shape[1])[[0, 2, 1, 3]].reshape(turned.shape)
        tensors[name] = heads if "q_proj" in name else heads.t()


EXHIBITS = {
    "cache_of_a_rounded_graph": Exhibit(
        bug="skyzh/tiny-llm#46",
        name="positions that jump",
        happened="After the first step positions went on from twice the length of the prompt.",
        mutant="where there is a cache, every position is one too many",
        hall="chat",
        variant="onnx-int4",
        make=like("sabotage", "cached positions one too many"),
        check="limit: cache",
        words=r"cached decoding .* the cache is broken",
    ),
    "epsilon_of_the_default": Exhibit(
        bug="nomic-ai/gpt4all#1946",
        name="an epsilon that is fixed",
        happened="The epsilon of the norms was written into the code (1e-5), and the model's own (1e-12) was not read.",
        mutant="the graph is of the model with another epsilon",
        hall="chat",
        variant="onnx",
        make=_with_another_epsilon,
        check="limit: merged",
        words=r"differs from the merged",
        quick=True,
    ),
    "example_that_loses_its_place": Exhibit(
        bug="huggingface/transformers#41430",
        name="an example that loses its place",
        happened="Translations by an exported Marian model were incomplete or wrong: masks, positions and the loop that writes tokens"
        " were not right.",
        mutant="the folder's `example.py` begins its positions anew at every step",
        hall="shown",
        variant="onnx",
        make=damaged(text("example.py", "np.arange(total - len(new), total,", "np.arange(0, len(new),")),
        check="finding: example",
        words=r"example",
    ),
    "heads_in_another_order": Exhibit(
        bug="onnx/onnx#7274",
        name="heads of keys in another order",
        happened="Keys and values of grouped attention were tiled (0, 1, 0, 1) where each belongs to neighbouring queries (0, 0, 1, 1).",
        mutant="the second and third query heads attend to each other's keys",
        hall="chat",
        variant="onnx",
        make=traced(_tiled),
        check="limit: merged",
        words=r"differs from the merged",
    ),
    "logits_without_their_scale": Exhibit(
        bug="vllm-project/vllm#52158",
        name="logits of a graph without their scale",
        happened="A backend left out the division of the logits: the tokens are the same, and all probabilities are wrong.",
        mutant="the logits are three times as large",
        hall="chat",
        variant="onnx",
        make=damaged(lambda folder: scale_logits(folder, 0, 3.0)),
        check="threshold: kl",
        words=r"the divergence of .* above the limit",
    ),
    "padding_is_read": Exhibit(
        bug="huggingface/optimum#1381",
        name="batches of unlike texts",
        happened="Exported graphs counted positions as if no text of a batch were padded: only batches of one text"
        " gave meaningful results.",
        mutant="the graph reads padding as text",
        hall="chat",
        variant="onnx",
        make=like("sabotage", "mask ignored"),
        check="limit: padding",
        words=r"left-padded batch",
        quick=True,
    ),
    "position_after_the_prompt": Exhibit(
        bug="pytorch/executorch#2689",
        name="a cache that is off by one",
        happened="The place where the cache goes on was one too far.",
        mutant="where there is a cache, every position is one too many",
        hall="chat",
        variant="onnx",
        make=like("sabotage", "cached positions one too many"),
        check="limit: cache",
        words=r"cached decoding .* the cache is broken",
        quick=True,
    ),
    "rotation_of_the_default": Exhibit(
        bug="InternLM/lmdeploy#4304",
        name="the default base of the rotary positions",
        happened="`rope_theta` was read at the top level of config.json, where transformers 5 no longer writes it: 10,000 was taken.",
        mutant="the graph rotates with another base",
        hall="chat",
        variant="onnx",
        make=damaged(source="rope theta"),
        check="limit: merged",
        words=r"differs from the merged",
        quick=True,
    ),
    "rows_of_a_batch": Exhibit(
        bug="huggingface/optimum#2326",
        name="rows of a batch",
        happened="Batched inference gave other numbers than single texts for many families.",
        mutant="outputs are a tenth larger in batches of more than four rows",
        hall="chat",
        variant="onnx",
        make=like("sabotage", "many rows"),
        check="finding: batch",
        words=r"rows of a batch affect each other",
    ),
    "rows_of_the_vocabulary": Exhibit(
        bug="unslothai/unsloth-zoo#923",
        name="rows of the vocabulary",
        happened="When tokens were added, the embedding was cut to the tokenizer's length, and trained rows behind it were lost.",
        mutant="seven rows of the embedding that no prompt reads are zeros",
        hall="chat",
        variant="onnx",
        make=like("sabotage", "rows that no prompt reads"),
        check="finding: rare tokens",
        words=r"tokens from all over the vocabulary it differs",
        quick=True,
    ),
}
