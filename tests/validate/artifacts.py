"""Artifacts to validate: a merged folder by PEFT, an ONNX folder by torch's exporter, and graphs damaged on purpose."""

from __future__ import annotations

import contextlib
import io
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def merge_with_peft(base: Path, checkpoint: Path, target: Path) -> Path:
    """The merged model in the base's dtype, with the checkpoint's tokenizer."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    PeftModel.from_pretrained(model, str(checkpoint)).merge_and_unload().save_pretrained(target)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(target)
    return target


def export_onnx(merged: Path, target: Path) -> Path:
    """The merged model as one graph with cache, in fp32, traced by torch's older exporter, which takes about a second."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.cache_utils import DynamicCache

    model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32, attn_implementation="eager").eval()
    layers, heads, size = model.config.num_hidden_layers, model.config.num_key_value_heads, model.config.head_dim

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, positions: Any, *past: Any) -> Any:
            cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
            out = self.model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            return (out.logits, *(tensor for layer in out.past_key_values.layers for tensor in (layer.keys, layer.values)))

    pairs = [f"{index}.{part}" for index in range(layers) for part in ("key", "value")]
    inputs = ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{pair}" for pair in pairs)]
    outputs = ["logits", *(f"present.{pair}" for pair in pairs)]
    axes: dict[str, dict[int, str]] = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "position_ids", "logits")}
    axes["attention_mask"] = {0: "batch", 1: "total"}
    axes |= {name: {0: "batch", 2: "past"} for name in [*inputs[3:], *outputs[1:]]}
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, :2] = 0
    example = (
        torch.randint(0, 300, (2, 3)), mask, torch.arange(5, 8).repeat(2, 1),
        *(torch.randn(2, heads, 5, size) for _ in pairs),
    )  # fmt: skip
    target.mkdir(parents=True)
    with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Flat().eval(), example, str(target / "model.onnx"), dynamo=False, opset_version=18, input_names=inputs,
            output_names=outputs, dynamic_axes=axes,
        )  # fmt: skip
    _copy_side_files(merged, target)
    return target


def quantize(plain: Path, target: Path, *, whole: bool = False) -> Path:
    """The same graph with int8 weights per channel and dynamic activations, in 7 bits unless `whole` takes all 8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target.mkdir(parents=True)
    quantize_dynamic(
        plain / "model.onnx", target / "model.onnx", per_channel=True, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"],
        reduce_range=not whole, extra_options={"DefaultTensorType": TensorProto.FLOAT},
    )  # fmt: skip
    _copy_side_files(plain, target)
    return target


def copy(source: Path, target: Path) -> Path:
    """A copy that may be damaged."""
    shutil.copytree(source, target)
    return target


def damage_weight(folder: Path, scale: float) -> None:
    """Add noise, `scale` times its own deviation, to the largest initializer."""
    model = onnx.load(folder / "model.onnx")
    weight = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    values = numpy_helper.to_array(weight)
    noise = np.random.default_rng(0).normal(0, scale * values.std(), values.shape).astype(values.dtype)
    weight.CopyFrom(numpy_helper.from_array(values + noise, weight.name))
    onnx.save(model, folder / "model.onnx")


def ignore_input(folder: Path, name: str, fill: int, file: str = "model.onnx") -> None:
    """Let the graph read a constant of the same shape wherever it read the integer input `name`."""
    model = onnx.load(folder / file)
    shape, constant = f"{name}_shape", f"{name}_constant"
    value = helper.make_tensor("value", TensorProto.INT64, [1], [fill])
    for node in model.graph.node:
        node.input[:] = [constant if used == name else used for used in node.input]
    model.graph.node.insert(0, helper.make_node("Shape", [name], [shape]))
    model.graph.node.insert(1, helper.make_node("ConstantOfShape", [shape], [constant], value=value))
    onnx.save(model, folder / file)


def blank_cache(folder: Path, name: str, file: str = "model.onnx") -> None:
    """Multiply a float input by zero before anything reads it."""
    model = onnx.load(folder / file)
    for node in model.graph.node:
        node.input[:] = ["blanked" if used == name else used for used in node.input]
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), "zero_factor"))
    model.graph.node.insert(0, helper.make_node("Mul", [name, "zero_factor"], ["blanked"]))
    onnx.save(model, folder / file)


def drop_cache(folder: Path) -> None:
    """Let the graph begin with an empty cache each time and give logits alone."""
    model = onnx.load(folder / "model.onnx")
    past = [value for value in model.graph.input if value.name.startswith("past_key_values.")]
    sizes = [dimension.dim_value for dimension in past[0].type.tensor_type.shape.dim]
    shape = numpy_helper.from_array(np.array([sizes[1], 0, sizes[3]], np.int64), "empty_sizes")
    model.graph.initializer.extend([shape, *(numpy_helper.from_array(np.array([value], np.int64), f"at_{value}") for value in (0, 1))])
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["tokens_shape"]),
        helper.make_node("Slice", ["tokens_shape", "at_0", "at_1"], ["rows"]),
        helper.make_node("Concat", ["rows", "empty_sizes"], ["empty_shape"], axis=0),
        *(helper.make_node("ConstantOfShape", ["empty_shape"], [value.name]) for value in past),
    ]
    for place, node in enumerate(nodes):
        model.graph.node.insert(place, node)
    for value in past:
        model.graph.input.remove(value)
    del model.graph.output[1:]
    onnx.save(model, folder / "model.onnx")


def swap_outputs(folder: Path, first: str, second: str, file: str = "model.onnx") -> None:
    """Let two outputs give each other's values."""
    model = onnx.load(folder / file)
    names = {first: second, second: first}
    for node in model.graph.node:
        node.output[:] = [names.get(made, made) for made in node.output]
        node.input[:] = [names.get(used, used) for used in node.input]
    onnx.save(model, folder / file)


def empty_output(folder: Path, name: str, file: str) -> None:
    """Let an output of floats lose all its rows."""
    model = onnx.load(folder / file)
    for node in model.graph.node:
        node.output[:] = ["whole" if made == name else made for made in node.output]
        node.input[:] = ["whole" if used == name else used for used in node.input]
    for key, value in (("none_from", 0), ("none_to", 0), ("none_axis", 0)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), key))
    model.graph.node.append(helper.make_node("Slice", ["whole", "none_from", "none_to", "none_axis"], [name]))
    onnx.save(model, folder / file)


def _copy_side_files(source: Path, target: Path) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def rename_input(folder: Path, old: str, new: str) -> None:
    """Give a graph's input another name."""
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        node.input[:] = [new if used == old else used for used in node.input]
    next(value for value in model.graph.input if value.name == old).name = new
    onnx.save(model, folder / "model.onnx")
