"""Bases stored quantized: what the sources give is what the libraries that packed them give, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from daemon.contract.faults.errors import Permanent
from handlers.merge.weights.dequantize import ScaledFp8Source
from handlers.merge.weights.nf4_round_trip import BLOCK, OUTER_BLOCK, quantized_scales, quantized_tensors, round_trip
from handlers.merge.weights.quantized_base import unpack
from handlers.merge.weights.unpacked_base import UnpackedBase
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import Source, StoredSource
from tests.models import make_base


def read(source: Source, dtype: torch.dtype | None = None, rows: int = 7) -> torch.Tensor:
    """A source as a whole, read by blocks of a few rows."""
    out = torch.empty(source.shape, dtype=dtype or source.dtype)
    for first in range(0, source.shape[0], rows):
        count = min(rows, source.shape[0] - first)
        source.rows(first, count, out[first : first + count])
    return out


def opened(folder: Path) -> UnpackedBase:
    """The base as the merge opens it."""
    return unpack(ModelFolder(folder))


def stored(model: ModelFolder, name: str) -> Source:
    """A tensor as it is stored."""
    info = model.headers[name]
    return StoredSource(name, model.path_of(info), info)


def everything(base: UnpackedBase) -> dict[str, Source]:
    """A source for each tensor: as it is unpacked, else as it is stored."""
    return {name: base.sources.get(name) or stored(base.model, name) for name in base.tensors}


def load(folder: Path, **options: Any) -> Any:
    """The model, packed when it is loaded or stored so."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    packing = {"quantization_config": BitsAndBytesConfig(**options)} if options else {}
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto" if not options else torch.bfloat16, device_map="cpu", **packing)


# 72 is no multiple of a quantization block of 64, so that blocks reach from row to row.
ODD = {"hidden_size": 72, "intermediate_size": 120, "head_dim": 18}


@pytest.fixture(scope="session")
def odd_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base whose rows do not begin at quantization blocks. Read only."""
    return make_base(tmp_path_factory.mktemp("odd") / "base", **ODD)


FORMS: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-double": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "fp4-double": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True},
    "nf4-in-bf16": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": torch.bfloat16},
    "int8": {"load_in_8bit": True},
}


@pytest.fixture(scope="session")
def packed(odd_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of the base saved in one of FORMS. Read only."""
    made: dict[str, Path] = {}

    def make(form: str) -> Path:
        if form not in made:
            made[form] = tmp_path_factory.mktemp("packed") / form
            load(odd_base, **FORMS[form]).save_pretrained(made[form])
        return made[form]

    return make


@pytest.mark.parametrize("form", FORMS)
def test_a_packed_checkpoint_reads_as_transformers_dequantizes_it(packed: Callable[[str], Path], form: str) -> None:
    folder = packed(form)
    base = opened(folder)
    wanted = load(folder).dequantize(torch.bfloat16).state_dict()
    wanted.pop("lm_head.weight")  # tied
    assert base.tensors.keys() == wanted.keys()
    assert len(base.sources) == 14
    for name, source in everything(base).items():
        assert (source.dtype, source.shape, "BF16") == (torch.bfloat16, base.tensors[name].shape, base.tensors[name].dtype)
        assert torch.equal(read(source), wanted[name]), name


