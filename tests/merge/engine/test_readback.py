"""The check after the merge: it finds what is wrong, and never what is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from daemon.contract.faults.errors import Permanent
from handlers.merge.engine.check_plan import misplaced
from handlers.merge.engine.readback import ChangedTensor, Factors, WrittenTensor, contradictions, wrong
from handlers.merge.engine.screen import not_accepted
from handlers.merge.plan.output_layout import Output, plan
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import CastSource, StoredSource

Table = dict[str, torch.Tensor]
SCALE = 3.0


class Case:
    """A base with one changed and two other tensors, merged in plain torch."""

    def __init__(self, folder: Path, shape: tuple[int, int] = (300, 200), rank: int = 8, dtype: torch.dtype = torch.bfloat16) -> None:
        torch.manual_seed(0)
        self.base, self.output = folder / "base", folder / "output"
        for path in (self.base, self.output):
            path.mkdir(exist_ok=True)
        self.left, self.right = torch.randn(shape[0], rank) * 0.02, torch.randn(rank, shape[1]) * 0.02
        self.weight = (torch.randn(shape) * 0.05).to(dtype)
        table = {"layer.weight": self.weight, "norm.weight": torch.randn(64).to(dtype), "embed.weight": torch.randn(500, 96).to(dtype)}
        save_file(table, self.base / "model.safetensors")
        self.write(self.merged())

    def merged(self) -> torch.Tensor:
        return (self.weight.float() + SCALE * (self.left @ self.right)).to(self.weight.dtype)

    def write(self, weight: torch.Tensor, change: Callable[[Table], Any] = lambda table: None) -> None:
        table = {**load_file(self.base / "model.safetensors"), "layer.weight": weight}
        change(table)
        save_file(table, self.output / "model.safetensors")

    def sources(self) -> dict[str, Any]:
        model = ModelFolder(self.base)
        return {name: StoredSource(name, model.path_of(info), info) for name, info in model.headers.items()}

    def misplaced(self) -> list[str]:
        """What differs in the headers from the plan of a merge that changes no header."""
        model = ModelFolder(self.base)
        outputs = [Output(name, info.file, info.dtype, info.shape, info) for name, info in model.headers.items()]
        return misplaced(plan(model, outputs), ModelFolder(self.output))

    def check(self, full: bool = False, factors: Any = None, **norms: Any) -> list[str]:
        sources, (left, right) = self.sources(), factors or (self.left, self.right)
        changed = ChangedTensor("layer", "layer.weight", sources["layer.weight"], lambda: Factors(SCALE * left, right), **norms)
        return check(sources, self.output, [changed], full=full)


def check(sources: Any, output: Path, changed: Any, *, full: bool = False) -> list[str]:
    """What readback says of each tensor in `output`. What the screen accepts of them must be sound by readback's samples too."""
    model, by_name = ModelFolder(output), {one.tensor: one for one in changed}
    found = [StoredSource(name, model.path_of(info), info) for name, info in model.headers.items()]
    tensors = [WrittenTensor(sources[one.name], one, by_name.get(one.name)) for one in found]
    for one in tensors:
        left = not_accepted([one], lambda count: None)
        assert left == ([one] if one.problem(False, lambda count: None) else left)
    return [problem for one in tensors if (problem := one.problem(full, lambda count: None))]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """A sound merge in bf16."""
    return Case(tmp_path)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sound_merge_passes(tmp_path: Path, dtype: torch.dtype, full: bool) -> None:
    assert Case(tmp_path, dtype=dtype).check(full=full) == []


