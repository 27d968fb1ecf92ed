"""Artifacts that are wrong in one way each, made of small trained models: what validation must catch, and by which words.

`python -m tests.validate.sabotage` runs all of them and prints the table of what was caught; `test_sabotage.py` runs them as tests.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from handlers.merge.api import merge_adapter
from handlers.texts.built_in import BUILT_IN
from tests import models
from tests.onnx.conftest import describe
from tests.onnx.small import derived
from tests.pytorch import forms
from tests.validate import artifacts, zoo
from tests.validate.bench import Bench, measured

GRAPHS = ("onnx", "onnx-int8", "onnx-int4", "onnx-fp16")
ROUNDED = ("pytorch-bnb-int8", "pytorch-bnb-nf4", "pytorch-w8a8", "pytorch-w4a16")
FOLDERS = ("pytorch-fp16", "pytorch-bf16", *ROUNDED)
PROGRAMS = ("torchscript", "pt2")
VARIANTS = ("pytorch", *GRAPHS, *FOLDERS, *PROGRAMS)
STEPS = 12
PROMPTS = (*BUILT_IN[:6], *models.TEXTS[3:])


@dataclass(frozen=True)
class Lab:
    """A base that knows half of the texts, and a run that learns the others."""

    folder: Path

    @property
    def base(self) -> Path:
        return self.folder / "base"

    def checkpoint(self, step: int = STEPS, run: str = "run") -> Path:
        return self.folder / run / f"checkpoint-{step}"

    def made(self, source: str, variant: str) -> Path:
        """An artifact of a source: "sound", "stale", "other", "unmerged", or a model with another name that was put there. Read only."""
        target = self.folder / "made" / source / variant
        if target.is_dir():
            return target
        if variant == "pytorch":
            self._merge(source, target)
        elif variant == "onnx":
            describe(artifacts.export_onnx(self.made(source, "pytorch"), target))
        elif variant in (*FOLDERS, *PROGRAMS):
            staged, _ = forms.make(variant, self.made(source, "pytorch"), self.folder / "scratch" / f"{source}-{variant}")
            shutil.copytree(staged, target)
            self._tokenizer(target)
        else:
            scratch = self.folder / "scratch" / f"{source}-{variant}"
            shutil.copytree(derived(variant.removeprefix("onnx-"), self.made(source, "onnx"), scratch).folder, target)
        return target

    def source(self, variant: str) -> Path | None:
        """The sound folder that a variant is derived from."""
        return self.made("sound", "onnx") if variant in GRAPHS[1:] else None

    def _merge(self, source: str, target: Path) -> None:
        target.mkdir(parents=True)
        checkpoints = {"sound": self.checkpoint(), "stale": self.checkpoint(STEPS // 3), "other": self.checkpoint(run="other")}
        if source in checkpoints:
            merge_adapter(checkpoints[source], self.base, target)
        else:
            shutil.copytree(self.base if source == "unmerged" else self.made("sound", "pytorch"), target, dirs_exist_ok=True)
            WEIGHTS.get(source, lambda folder: None)(target)
        self._tokenizer(target)

    def _tokenizer(self, target: Path) -> None:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(self.base / name, target / name)

    def bench(self, scratch: Path) -> Bench:
        """The live model, measured."""
        return measured(self.checkpoint(), self.base, self.made("sound", "pytorch"), scratch, PROMPTS)


def make(folder: Path) -> Lab:
    """Train base and runs in `folder`; about ten seconds."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # threads that wait for each other cost more than they do
    base = models.make_base(folder / "base", dtype="float32", hidden_size=256, intermediate_size=512, initializer_range=0.02)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    batch = tokenizer(models.TEXTS[:3], padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.to(torch.bfloat16).save_pretrained(base)
    for run, size in (("run", 2), ("other", 3)):
        models.train_run(base, folder / run, steps=STEPS, save_steps=STEPS // 3, learning_rate=5e-3, batch=size)
    return Lab(folder)


def edit_tensors(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})


_LAYER = re.compile(r"\.(layers|layer|h|block)\.(\d+)\.")
"""The number of a layer in a tensor's name: Qwen3 and Llama, BERT, GPT-2, T5."""


def _first(tensors: dict[str, Any], layer: str, parts: str) -> str:
    """The first weight of a layer, by name, that `parts` is found in."""
    return next(
        name for name in sorted(tensors)
        if (found := _LAYER.search(name)) and found[2] == layer and name.endswith(".weight") and re.search(parts, name)
    )  # fmt: skip


def _swap_layers(folder: Path) -> None:
    def swap(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if (found := _LAYER.search(name)) and found[2] == "0"]:
            other = _LAYER.sub(r".\1.1.", name, count=1)
            if other in tensors:  # only the first layer of T5 has the biases of distances, only the second one of ModernBERT a norm
                tensors[name], tensors[other] = tensors[other], tensors[name]

    edit_tensors(folder, swap)


def _zero_a_norm(folder: Path) -> None:
    def zero(tensors: dict[str, Any]) -> None:
        tensors[_first(tensors, "1", r"input_layernorm|ln_1|attention\.output\.LayerNorm|attn_norm|layer\.0\.layer_norm")] *= 0

    edit_tensors(folder, zero)


def _corrupt_a_block(folder: Path) -> None:
    """A page of the file, in a matrix, becomes noise of the same deviation."""
    import torch

    def corrupt(tensors: dict[str, Any]) -> None:
        flat = tensors[_first(tensors, "0", r"gate_proj|c_fc|intermediate\.dense|mlp\.Wi|DenseReluDense\.wi_0")].view(-1)
        flat[:2048] = (torch.randn(2048, generator=torch.manual_seed(0)) * flat.float().std() * 4).to(flat.dtype)

    edit_tensors(folder, corrupt)


def _other_theta(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    zoo.edit_json(folder / "config.json", rope_parameters={**config["rope_parameters"], "rope_theta": 100.0})


WEIGHTS: dict[str, Callable[[Path], None]] = {
    "swapped layers": _swap_layers, "zeroed scales": _zero_a_norm, "corrupted block": _corrupt_a_block, "rope theta": _other_theta,
}  # fmt: skip
"""Source → what is done to the merged model before graphs are made of it."""
SOURCES = ("sound", "stale", "other", "unmerged", *WEIGHTS)
"""What artifacts of a lab may be made of; only the first is right."""


def _decoder(folder: Path) -> Path:
    """The graph of a folder that is damaged: of an encoder-decoder, the one that has a past."""
    return next(path for name in ("model.onnx", "decoder_with_past_model.onnx") if (path := folder / name).is_file())


def _zero_a_scale(folder: Path) -> None:
    """The scales of one quantized matrix, in the middle of the graph."""
    model = onnx.load(_decoder(folder))
    scales = [one for one in model.graph.initializer if "scale" in one.name and np.prod(one.dims) > 1]
    scale = scales[len(scales) // 2]
    scale.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(scale)), scale.name))
    onnx.save(model, _decoder(folder))


