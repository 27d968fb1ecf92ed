"""The weights of the smaller forms beside those of the merge: what rounding gives is within the bounds, and anything else is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from tests import models
from tests.merge import helpers
from tests.onnx import qwen
from tests.pytorch import test_bitsandbytes
from tests.pytorch.forms import make
from tests.pytorch.test_rounding import matrix
from tests.sampling import some
from tests.validate.bench import Bench

HALVES = ("pytorch-fp16", "pytorch-bf16")
ROUNDED = ("pytorch-bnb-int8", "pytorch-bnb-nf4", "pytorch-w8a8", "pytorch-w4a16")
FORMS = (*HALVES, *ROUNDED)


def with_zeros(folder: Path) -> Path:
    """A model with rows, a matrix and blocks of zeros, and weights too small for fp16."""
    models.make_base(folder, dtype="float32", intermediate_size=96, tie_word_embeddings=False)

    def zero(table: dict[str, Any]) -> None:
        table["model.layers.0.mlp.up_proj.weight"][:5] = 0
        table["model.layers.0.mlp.up_proj.weight"][5] *= 1e-7
        table["model.layers.0.mlp.down_proj.weight"][:, :64] = 0
        table["model.layers.1.self_attn.q_proj.weight"].zero_()
        table["model.layers.1.self_attn.k_proj.weight"][3] *= 1e3

    helpers.rewrite(folder / "model.safetensors", zero)
    return folder


SOURCES: dict[str, Callable[[Path], Path]] = {
    **{name: make for name, (_, make) in test_bitsandbytes.SOURCES.items()},
    "Llama": lambda folder: qwen.make(folder, "Llama", tie_word_embeddings=False),
    "odd widths": lambda folder: models.make_base(folder, intermediate_size=100, head_dim=18),
    "zeros": with_zeros,
}
CASES = [(name, variant) for name in SOURCES for variant in FORMS]


def difference(folder: Path, merged: Path) -> str | None:
    from handlers.pytorch.weights.difference import difference

    return difference(folder, merged)


@pytest.mark.parametrize(("name", "variant"), some(CASES, 10))
def test_sound_forms_of_all_layouts_are_within_the_bounds(name: str, variant: str, tmp_path: Path) -> None:
    source = SOURCES[name](tmp_path / "model")
    try:
        folder, _ = make(variant, source, tmp_path / "work", shard=100_000)
    except Permanent as error:
        assert error.fault.code is FaultCode.FORM_NOT_POSSIBLE
        return  # transformers could not load it, which another test holds
    assert difference(folder, source) is None


def test_corrected_errors_are_within_the_bounds(live: Bench, tmp_path: Path) -> None:
    folder, output = make("pytorch-w4a16", live.merged, tmp_path)
    assert output.figures["corrected_layers"] == 14
    assert difference(folder, live.merged) is None


LAYER, OTHER = "model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"
NORM = "model.layers.1.input_layernorm.weight"
STORED = {"pytorch-w4a16": f"{LAYER}.weight_packed"}
SCALES = {
    "pytorch-bnb-int8": f"{LAYER}.SCB", "pytorch-bnb-nf4": f"{LAYER}.weight.absmax", "pytorch-w8a8": f"{LAYER}.weight_scale",
    "pytorch-w4a16": f"{LAYER}.weight_scale",
}  # fmt: skip
Table = dict[str, Any]


def stored(variant: str) -> str:
    return STORED.get(variant, f"{LAYER}.weight")


def nudge_an_embedding(table: Table, variant: str) -> None:
    import torch

    table["model.embed_tokens.weight"].view(torch.int16)[7, 3] ^= 1


def swap_two_matrices(table: Table, variant: str) -> None:
    for name in [name for name in table if name.startswith(f"{LAYER}.")]:
        other = name.replace(LAYER, OTHER)
        table[name], table[other] = table[other], table[name]


def make_noise_of_a_page(table: Table, variant: str) -> None:
    import torch

    values = table[stored(variant)]
    flat = values.view(torch.uint8).view(-1)
    flat[:1024] = torch.randint(0, 256, (1024,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def zero_a_page(table: Table, variant: str) -> None:
    import torch

    table[stored(variant)].view(torch.uint8).view(-1)[-1024:] = 0


def scaled(factor: float) -> Callable[[Table, str], None]:
    """One scale becomes another."""
    return lambda table, variant: table[SCALES[variant]].view(-1)[9:10].mul_(factor)


_MATRIX = rf"{LAYER}\.weight is not that of the merge from row \d+ of 128 on"
DAMAGES: dict[str, tuple[Callable[[Table, str], Any], str]] = {
    "a norm of zeros": (lambda table, _: table[NORM].zero_(), f"{NORM} is not that of the merge from row 0 of 64 on \\(64 of"),
    "a bit of an embedding": (nudge_an_embedding, r"model.embed_tokens.weight is not that of the merge from row 7 of 320 on \(1 of"),
    "a norm is lost": (lambda table, _: table.pop(NORM), f"{NORM} is missing"),
    "a matrix is lost": (lambda table, variant: table.pop(stored(variant)), rf"{LAYER}\.weight\w* is missing"),
    "a wider norm": (lambda table, _: table.update({NORM: table[NORM].repeat(2)}), rf"{NORM} has the shape \[128\] instead of \[64\]"),
    "a norm in fp32": (
        lambda table, _: table.update({NORM: table[NORM].float()}), rf"{NORM} is torch.float32 instead of torch.b?float16",
    ),
    "one tensor more": (
        lambda table, _: table.update({NORM.replace("1", "2"): table[NORM].clone()}),
        "model.layers.2.input_layernorm.weight is there, which the merge does not give",
    ),
    "two matrices swapped": (swap_two_matrices, f"{LAYER}.weight holds {OTHER}.weight; {OTHER}.weight holds {LAYER}.weight"),
    "noise in a page": (make_noise_of_a_page, _MATRIX),
    "a page of zeros": (zero_a_page, _MATRIX),
    "rows turned": (
        lambda table, variant: table[stored(variant)].copy_(table[stored(variant)].roll(len(table[stored(variant)]) // 2, 0)), _MATRIX,
    ),
}  # fmt: skip
OF_SCALES: dict[str, tuple[Callable[[Table, str], Any], str]] = {
    "a scale of zero": (scaled(0), _MATRIX),
    "a scale doubled": (scaled(2), _MATRIX),
    "a scale that is no number": (scaled(float("nan")), _MATRIX),
    "a scale nudged": (scaled(1.01), _MATRIX),
    "no scales": (
        lambda table, variant: table.pop(SCALES[variant]),
        rf"{LAYER}\.\S+ is missing|{LAYER}\.weight_scale does not have a row|{LAYER}\.weight is torch.int8 instead of",
    ),
    "too few scales": (
        lambda table, variant: table.update({SCALES[variant]: table[SCALES[variant]][:-1].clone()}),
        rf"{LAYER}\.\S+ (has the shape|holds \d+ values|has \d+)",
    ),
}  # fmt: skip
"""What is done to a folder's tensors → words of the reason, as a regular expression."""