@given(
    st.integers(1, 70), st.integers(1, 90), st.integers(1, 12), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.sampled_from([1e-4, 1.0, 300.0]), st.integers(0, 1 << 30),
)  # fmt: skip
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_sound_merge_is_called_wrong(
    tmp_path: Path, rows: int, columns: int, rank: int, dtype: torch.dtype, size: float, seed: int
) -> None:
    case = Case(tmp_path, (rows, columns), rank, dtype)
    torch.manual_seed(seed)
    case.left, case.right = torch.randn(rows, rank) * size**0.5, torch.randn(rank, columns) * size**0.5 * 0.01
    # Another order of summation, and a delta rounded before the addition as PEFT does it for embeddings, are right too.
    scaled = (SCALE * case.left) @ case.right
    for weight in (case.merged(), (case.weight.float() + scaled).to(dtype), case.weight + scaled.to(dtype)):
        case.write(weight)
        assert case.check(full=True) == []


@pytest.mark.parametrize(
    "wrongly",
    [
        lambda c: c.weight,
        lambda c: (c.weight.float() + c.left @ c.right).bfloat16(),
        lambda c: (c.weight.float() - SCALE * (c.left @ c.right)).bfloat16(),
        lambda c: (c.weight.float() + SCALE * (c.left.roll(1, 0) @ c.right)).bfloat16(),
        lambda c: (c.weight.float() + SCALE * (c.left @ c.right.roll(1, 1))).bfloat16(),
        lambda c: c.merged().roll(1, 0),
        lambda c: (c.merged().float() * 1.02).bfloat16(),
    ],
    ids=["forgotten", "scale-1", "subtracted", "rows-shifted", "columns-shifted", "written-a-row-too-late", "two-percent"],
)
def test_a_wrong_delta_is_found_and_its_module_named(case: Case, wrongly: Callable[[Case], torch.Tensor]) -> None:
    case.write(wrongly(case))
    (problem,) = case.check()
    assert problem.startswith("layer.weight is not base + delta (layer)")


def test_one_changed_row_far_from_the_samples_is_found_by_the_full_check(tmp_path: Path) -> None:
    case = Case(tmp_path, (2000, 200))
    merged = case.merged()
    merged[700] = merged[701]
    case.write(merged)
    assert case.check() == []
    (problem,) = case.check(full=True)
    assert "the product of row 700 with a random vector is off" in problem


def test_a_flipped_bit_in_an_unchanged_tensor_is_found(case: Case) -> None:
    def flip(table: Table) -> None:
        table["embed.weight"].view(torch.int16)[499, 95] ^= 1

    case.write(case.merged(), flip)
    assert case.check() == ["embed.weight should be the base's, but differs from it in row 499"]


def test_a_flipped_bit_between_the_samples_is_found_by_the_full_check(tmp_path: Path) -> None:
    case = Case(tmp_path)
    save_file({**load_file(case.base / "model.safetensors"), "embed.weight": torch.randn(9000, 64)}, case.base / "model.safetensors")

    def flip(table: Table) -> None:
        table["embed.weight"][4000, 0] += 1

    case.write(case.merged(), flip)
    found = {row for row in (True, False) if case.check(full=row)}
    assert found == {True}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.pop("norm.weight"), "norm.weight is missing"),
        (lambda t: t.update(extra=torch.ones(2)), "extra belongs to neither base nor adapter"),
        (lambda t: t.update({"norm.weight": torch.ones(63).bfloat16()}), "norm.weight has the shape [63], where [64] was expected"),
        (lambda t: t.update({"norm.weight": t["norm.weight"].float()}), "norm.weight is float32, where bfloat16 was expected"),
    ],
)
def test_what_is_missing_added_or_of_another_kind_is_found(case: Case, change: Callable[[Table], Any], problem: str) -> None:
    case.write(case.merged(), change)
    assert case.misplaced()[:1] == [problem]


