"""The arithmetic of 8 and 4 bits on arbitrary matrices: bounds that hold for each, and errors that correction makes smaller."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = ("bfloat16", "float16")


def matrix(seed: int, rows: int, columns: int, size: float) -> Any:
    """Values of very different sizes, with zeros, rows of zeros and single large ones."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator) * 10 ** (torch.rand(rows, 1, generator=generator) * 4 - 2) * size
    values[torch.rand(rows, columns, generator=generator) < 0.1] = 0
    values[0] = 0
    return values


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 20), st.integers(1, 9), st.sampled_from([32, 64, 128]), st.integers(1, 3), st.sampled_from([1e-3, 1.0, 30.0]),
       st.sampled_from(DTYPES))  # fmt: skip
def test_every_value_is_within_half_a_step_or_at_the_end_of_the_range(
    seed: int, rows: int, group: int, groups: int, size: float, dtype: str
) -> None:
    import torch

    from handlers.pytorch.quantize import rounding

    weight, kind = matrix(seed, rows, group * groups, size), getattr(torch, dtype)
    values, scales = rounding.int8_rows(weight, kind)
    assert bool(torch.isfinite(scales).all()) and bool((scales > 0).all())
    assert float(((values * scales.float() - weight).abs() / scales.float()).max()) <= 0.5001
    scales = rounding.int4_scales(weight, group, kind)
    values = rounding.int4_nearest(weight, scales, group)
    assert scales.dtype == kind and bool((scales > 0).all()) and int(values.min()) >= -8 and int(values.max()) <= 7
    blocks, wide = weight.view(rows, groups, group), scales.float()[..., None]
    error = (values.view(blocks.shape) * wide - blocks).abs() / wide
    inside = (blocks / wide > -8.5) & (blocks / wide < 7.5)
    assert float(error[inside].max()) <= 0.5001
    spanning = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 7.5
    plain = ((blocks / spanning).round().clamp(-8, 7) * spanning - blocks).square().sum(-1)
    found = (values.view(blocks.shape) * wide - blocks).square().sum(-1)
    exact = spanning[..., 0] > 1e-4  # scales below that are rounded coarsely in fp16
    assert bool((found <= plain * 1.1 + 1e-9)[exact].all()), "the search is no worse than the scale that spans the largest value"


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 20), st.sampled_from([32, 64, 128]), st.integers(1, 3), st.integers(20, 400))
def test_what_a_layer_gives_is_nearer_with_its_errors_corrected(seed: int, group: int, groups: int, tokens: int) -> None:
    import torch

    from handlers.pytorch.quantize import rounding

    generator, width = torch.Generator().manual_seed(seed), group * groups
    mixing = torch.randn(width, width, generator=generator) / width**0.5 + torch.eye(width)
    inputs = torch.randn(tokens, width, generator=generator) @ mixing
    weight = torch.randn(24, width, generator=generator)
    hessian = inputs.T @ inputs / tokens
    scales = rounding.int4_scales(weight, group, torch.bfloat16, hessian.diagonal())
    corrected = rounding.int4_corrected(weight, scales, group, hessian)
    assert corrected is not None and int(corrected.min()) >= -8 and int(corrected.max()) <= 7
    wide = scales.float().repeat_interleave(group, dim=1)
    errors = [float(((one * wide - weight) @ inputs.T).square().sum()) for one in (corrected, rounding.int4_nearest(weight, scales, group))]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("kind", ["zero", "not finite"])
def test_inputs_that_say_nothing_are_not_corrected_by(kind: str) -> None:
    import torch

    from handlers.pytorch.quantize import rounding

    weight = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))
    hessian = torch.zeros(32, 32) if kind == "zero" else torch.full((32, 32), float("inf"))
    assert rounding.int4_corrected(weight, rounding.int4_scales(weight, 32, torch.bfloat16), 32, hessian) is None


def test_inputs_that_are_always_zero_leave_their_columns_rounded_to_nearest() -> None:
    import torch

    from handlers.pytorch.quantize import rounding

    generator = torch.Generator().manual_seed(1)
    weight, inputs = torch.randn(4, 64, generator=generator), torch.randn(200, 64, generator=generator)
    inputs[:, 10:20] = 0
    scales = rounding.int4_scales(weight, 32, torch.bfloat16)
    corrected = rounding.int4_corrected(weight, scales, 32, inputs.T @ inputs / 200)
    assert corrected is not None and torch.equal(corrected[:, 10:20], rounding.int4_nearest(weight, scales, 32)[:, 10:20])


def test_files_hold_every_tensor_where_the_header_says_whatever_the_limit(tmp_path_factory: pytest.TempPathFactory) -> None:
    import torch
    from safetensors.torch import load_file

    from handlers.pytorch.quantize.writing import WeightFiles, declared

    shapes: tuple[tuple[int, ...], ...] = ((), (3,), (0, 4), (5, 7), (2, 3, 4))
    dtypes = (torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool)
    table = {
        f"{number}.weight": torch.randint(0, 2, shape).to(dtype) for number, (shape, dtype) in enumerate(itertools.product(shapes, dtypes))
    }
    for limit in (1, 64, 300, 1 << 20):
        folder = tmp_path_factory.mktemp("files")
        with WeightFiles(folder, [declared(name, one.dtype, one.shape) for name, one in table.items()], limit) as files:
            for name, values in reversed(table.items()):
                middle = len(values) // 2 if values.ndim else 0
                if middle:
                    files.put(name, values[middle:], middle)
                    files.put(name, values[:middle])
                else:
                    files.put(name, values)
        found = {name: one for path in folder.glob("*.safetensors") for name, one in load_file(path).items()}
        assert found.keys() == table.keys() and all(torch.equal(found[name], table[name]) for name in table)
        assert (folder / "model.safetensors.index.json").is_file() == (len(list(folder.glob("*.safetensors"))) > 1)


def test_a_tensor_that_was_forgotten_is_noticed(tmp_path: Any) -> None:
    import torch

    from handlers.pytorch.quantize.writing import WeightFiles, declared

    with pytest.raises(AssertionError, match="1 tensors are not written as declared, for example second"):  # noqa: SIM117
        with WeightFiles(tmp_path, [declared(name, torch.int8, (2,)) for name in ("first", "second")], 100) as files:
            files.put("first", torch.zeros(2, dtype=torch.int8))