@pytest.mark.parametrize("variant", FORMS)
def test_each_damage_is_named(variant: str, live: Bench, tmp_path: Path) -> None:
    import re

    sound, _ = make(variant, live.merged, tmp_path / "work")
    assert difference(sound, live.merged) is None
    for name, (damage, words) in (DAMAGES if variant in HALVES else DAMAGES | OF_SCALES).items():
        folder = shutil.copytree(sound, tmp_path / "damaged")
        helpers.rewrite(folder / "model.safetensors", lambda table, damage=damage: damage(table, variant))
        told = difference(folder, live.merged)
        assert told and told.startswith("its weights are not those of the merge: ") and re.search(words, told), (name, told)
        shutil.rmtree(folder)


def bare(folder: Path, table: Table, quantized: dict[str, Any] | None = None, **config: Any) -> Path:
    """A folder with these tensors."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    said = {"model_type": "llama", **config, **({"quantization_config": quantized} if quantized else {})}
    (folder / "config.json").write_text(json.dumps(said))
    save_file({name: values.contiguous() for name, values in table.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


SAID: dict[str, dict[str, Any]] = {
    "int8": {"quant_method": "bitsandbytes", "load_in_4bit": False}, "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "nested": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "w8a8": {"quant_method": "compressed-tensors", "format": "int-quantized"},
    "w4a16": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
}  # fmt: skip


def packed(form: str, weight: Any, dtype: Any, group: int = 32) -> Table:
    """The tensors of one matrix `w.weight`, rounded to nearest by the libraries' own functions."""
    import torch
    from bitsandbytes import functional
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    from handlers.pytorch.quantize import rounding

    shape = torch.tensor(weight.shape)
    if form == "int8":
        values, scales, _ = functional.int8_vectorwise_quant(weight.to(dtype).to(torch.float16))
        return {"w.weight": values, "w.SCB": scales, "w.weight_format": torch.tensor(0, dtype=torch.uint8)}
    if form in ("nf4", "nested"):
        values, state = functional.quantize_4bit(weight.to(dtype), blocksize=64, quant_type="nf4", compress_statistics=form == "nested")
        return {"w.weight": values, **{f"w.weight.{key}": part.view(-1) for key, part in state.as_dict(packed=True).items()}}
    if form == "w8a8":
        values, scales = rounding.int8_rows(weight, dtype)
        return {"w.weight": values, "w.weight_scale": scales}
    scales = rounding.int4_scales(weight, group, dtype)
    values = rounding.int4_nearest(weight, scales, group)
    return {"w.weight_packed": pack_to_int32(values, 4), "w.weight_scale": scales, "w.weight_shape": shape}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(SAID)), st.integers(0, 1 << 20), st.integers(2, 70), st.integers(1, 5), st.sampled_from([1e-3, 1.0, 30.0]),
       st.sampled_from(["bfloat16", "float16"]))  # fmt: skip