def _change_constant(folder: Path, pattern: str, factor: float) -> None:
    """Multiply the constant in the middle of those of a graph whose names are found by `pattern`."""
    model = onnx.load(_decoder(folder))
    found = [one for one in model.graph.initializer if re.search(pattern, one.name)]
    one = found[len(found) // 2]
    array = numpy_helper.to_array(one)
    one.CopyFrom(numpy_helper.from_array((array * factor).astype(array.dtype), one.name))
    onnx.save(model, _decoder(folder))


def _zero_a_norm_of_the_graph(folder: Path) -> None:
    _change_constant(folder, r"input_layernorm\.weight", 0)


def _slower_rotation(folder: Path) -> None:
    """Half the frequencies of the rotary embedding, an initializer or a constant with one for each pair of a head's dimensions."""
    model = onnx.load(_decoder(folder))
    config = json.loads((folder / "config.json").read_text())
    values = [
        attribute.t for node in model.graph.node if node.op_type == "Constant" for attribute in node.attribute if attribute.name == "value"
    ]
    for one in (*model.graph.initializer, *values):
        if one.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16) and np.prod(one.dims) == config["head_dim"] // 2:
            array = numpy_helper.to_array(one)
            one.CopyFrom(numpy_helper.from_array((array * 0.5).astype(array.dtype), one.name))
            break
    else:
        raise AssertionError("the graph has no frequencies")
    onnx.save(model, _decoder(folder))