@pytest.mark.parametrize("rows", [3, 64])
@pytest.mark.parametrize("form", ["nf4-double", "int8"])
def test_the_size_of_the_blocks_changes_nothing(packed: Callable[[str], Path], form: str, rows: int) -> None:
    source = opened(packed(form)).sources["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(read(source, torch.float32, rows), read(source, torch.float32, source.shape[0]))
    # A second pass over the same source gives the same: the values that it dropped come again.
    assert torch.equal(read(source, rows=rows), read(source))


def test_fp32_rows_of_a_4_bit_tensor_hold_the_packed_dtype_and_of_int8_are_not_rounded(packed: Callable[[str], Path]) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    four, eight = (opened(packed(form)).sources[name] for form in ("nf4", "int8"))
    assert torch.equal(read(four, torch.float32), read(four).float())
    assert not torch.equal(read(eight, torch.float32), read(eight).float())
    assert torch.equal(read(eight, torch.float32).bfloat16(), read(eight))


def test_the_configuration_of_a_dequantized_base_names_no_quantization(packed: Callable[[str], Path]) -> None:
    base = opened(packed("nf4"))
    assert base.edits["quantization_config"] is None
    assert base.edits["dtype"] == "bfloat16"
    assert "14 of its tensors were dequantized to bfloat16" in base.warnings[0]
    assert not any("absmax" in name or "quant" in name for name in base.tensors)


def test_conv1d_weights_come_back_the_way_gpt2_stores_them(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_embd=48, n_layer=1, n_head=4, n_positions=32)
    GPT2LMHeadModel(config).bfloat16().save_pretrained(tmp_path / "base")
    load(tmp_path / "base", load_in_4bit=True, bnb_4bit_quant_type="nf4").save_pretrained(tmp_path / "packed")
    original, base = load_file(tmp_path / "base" / "model.safetensors"), opened(tmp_path / "packed")
    for name, source in everything(base).items():
        assert source.shape == tuple(original[name].shape), name
        values = read(source).float()
        assert (values - original[name].float()).abs().max() <= 0.3 * original[name].float().abs().max(), name
    name = "transformer.h.0.mlp.c_fc.weight"
    assert torch.equal(read(round_trip(ModelFolder(tmp_path / "base"), name, double=False)), read(base.sources[name]))


@pytest.mark.parametrize("double", [False, True])
def test_a_round_trip_through_nf4_gives_what_a_load_in_4_bits_gives(odd_base: Path, double: bool) -> None:
    wanted = load(odd_base, **FORMS["nf4-double" if double else "nf4"]).dequantize(torch.bfloat16).state_dict()
    model = ModelFolder(odd_base)
    chosen = quantized_tensors(model)
    assert len(chosen) == 14
    assert not {"lm_head.weight", "model.embed_tokens.weight"} & chosen
    for name in model.headers:
        source = stored(model, name)
        if name in chosen:
            original = read(source)
            source = round_trip(model, name, double=double)
            assert not torch.equal(read(source), original)
        apart = (read(source) != wanted[name]).float().mean()
        assert apart < 0.01 if double and name in chosen else apart == 0, name  # which scales differ: see the next test


def by_the_gpus_kernel(scales: torch.Tensor) -> torch.Tensor:
    """What bitsandbytes 0.50 computes on NVIDIA's GPUs (`kQuantizeBlockwise`), scale by scale: a search, and then one of two neighbours."""
    from bitsandbytes import functional

    numbers = functional.create_dynamic_map().float()
    found = torch.empty_like(scales)
    for start in range(0, len(scales), OUTER_BLOCK):
        block = scales[start : start + OUTER_BLOCK]
        largest = block.abs().max()
        for place, share in enumerate(block * (1.0 / largest)):
            low, middle, high = 0, 127, 255
            for step in (64, 32, 16, 8, 4, 2, 1):
                low, high = (middle, high) if share > numbers[middle] else (low, middle)
                middle += step if share > numbers[middle] else -step
            above = share > numbers[middle]
            border = (numbers[high if above else low] + numbers[middle]) * 0.5
            taken = (high if share > border else middle) if above else (low if share < border else middle)
            found[start + place] = numbers[taken] * largest
    return found


def test_scales_are_quantized_as_a_gpu_does_it() -> None:
    from bitsandbytes import functional

    numbers = functional.create_dynamic_map().float()
    middles = torch.cat([torch.ones(1), (numbers[1:] + numbers[:-1]) * 0.5])
    torch.manual_seed(0)
    for scales in (middles, torch.randn(700), torch.randn(300) * 1e-3):
        assert torch.equal(quantized_scales(scales), by_the_gpus_kernel(scales))
    assert torch.equal(quantized_scales(torch.zeros(300)), torch.zeros(300))


@pytest.mark.parametrize(("dtype", "seen"), [(torch.float32, 57), (torch.bfloat16, 91), (torch.float16, 41)])
def test_so_many_scales_differ_from_those_of_the_cpu_as_on_an_h200(dtype: torch.dtype, seen: int) -> None:
    from bitsandbytes import functional

    torch.manual_seed(0)
    _, state = functional.quantize_4bit((torch.randn(1024, 2048) * 0.02).to(dtype), blocksize=BLOCK, quant_type="nf4")
    scales = state.absmax - state.absmax.mean()
    of_the_cpu = functional.dequantize_blockwise(*functional.quantize_blockwise(scales, blocksize=OUTER_BLOCK))
    assert int((quantized_scales(scales) != of_the_cpu).sum()) == seen


def scaled(folder: Path, scale: torch.Tensor, name: str = "layer.weight_scale_inv", **options: Any) -> tuple[ScaledFp8Source, torch.Tensor]:
    """A source over an fp8 matrix of 200 × 300, and the stored values."""
    torch.manual_seed(0)
    weight = torch.randn(200, 300).to(torch.float8_e4m3fn)
    save_file({"layer.weight": weight, name: scale}, folder / "model.safetensors")
    return ScaledFp8Source(ModelFolder(folder), "layer.weight", name, torch.bfloat16, **options), weight.float()


def test_fp8_by_tiles_is_the_value_times_the_scale_of_its_tile(tmp_path: Path) -> None:
    scale = torch.rand(2, 3) + 0.5
    source, weight = scaled(tmp_path, scale, tile=(128, 128))
    spread = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:200, :300]
    assert torch.equal(read(source, torch.float32), weight * spread)
    assert torch.equal(read(source), (weight * spread).bfloat16())