def test_what_is_rounded_to_nearest_is_within_the_bounds_and_two_steps_more_are_not(
    tmp_path_factory: pytest.TempPathFactory, form: str, seed: int, rows: int, groups: int, size: float, dtype: str
) -> None:
    import torch

    folder, kind = tmp_path_factory.mktemp("bounds"), getattr(torch, dtype)
    weight = matrix(seed, rows, 32 * groups, size)
    merged = bare(folder / "merged", {"w.weight": weight})
    table = packed(form, weight, kind)
    assert difference(bare(folder / "sound", table, SAID[form], dtype=dtype), merged) is None
    if form == "w4a16":  # there only whole rows and groups are known to be wrong
        row = int(weight.norm(dim=1).argmax())
        table["w.weight_packed"][row] = table["w.weight_packed"][row] ^ -0x77777778 ^ 0x0F0F0F0F
    else:
        values, place = table["w.weight"].view(-1), int(weight.abs().argmax())
        if form in ("int8", "w8a8"):
            values[place] -= 2 * values[place].sign()
        else:
            values[place // 2] ^= 0x20 >> 4 * (place % 2)  # another bit of the number
    told = difference(bare(folder / "damaged", table, SAID[form], dtype=dtype), merged)
    assert told and "w.weight is not that of the merge" in told, (form, told)
    shutil.rmtree(folder)


def test_scales_that_are_quantized_too_are_within_the_bounds_at_the_ends_of_their_code(tmp_path: Path) -> None:
    """The code ends at -0.993, and scales in the middle of a gap are off by all of its half."""
    import torch

    weight = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))
    weight[::3] *= torch.rand(342, 1, generator=torch.Generator().manual_seed(1))
    merged, table = bare(tmp_path / "merged", {"w.weight": weight}), packed("nested", weight, torch.bfloat16)
    assert difference(bare(tmp_path / "sound", table, SAID["nested"], dtype="bfloat16"), merged) is None
    table["w.weight.absmax"][100] = 255 - table["w.weight.absmax"][100]
    assert "from row 6 of" in str(difference(bare(tmp_path / "damaged", table, SAID["nested"], dtype="bfloat16"), merged))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 20), st.sampled_from([32, 128]), st.sampled_from([1, 4, 64]), st.sampled_from([1, 100, 1000]), st.floats(0, 3),
       st.integers(60, 600))  # fmt: skip
def test_error_correction_is_within_its_bounds_whatever_the_inputs_are_like(
    tmp_path_factory: pytest.TempPathFactory, seed: int, group: int, rank: int, outliers: int, decades: float, tokens: int
) -> None:
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    from handlers.pytorch.quantize import rounding
    from handlers.pytorch.quantize.compressed import shrunk

    generator, width = torch.Generator().manual_seed(seed), 256
    inputs = torch.randn(tokens, rank, generator=generator) @ torch.randn(rank, width, generator=generator)
    inputs += 0.05 * torch.randn(tokens, width, generator=generator)
    inputs *= 10 ** (torch.rand(width, generator=generator) * decades)
    inputs[:, torch.randperm(width, generator=generator)[:3]] *= outliers
    hessian, weight = inputs.T @ inputs / tokens, matrix(seed, 12, width, 1.0)
    scales = rounding.int4_scales(weight, group, torch.bfloat16, hessian.diagonal())
    values = rounding.int4_corrected(weight.clone(), scales, group, shrunk(hessian, tokens))
    if values is None:
        return
    folder = tmp_path_factory.mktemp("corrected")
    table = {"w.weight_packed": pack_to_int32(values, 4), "w.weight_scale": scales, "w.weight_shape": torch.tensor(weight.shape)}
    merged = bare(folder / "merged", {"w.weight": weight})
    assert difference(bare(folder / "form", table, SAID["w4a16"], dtype="bfloat16"), merged) is None
    values[5] = 0
    table["w.weight_packed"] = pack_to_int32(values, 4)
    told = difference(bare(folder / "form", table, SAID["w4a16"], dtype="bfloat16"), merged)
    assert told and "w.weight is not that of the merge from row 5 of 12 on" in told
    shutil.rmtree(folder)


def test_a_damaged_merge_is_no_fault_of_the_form(live: Bench, tmp_path: Path) -> None:
    folder, _ = make("pytorch-bf16", live.merged, tmp_path / "work")
    merged = shutil.copytree(live.merged, tmp_path / "merged")
    (merged / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(Permanent):
        difference(folder, merged)
    (folder / "model.safetensors").write_bytes(b"nothing")
    told = difference(folder, live.merged)
    assert told and told.startswith("its weights are not those of the merge: ")