def _zero_stored_scales(folder: Path) -> None:
    """The same of a PyTorch folder, for half of the matrix."""

    def zero(tensors: dict[str, Any]) -> None:
        name = next(name for name in sorted(tensors) if name.endswith(("SCB", "absmax", "_scale")) and ".layers.1.mlp.up_proj" in name)
        tensors[name].view(-1)[: tensors[name].numel() // 2] = 0

    edit_tensors(folder, zero)


def _noise_in_stored_numbers(folder: Path) -> None:
    """A page of the packed numbers of one matrix becomes noise."""
    import torch

    def corrupt(tensors: dict[str, Any]) -> None:
        name = next(name for name in (f"model.layers.0.mlp.gate_proj.weight{end}" for end in ("_packed", "")) if name in tensors)
        flat = tensors[name].view(torch.uint8).view(-1)
        flat[4096:8192] = torch.randint(0, 256, (4096,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)

    edit_tensors(folder, corrupt)


def _lose_a_tensor(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.pop("model.layers.1.post_attention_layernorm.weight"))


def _other_epsilon(folder: Path) -> None:
    zoo.edit_json(folder / "config.json", rms_norm_eps=1e-5)


def _other_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][1:]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def _other_end(folder: Path) -> None:
    zoo.edit_json(folder / "generation_config.json", eos_token_id=7)


def _other_padding_token(folder: Path) -> None:
    zoo.edit_json(folder / "tokenizer_config.json", pad_token="<|end|>")


def _shift_cached_positions(folder: Path) -> None:
    """Where there is a cache, every position is one too many."""
    model = onnx.load(folder / "model.onnx")
    past = next(value.name for value in model.graph.input if value.name.startswith("past_key_values."))
    for node in model.graph.node:
        node.input[:] = ["shifted_positions" if used == "position_ids" else used for used in node.input]
    for key, value in (("at_2", [2]), ("at_3", [3]), ("none", [0]), ("one", [1])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), key))
    nodes = [
        helper.make_node("Shape", [past], ["past_shape"]),
        helper.make_node("Slice", ["past_shape", "at_2", "at_3"], ["past_length"]),
        helper.make_node("Greater", ["past_length", "none"], ["has_past"]),
        helper.make_node("Cast", ["has_past"], ["offset"], to=TensorProto.INT64),
        helper.make_node("Add", ["position_ids", "offset"], ["shifted_positions"]),
    ]
    for place, node in enumerate(nodes):
        model.graph.node.insert(place, node)
    onnx.save(model, folder / "model.onnx")


def _lose_a_token(folder: Path) -> None:
    """The first token of each cache given back is overwritten by the one after it."""
    model = onnx.load(_decoder(folder))
    names = [value.name for value in model.graph.output if value.name.startswith("present.")]
    for node in model.graph.node:
        node.output[:] = [f"whole_{made}" if made in names else made for made in node.output]
        node.input[:] = [f"whole_{used}" if used in names else used for used in node.input]
    for key, value in (("from_1", 1), ("from_2", 2), ("to_end", 1 << 40), ("axis_2", 2)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), key))
    for name in names:
        model.graph.node.append(helper.make_node("Slice", [f"whole_{name}", "from_1", "to_end", "axis_2"], [f"rest_{name}"]))
        model.graph.node.append(helper.make_node("Slice", [f"whole_{name}", "from_1", "from_2", "axis_2"], [f"second_{name}"]))
        model.graph.node.append(helper.make_node("Concat", [f"second_{name}", f"rest_{name}"], [name], axis=2))
    onnx.save(model, _decoder(folder))


def _drop_a_token(folder: Path) -> None:
    """Each cache given back lacks its first token."""
    model = onnx.load(_decoder(folder))
    names = [value.name for value in model.graph.output if value.name.startswith("present.")]
    for node in model.graph.node:
        node.output[:] = [f"whole_{made}" if made in names else made for made in node.output]
        node.input[:] = [f"whole_{used}" if used in names else used for used in node.input]
    for key, value in (("from_1", 1), ("to_end", 1 << 40), ("axis_2", 2)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), key))
    for name in names:
        model.graph.node.append(helper.make_node("Slice", [f"whole_{name}", "from_1", "to_end", "axis_2"], [name]))
    onnx.save(model, _decoder(folder))


