"""Whatever the shapes, ranks, dtypes and shardings: every output is the formula's, every other tensor the base's bytes."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from daemon.contract.models.safetensors import DTYPES as WIDTHS
from daemon.contract.models.safetensors import read_header
from handlers.merge import merge_adapter
from handlers.merge.engine import streaming
from handlers.merge.plan.output_layout import Output, build_header

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
KINDS = ("kept", "linear", "dora", "turned", "embedding", "embedding-dora", "conv", "saved", "bias", "whole-number")


@dataclass(frozen=True)
class Layer:
    """One tensor of the base and what the adapter does to it."""

    kind: str
    rows: int
    columns: int
    rank: int
    dtype: str
    shard: int


layers = st.builds(
    Layer,
    st.sampled_from(KINDS),
    st.integers(1, 33),
    st.integers(1, 33),
    st.integers(1, 9),
    st.sampled_from(sorted(DTYPES)),
    st.integers(0, 3),
)


def random(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator) * 0.5


class Made:
    """A base and an adapter on disk, with what the merge has to give."""

    def __init__(self, folder: Path, table: list[Layer], seed: int, alpha: int, rslora: bool) -> None:
        self.base, self.adapter, self.output = (folder / name for name in ("base", "adapter", "output"))
        for one in (self.base, self.adapter, self.output):
            one.mkdir()
        self.generator = torch.Generator().manual_seed(seed)
        self.weights: dict[str, torch.Tensor] = {}
        self.factors: dict[str, torch.Tensor] = {}
        self.expected: dict[str, torch.Tensor] = {}
        ranks: dict[str, int] = {}
        shards: dict[int, dict[str, torch.Tensor]] = {}
        config: dict[str, Any] = {
            "peft_type": "LORA", "r": 1, "lora_alpha": alpha, "use_rslora": rslora, "rank_pattern": ranks, "target_modules": "none",
            "use_dora": any("dora" in layer.kind for layer in table), "fan_in_fan_out": True,
        }  # fmt: skip
        for number, layer in enumerate(table):
            module = f"model.block.{number}"
            ranks[f"block.{number}"] = layer.rank
            self.scale = alpha / (math.sqrt(layer.rank) if rslora else layer.rank)
            name = f"{module}.bias" if layer.kind == "bias" else f"{module}.weight"
            self.weights[name] = self._weight(layer)
            shards.setdefault(layer.shard, {})[name] = self.weights[name]
            self._change(layer, name, f"base_model.model.{module}", config)
        self._save(shards)
        (self.adapter / "adapter_config.json").write_text(json.dumps(config))
        save_file(self.factors, self.adapter / "adapter_model.safetensors")

    def _weight(self, layer: Layer) -> torch.Tensor:
        shape: tuple[int, ...] = (layer.rows, layer.columns)
        if layer.kind == "conv":
            shape = (layer.rows, layer.columns, 3)
        if layer.kind == "bias":
            shape = (layer.rows,)
        if layer.kind == "whole-number":
            return torch.arange(layer.rows * layer.columns).view(shape)
        return random(shape, self.generator).to(DTYPES[layer.dtype])

    def _save(self, shards: dict[int, dict[str, torch.Tensor]]) -> None:
        (self.base / "config.json").write_text(json.dumps({"tie_word_embeddings": False, "model_type": "none"}))
        if len(shards) == 1:
            save_file(self.weights, self.base / "model.safetensors", metadata={"format": "pt"})
            return
        mapping = {}
        for number, table in shards.items():
            save_file(table, self.base / f"part-{number}.safetensors")
            mapping.update(dict.fromkeys(table, f"part-{number}.safetensors"))
        (self.base / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": mapping}))

    def _change(self, layer: Layer, name: str, prefix: str, config: dict[str, Any]) -> None:
        weight = self.weights[name]
        before = weight.double()
        if layer.kind in ("kept", "whole-number"):
            self.expected[name] = weight
            return
        if layer.kind in ("saved", "bias"):
            value = random(tuple(weight.shape), self.generator)
            self.factors[name.replace("model.", "base_model.model.model.", 1)] = value
            self.expected[name] = value.double()
            return
        rows, columns = (
            (layer.columns, layer.rows) if layer.kind in ("turned", "embedding", "embedding-dora") else (layer.rows, layer.columns)
        )
        operation = (3,) if layer.kind == "conv" else ()
        a = random((layer.rank, columns, *operation), self.generator)
        b = random((rows, layer.rank, *(1 for _ in operation)), self.generator)
        delta = (b.double().reshape(rows, -1) @ a.double().reshape(layer.rank, -1)) * self.scale
        delta = delta.T if layer.kind in ("turned", "embedding", "embedding-dora") else delta.reshape(weight.shape)
        side = "embedding_" if layer.kind.startswith("embedding") else ""
        end = "" if side else ".weight"
        self.factors[f"{prefix}.lora_{side}A{end}"], self.factors[f"{prefix}.lora_{side}B{end}"] = a, b
        merged = before + delta
        if config["use_dora"]:
            magnitude = random((rows,), self.generator).abs() + 0.5
            self.factors[f"{prefix}.lora_magnitude_vector"] = magnitude
            turned = layer.kind in ("turned", "embedding", "embedding-dora")
            norm = merged.norm(dim=0) if turned else merged.reshape(rows, -1).norm(dim=1)
            factor = magnitude.double() / norm
            merged = merged * (factor if turned else factor.view(-1, *(1 for _ in merged.shape[1:])))
        self.expected[name] = merged


@settings(max_examples=40, deadline=None)
@given(
    table=st.lists(layers, min_size=1, max_size=7), seed=st.integers(0, 2**31), alpha=st.integers(1, 33), rslora=st.booleans(),
    block=st.sampled_from([1, 7, 64, 1 << 20]),
)  # fmt: skip
def test_any_model_is_merged_as_the_formula_says(table: list[Layer], seed: int, alpha: int, rslora: bool, block: int) -> None:
    # A square weight's orientation is settled by its neighbours, so that random neighbours contradict each other.
    table = [
        layer
        if layer.kind not in ("linear", "dora", "turned") or layer.rows != layer.columns
        else Layer("kept", *list(vars(layer).values())[1:])
        for layer in table
    ]
    if all(layer.kind in ("kept", "whole-number") for layer in table):
        table = [*table, Layer("linear", 5, 3, 2, "BF16", 0)]
    before, streaming.BLOCK = streaming.BLOCK, block
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = Made(Path(folder), table, seed, alpha, rslora)
            report = merge_adapter(made.adapter, made.base, made.output)
            assert report.strategy == "streaming"
            check(made)
    finally:
        streaming.BLOCK = before


def check(made: Made) -> None:
    names = {path.name for path in made.base.iterdir()}
    assert {path.name for path in made.output.iterdir()} == names
    seen: dict[str, torch.Tensor] = {}
    for path in made.output.glob("*.safetensors"):
        table = load_file(path)
        assert table.keys() == load_file(made.base / path.name).keys()
        seen.update(table)
    for name, expected in made.expected.items():
        got, stored = seen[name], made.weights[name]
        assert (got.dtype, got.shape) == (stored.dtype, stored.shape)
        if expected is stored:
            assert torch.equal(got, stored)
            continue
        limit = torch.finfo(got.dtype)
        # One rounding of the result, one of the delta of an embedding, and the sums' own in fp32.
        scale = max(float(expected.abs().max()), float(stored.double().abs().max()), float((expected - stored.double()).abs().max()), 1e-6)
        assert (got.double() - expected).abs().max() <= 2 * limit.eps * scale + 64 * torch.finfo(torch.float32).eps * scale


@settings(max_examples=100, deadline=None)
@given(
    table=st.dictionaries(
        st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(["F32", "BF16", "I64", "BOOL", "U8"]), st.lists(st.integers(0, 5), max_size=3)),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_a_header_that_is_written_is_read_by_this_reader_and_the_library_s(table: dict[str, tuple[str, list[int]]]) -> None:
    outputs = [Output(name, "x", dtype, tuple(shape)) for name, (dtype, shape) in table.items()]
    header = build_header(outputs, {"format": "pt"})
    assert len(header) % 8 == 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(header + bytes(sum(output.size for output in outputs)))
        assert {name: (info.dtype, info.shape) for name, info in read_header(path).items()} == {o.name: (o.dtype, o.shape) for o in outputs}
        with safe_open(path, "pt") as stream:
            assert set(stream.keys()) == table.keys()
            assert all(list(stream.get_slice(name).get_shape()) == shape for name, (_, shape) in table.items())


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.sampled_from(["F32", "BF16", "I64", "U8"]), st.integers(1, 7)), min_size=1, max_size=9),
    more=st.integers(1, 5),
)
def test_a_file_that_is_laid_out_anew_has_every_tensor_at_a_multiple_of_its_element(sizes: list[tuple[str, int]], more: int) -> None:
    from handlers.merge.plan.output_layout import plan
    from handlers.models.folder import ModelFolder

    with tempfile.TemporaryDirectory() as folder:
        kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "U8": torch.uint8}
        table = {f"t{number}": torch.zeros(size, dtype=kinds[dtype]) for number, (dtype, size) in enumerate(sizes)}
        save_file(table, Path(folder) / "model.safetensors")
        headers = ModelFolder(Path(folder)).headers
        outputs = [Output(name, info.file, info.dtype, info.shape, info) for name, info in headers.items()]
        outputs.append(Output("added", "model.safetensors", "U8", (more,)))
        (file,) = plan(ModelFolder(Path(folder)), outputs).files
        assert all(start % WIDTHS[output.dtype][1] == 0 for output, start in zip(file.outputs, file.starts, strict=True))
        assert file.size == file.starts[-1] + file.outputs[-1].size