def test_headers_as_planned_pass_and_names_that_were_exchanged_are_found(case: Case) -> None:
    assert case.misplaced() == []
    path = case.output / "model.safetensors"
    save_file(
        {**load_file(case.base / "model.safetensors"), "a.weight": torch.ones(64), "b.weight": torch.zeros(64)}, case.base / path.name
    )
    save_file({**load_file(case.base / "model.safetensors"), "a.weight": torch.zeros(64), "b.weight": torch.ones(64)}, path)
    path.write_bytes(
        path.read_bytes().replace(b"a.weight", b"c.weight").replace(b"b.weight", b"a.weight").replace(b"c.weight", b"b.weight")
    )
    problems = case.misplaced()
    assert [problem.partition(",")[0].split(" byte ")[0] for problem in problems] == ["b.weight begins at", "a.weight begins at"]


@pytest.mark.parametrize("by_column", [False, True])
def test_dora_is_checked_up_to_its_norms(case: Case, by_column: bool) -> None:
    total = case.weight.float() + SCALE * (case.left @ case.right)
    magnitude = torch.rand(total.shape[1 if by_column else 0]) + 0.5
    factor = magnitude / total.norm(dim=0 if by_column else 1)
    scaled = total * (factor if by_column else factor[:, None])
    options = {"magnitude": lambda: magnitude, "by_column": by_column}
    case.write(scaled.bfloat16())
    assert case.check(**options) == []
    case.write((scaled - 0.5 * (scaled - case.weight.float() * (factor if by_column else factor[:, None]))).bfloat16())
    assert "is not base + delta" in case.check(**options)[0]
    if not by_column:
        case.write((scaled * 1.05).bfloat16())
        assert "is not base + delta" in case.check(**options)[0]


def test_experts_are_checked_each_with_its_own_factors(tmp_path: Path) -> None:
    case = Case(tmp_path)
    left, right = torch.randn(5, 24, 4), torch.randn(5, 4, 16)
    case.weight = torch.randn(5, 24, 16).bfloat16()
    save_file({"layer.weight": case.weight}, case.base / "model.safetensors")
    case.write((case.weight.float() + SCALE * (left @ right)).bfloat16())
    assert case.check(factors=(left, right)) == []
    assert "is not base + delta" in case.check(factors=(left.roll(1, 0), right))[0]


def test_a_cast_output_is_compared_with_the_cast_base(case: Case) -> None:
    table = {name: tensor.float().half() for name, tensor in load_file(case.base / "model.safetensors").items()}
    save_file(table, case.output / "model.safetensors")
    assert check({name: CastSource(source, torch.float16) for name, source in case.sources().items()}, case.output, []) == []


def configured(folder: Path, config: dict[str, Any], **table: torch.Tensor) -> list[str]:
    save_file({name.replace("__", "."): tensor for name, tensor in table.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["QwenForCausalLM"], **config}))
    return contradictions(ModelFolder(folder))


def test_a_head_that_tying_would_lose_is_found(tmp_path: Path) -> None:
    weight = torch.randn(8, 4)
    tied = {"tie_word_embeddings": True, "vocab_size": 8}
    assert configured(tmp_path, tied, model__embed_tokens__weight=weight) == []
    assert configured(tmp_path, tied, model__embed_tokens__weight=weight, lm_head__weight=weight.clone()) == []
    (problem,) = configured(tmp_path, tied, model__embed_tokens__weight=weight, lm_head__weight=weight + 1)
    assert "one of the two would be lost" in problem


def test_a_head_that_is_not_there_a_vocabulary_too_large_and_a_forgotten_quantization_are_found(tmp_path: Path) -> None:
    untied = {"tie_word_embeddings": False, "vocab_size": 9, "quantization_config": {"load_in_4bit": True}}
    problems = configured(tmp_path, untied, model__embed_tokens__weight=torch.randn(8, 4))
    assert [problem.split(",")[0] for problem in problems] == [
        "model.embed_tokens.weight has 8 rows",
        "config.json does not tie the head to the embeddings",
        "config.json names a quantization",
    ]


def test_the_error_says_the_first_problem_and_how_many_more(tmp_path: Path) -> None:
    error = wrong(["a is missing", "b is missing"], tmp_path)
    assert isinstance(error, Permanent)
    assert "a is missing (and 1 more)" in str(error)