def _zero_unread_rows(folder: Path) -> None:
    """Rows of the embedding of tokens that no prompt holds are zeros; the end token's is one of them."""
    model = onnx.load(folder / "model.onnx")
    lookup = next(node for node in model.graph.node if node.op_type == "Gather" and node.input[1] == "input_ids")
    table = next(one for one in model.graph.initializer if one.name == lookup.input[0])
    rows = numpy_helper.to_array(table).copy()
    rows[1:8] = 0
    table.CopyFrom(numpy_helper.from_array(rows, table.name))
    onnx.save(model, folder / "model.onnx")


def _mistake_one_token(folder: Path) -> None:
    """A text of one token alone gets zeros, as where that size was traced as a constant."""
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        node.output[:] = ["whole_logits" if made == "logits" else made for made in node.output]
    for key, value in (("one_token", 1), ("token_axis", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), key))
    model.graph.node.extend([
        helper.make_node("Shape", ["attention_mask"], ["mask_shape"]),
        helper.make_node("Gather", ["mask_shape", "token_axis"], ["all_tokens"]),
        helper.make_node("Greater", ["all_tokens", "one_token"], ["several"]),
        helper.make_node("Cast", ["several"], ["factor"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["whole_logits", "factor"], ["logits"]),
    ])  # fmt: skip
    onnx.save(model, folder / "model.onnx")


def crowd(folder: Path, file: str = "model.onnx", output: str = "logits", ids: str = "input_ids") -> None:
    """Outputs are a tenth larger in batches of more than four rows."""
    model = onnx.load(folder / file)
    for node in model.graph.node:
        node.output[:] = [f"whole_{made}" if made == output else made for made in node.output]
        node.input[:] = [f"whole_{used}" if used == output else used for used in node.input]
    for key, value in (("four_rows", 4), ("row_axis", 0)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), key))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "a_tenth"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.float32), "once"))
    model.graph.node.extend([
        helper.make_node("Shape", [ids], ["ids_shape"]),
        helper.make_node("Gather", ["ids_shape", "row_axis"], ["all_rows"]),
        helper.make_node("Greater", ["all_rows", "four_rows"], ["many"]),
        helper.make_node("Cast", ["many"], ["many_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["many_float", "a_tenth"], ["more"]),
        helper.make_node("Add", ["more", "once"], ["row_factor"]),
        helper.make_node("Mul", [f"whole_{output}", "row_factor"], [output]),
    ])  # fmt: skip
    onnx.save(model, folder / file)


def _ignore_the_mask(folder: Path) -> None:
    plain = (folder / "model.onnx").is_file()
    artifacts.ignore_input(folder, "attention_mask", 1, "model.onnx" if plain else "encoder_model.onnx")


def _nothing(folder: Path) -> None:
    pass


@dataclass(frozen=True)
class Sabotage:
    """One way to be wrong."""

    name: str
    variants: tuple[str, ...]
    source: str
    """What the artifact is made of."""
    damage: Callable[[Path], None]
    """What is done to it then."""
    words: str
    """Words of the reason, as a regular expression."""


_WEIGHTS_DIFFER = "weights? .*(not those of the merge|is not that of the graph|were rounded from others)"
_FAR = r"agreement .* below the limit|divergence of .* above the limit|differs from the merged"
SABOTAGES = (
    Sabotage("swapped layers", VARIANTS, "swapped layers", _nothing, _FAR),
    Sabotage("zeroed scales", VARIANTS[:2], "zeroed scales", _nothing, _FAR),
    Sabotage("zeroed scales of the quantized weights", GRAPHS[1:3], "sound", _zero_a_scale, _WEIGHTS_DIFFER),
    Sabotage("a norm of the derived graph", GRAPHS[1:], "sound", _zero_a_norm_of_the_graph, _WEIGHTS_DIFFER),
    Sabotage("rotation of the derived graph", GRAPHS[1:], "sound", _slower_rotation, _WEIGHTS_DIFFER),
    Sabotage("zeroed stored scales", ROUNDED, "sound", _zero_stored_scales, r"up_proj.weight is not that of the merge"),
    Sabotage("noise in stored numbers", ROUNDED, "sound", _noise_in_stored_numbers, r"gate_proj.weight is not that of the merge"),
    Sabotage("zeroed norm", ("pytorch", *FOLDERS), "sound", _zero_a_norm, _WEIGHTS_DIFFER),
    Sabotage("lost tensor", ("pytorch", *FOLDERS), "sound", _lose_a_tensor, f"{_WEIGHTS_DIFFER}|(_layernorm.weight|1 weight) is missing"),
    Sabotage("wrong epsilon", ("pytorch", *GRAPHS[1:], *FOLDERS), "sound", _other_epsilon, "rms_norm_eps is 1e-05 instead of 1e-06"),
    Sabotage("corrupted block", VARIANTS, "corrupted block", _nothing, f"{_WEIGHTS_DIFFER}|differs from the merged"),
    Sabotage("wrong tokenizer", VARIANTS, "sound", _other_tokenizer, "its tokenizer gives other token ids"),
    Sabotage("wrong rope theta", VARIANTS, "rope theta", _nothing, _FAR),
    Sabotage("wrong end token", VARIANTS, "sound", _other_end, "special tokens .* eos_token_id is 7 instead of 1"),
    Sabotage("wrong padding token", VARIANTS, "sound", _other_padding_token, "special tokens .* pad_token is '<|end|>' instead of"),
    Sabotage("another run's checkpoint", VARIANTS, "other", _nothing, "of another checkpoint|differs from the merged"),
    Sabotage("an earlier step", VARIANTS, "stale", _nothing, "of an earlier or another checkpoint"),
    Sabotage("without its adapter", VARIANTS, "unmerged", _nothing, "a merged model without its adapter"),
    Sabotage("cached positions one too many", GRAPHS, "sound", _shift_cached_positions, "cached decoding .* the cache is broken"),
    Sabotage("cache overwritten by one", GRAPHS, "sound", _lose_a_token, "cached decoding .* the cache is broken"),
    Sabotage("cache dropped by one", GRAPHS, "sound", _drop_a_token, "cached decoding .* the cache is broken|could not be run"),
    Sabotage("rows that no prompt reads", GRAPHS[:1], "sound", _zero_unread_rows, "tokens from all over the vocabulary it differs"),
    Sabotage("a text of one token", GRAPHS[:1], "sound", _mistake_one_token,  # also in a batch, where no row has one token
             "tokens from all over the vocabulary it differs|in a batch of .* rows its outputs differ"),
    Sabotage("many rows", GRAPHS[:1], "sound", crowd, r"in a batch of \d+ rows its outputs differ .*: rows of a batch affect each other"),
    Sabotage("mask ignored", GRAPHS, "sound", _ignore_the_mask, "left-padded batch"),
)  # fmt: skip
CASES = [(one, variant) for one in SABOTAGES for variant in one.variants]


def checked(lab: Lab, bench: Bench, sabotage: Sabotage, variant: str, folder: Path) -> ArtifactCheck:
    """The check of an artifact that is wrong so; it is made in `folder`."""
    target = artifacts.copy(lab.made(sabotage.source, variant), folder / "artifact")
    sabotage.damage(target)
    return bench.checked(variant, target, lab.source(variant))


def main() -> None:
    """All of them, and the sound ones, as a table."""
    with tempfile.TemporaryDirectory() as name:
        lab = make(Path(name))
        bench = lab.bench(Path(name, "bench"))
        print(f"base: {bench.reference.adapter}\n")
        for variant in VARIANTS:
            check = bench.check(variant, lab.made("sound", variant), lab.source(variant))
            print(f"{'sound':40} {variant:10} {check.verdict.value:9} {_line(check)}")
        for number, (sabotage, variant) in enumerate(CASES):
            check = checked(lab, bench, sabotage, variant, Path(name, f"case-{number}"))
            print(
                f"{sabotage.name:40} {variant:10} {'caught' if check.verdict is Verdict.FAILED else 'MISSED':8} {_line(check)}", flush=True
            )


def _line(check: ArtifactCheck) -> str:
    names = ("kl", "agreement", "error_max", "fine_tuning", "fine_tuning_interval", "growth", "growth_interval", "cache_growth")
    told = {name: check.figures.get(name) for name in names}
    cache, unit = check.figures.get("cache_error_max_absolute"), check.figures.get("logit_std") or 1
    figures = ", ".join(f"{name} {_short(value)}" for name, value in told.items())
    reasons = f"\n      {' | '.join((*check.reasons, *(f'NOTE {note}' for note in check.figures.get('notes', ()))))}"
    return f"{figures}, cache {_short(cache and cache / unit)}{reasons if '-v' in sys.argv else ''}"


def _short(value: Any) -> str:
    return "[" + ", ".join(map(_short, value)) + "]" if isinstance(value, list) else "–" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()
