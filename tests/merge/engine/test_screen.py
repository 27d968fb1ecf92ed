"""The quick part of the check accepts nearly all that is right, and nothing that the exact part would not accept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from handlers.merge.engine import screen
from handlers.merge.engine.readback import ChangedTensor, Factors, WrittenTensor, samples_of
from handlers.merge.engine.screen import not_accepted
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import CastSource, StoredSource

COUNT, SHAPE, RANK = 12, (96, 300), 6


class Many:
    """Many small tensors of one shape before and after a merge."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.bfloat16, shape: tuple[int, int] = SHAPE) -> None:
        torch.manual_seed(0)
        self.before, self.after = folder / "before", folder / "after"
        names = [f"expert.{number:02}" for number in range(COUNT)]
        # The ranks differ as with rank_pattern.
        ranks = [RANK if number % 3 else RANK + 2 for number in range(COUNT)]
        self.left = {name: torch.randn(shape[0], rank) * 0.1 for name, rank in zip(names, ranks, strict=True)}
        self.right = {name: torch.randn(rank, shape[1]) * 0.1 for name, rank in zip(names, ranks, strict=True)}
        base = {name: (torch.randn(shape) * 0.05).to(dtype) for name in names}
        self.table = {name: (base[name].float() + self.left[name] @ self.right[name]).to(dtype) for name in names}
        self.save(self.before, base)

    def save(self, folder: Path, table: dict[str, torch.Tensor]) -> None:
        folder.mkdir(exist_ok=True)
        save_file(table, folder / "model.safetensors")

    def tensors(self, changed: bool = True) -> list[WrittenTensor]:
        self.save(self.after, self.table)
        before, after = ModelFolder(self.before), ModelFolder(self.after)
        found = []
        for name, info in after.headers.items():
            source = StoredSource(name, before.path_of(info), before.headers[name])
            one = ChangedTensor(name, name, source, lambda name=name: Factors(self.left[name], self.right[name]))  # type: ignore[misc]
            found.append(WrittenTensor(source, StoredSource(name, after.path_of(info), info), one if changed else None))
        return found

    def left_over(self, changed: bool = True) -> list[str]:
        """Names of those that are not accepted."""
        return sorted(one.written.name for one in not_accepted(self.tensors(changed), lambda count: None))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [SHAPE, (3, 20_000), (900, 64), (40_000, 1)])
def test_sound_tensors_are_accepted(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    assert len(Many(tmp_path, dtype, shape).left_over()) <= 1


@pytest.mark.parametrize(
    "wrongly",
    [
        lambda tensor: tensor.view(torch.int16)[5, 7].bitwise_xor_(4),
        lambda tensor: tensor[40, 299].add_(0.01),
        lambda tensor: tensor[95, 0].fill_(float("nan")),
        lambda tensor: tensor.copy_(tensor.roll(1, 0)),
        lambda tensor: tensor.copy_((tensor.float() * 1.02).bfloat16()),
    ],
    ids=["bit", "element", "nan", "rows", "two-percent"],
)
def test_a_wrong_one_among_many_is_left_over_alone(tmp_path: Path, wrongly: Callable[[torch.Tensor], torch.Tensor]) -> None:
    many = Many(tmp_path)
    wrongly(many.table["expert.07"])
    assert many.left_over() == ["expert.07"]
    assert [one.problem(False, lambda count: None) is None for one in not_accepted(many.tensors(), lambda count: None)] == [False]


def test_one_whose_factors_are_anothers_is_left_over(tmp_path: Path) -> None:
    many = Many(tmp_path)
    many.left["expert.04"], many.left["expert.05"] = many.left["expert.05"], many.left["expert.04"]
    assert many.left_over() == ["expert.04", "expert.05"]


def test_small_errors_that_add_up_are_left_over_for_their_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "MARGIN", 100.0)  # so that no element alone is left over
    many = Many(tmp_path, shape=(8, 4096))
    name = "expert.03"
    x = torch.randint(0, 2, (4096,), generator=torch.Generator().manual_seed(screen.zlib.crc32(b"expert.03"))).mul_(2).sub_(1)
    assert many.left_over() == []
    exact = many.table[name].float()
    many.table[name] = (exact + exact.abs() * 2**-7 * x).bfloat16()
    many.right = {name: many.right[name]}
    tensors = [one for one in many.tensors() if one.written.name == name]
    assert [one.written.name for one in not_accepted(tensors, lambda count: None)] == [name]


def test_unchanged_tensors_are_accepted_where_their_samples_have_the_bases_bytes(tmp_path: Path) -> None:
    many = Many(tmp_path, shape=(900, 64))
    assert many.left_over(changed=False) == sorted(many.table)
    many.save(many.after, many.table)
    before = ModelFolder(many.before)
    same = [WrittenTensor(one.base, StoredSource(one.base.name, before.path / "model.safetensors", before.headers[one.base.name]))
            for one in many.tensors(changed=False)]  # fmt: skip
    assert not_accepted(same, lambda count: None) == []


def test_what_the_quick_part_does_not_know_is_left_over(tmp_path: Path) -> None:
    tensors = Many(tmp_path, torch.float32).tensors()
    assert not_accepted(tensors, lambda count: None) == tensors  # as exact as the sums themselves
    cast = [WrittenTensor(CastSource(one.base, torch.float16), one.written, one.changed) for one in tensors]
    assert not_accepted(cast, lambda count: None) == cast


def test_a_batch_takes_no_more_factors_than_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    sound = screen._sound
    monkeypatch.setattr(screen, "FACTORS", 3 * RANK * sum(SHAPE))
    monkeypatch.setattr(screen, "_sound", lambda batch, *rows: sizes.append(len(batch)) or sound(batch, *rows))
    assert len(Many(tmp_path).left_over()) <= 1
    assert sum(sizes) == COUNT and max(sizes) == 2


@pytest.mark.parametrize("shape", [(), (1,), (5, 3), (8192, 3), (20_000, 4), (30, 9000), (70_000,)])
def test_samples_share_no_row_and_small_tensors_are_read_whole(shape: tuple[int, ...]) -> None:
    total = shape[0] if shape else 1
    for name in ("a", "b", "model.layers.1.weight"):
        pieces = samples_of(name, shape)
        rows = [row for first, count in pieces for row in range(first, first + count)]
        assert len(set(rows)) == len(rows) and rows[0] == 0 and rows[-1] == total - 1
        assert len(pieces) == 3 or len(rows) == total