@pytest.mark.parametrize("shape", [(200, 1), (200,), (1,), ()])
def test_fp8_by_rows_or_as_a_whole_is_scaled_so(tmp_path: Path, shape: tuple[int, ...]) -> None:
    scale = torch.rand(shape) + 0.5
    source, weight = scaled(tmp_path, scale, "layer.weight_scale")
    assert torch.equal(read(source), (weight * (scale.view(-1, 1) if scale.numel() > 1 else scale)).bfloat16())


def test_fused_experts_in_fp8_are_scaled_expert_by_expert(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight, scale = torch.randn(3, 4, 6).to(torch.float8_e5m2), torch.rand(3, 2, 3)
    save_file({"e": weight, "e_scale_inv": scale}, tmp_path / "model.safetensors")
    source = ScaledFp8Source(ModelFolder(tmp_path), "e", "e_scale_inv", torch.bfloat16)
    wanted = weight.float() * scale.repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert torch.equal(read(source, torch.float32, 2), wanted)


def test_an_fp8_release_opens_like_its_16_bit_original(tmp_path: Path) -> None:
    weight = torch.randn(256, 128)
    scale = weight.abs().amax() / 448
    table = {"a.weight": (weight / scale).to(torch.float8_e4m3fn), "a.weight_scale_inv": scale.view(1, 1).expand(2, 1).contiguous()}
    save_file({**table, "a.input_scale": torch.ones(1), "norm.weight": torch.ones(128).bfloat16()}, tmp_path / "model.safetensors")
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", "quantization_config": quantization}))
    base = opened(tmp_path)
    assert base.tensors.keys() == {"a.weight", "norm.weight"}
    assert base.sources.keys() == {"a.weight"}
    assert base.edits == {"quantization_config": None, "torch_dtype": "bfloat16"}
    assert (read(base.sources["a.weight"]).float() - weight).abs().max() < 0.07 * weight.abs().max()


@pytest.mark.parametrize(
    ("form", "change", "cause"),
    [
        ("nf4", lambda t, n: t.pop(f"{n}.absmax"), "absmax is missing"),
        ("nf4-double", lambda t, n: t.update({f"{n}.absmax": t[f"{n}.absmax"][:-1].clone()}), "but .* needs"),
        ("nf4", lambda t, n: t.update({f"{n}.quant_state.bitsandbytes__nf4": torch.zeros(4, dtype=torch.uint8)}), "not what bitsandbytes"),
        ("nf4", lambda t, n: t.update({n: t[n][:-1].clone()}), "packed bytes, but is said to be"),
        ("nf4", lambda t, n: t.pop(f"{n}.quant_state.bitsandbytes__nf4"), "belongs to no packed tensor"),
        ("int8", lambda t, n: t.pop(n.replace("weight", "SCB")), "belongs to no packed tensor"),
        ("int8", lambda t, n: t.update({n.replace("weight", "weight_format"): torch.tensor(2, dtype=torch.uint8)}), "tile order"),
    ],
)
def test_packed_weights_whose_parts_do_not_fit_are_refused(
    packed: Callable[[str], Path], tmp_path: Path, form: str, change: Callable[[Any, str], Any], cause: str
) -> None:
    table = load_file(packed(form) / "model.safetensors")
    change(table, "model.layers.0.mlp.up_proj.weight")
    save_file(table, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((packed(form) / "config.json").read_bytes())
    with pytest.raises(Permanent, match=cause) as caught:
        for source in opened(tmp_path).sources.values():
            read(source)
    assert caught.value.fault.code == "damaged-quantization"


def test_a_base_packed_in_a_way_that_is_not_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(Permanent, match="quantized with gptq"):
        opened(tmp_path)
