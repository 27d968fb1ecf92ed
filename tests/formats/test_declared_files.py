"""Every file of an artifact is declared with what it decides, and for each such kind the documentation names the check that covers it."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path
from typing import get_args

import pytest

from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.declaration import FileKind
from daemon.contract.jobs.plan import spec_of
from handlers.validate.files.stray import pattern_of
from tests import models
from tests.onnx.conftest import make_context, silent
from tests.sampling import some
from tests.validate import zoo

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "validation.md"
MADE = (
    "pytorch", "pytorch-w8a8", "pytorch-bf16", "onnx", "onnx-int8", "onnx-int4", "onnx-fp16", "onnx-genai-fp32", "torchscript", "pt2",
)  # fmt: skip
"""Variants that can be made here; the tests of toolchains look at theirs."""


def uncovered(variant: str, folder: Path) -> list[str]:
    """Files of an artifact that its format's declaration does not name."""
    patterns = catalog().files[variant]
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return [name for name in names if pattern_of(name, patterns) is None]


def make(variant: str, model: Path, work: Path) -> Path:
    """The folder that the stages make of a model that is taken for a merged one."""
    spec = spec_of(variant)
    inputs = {need: model if need == "merge" else make(need, model, work) for need in spec.needs}
    context = make_context(work / variant, variant, inputs, model)
    pkgutil.resolve_name(spec.entry)(context, silent())
    return Path(context.staging)


@pytest.mark.parametrize("variant", some(MADE, of=len(MADE)))
def test_each_file_that_a_stage_writes_is_declared(variant: str, tmp_path: Path) -> None:
    model = models.make_base(tmp_path / "model")
    zoo.edit_json(model / "generation_config.json", max_new_tokens=4)
    folder = make(variant, model, tmp_path)
    assert uncovered(variant, folder) == []
    (folder / "another.bin2").write_text("x")
    assert uncovered(variant, folder) == ["another.bin2"]


def test_every_format_of_ours_declares_its_files() -> None:
    kinds = set(get_args(FileKind))
    for one in catalog().formats:
        if one.variants and any(variant.entry.startswith("handlers.") for variant in one.variants):
            assert one.files, one.name
            assert set(one.files.values()) <= kinds, one.name


def test_each_kind_of_file_has_a_check_that_is_there() -> None:
    rows = re.findall(r"^\| ([a-z, ]+) \|.*\| `(handlers[\w./]+)`", DOCUMENTATION.read_text(encoding="utf-8"), flags=re.MULTILINE)
    covered = {kind.strip(): place for kinds, place in rows for kind in kinds.split(",")}
    assert set(covered) == set(get_args(FileKind))
    for place in covered.values():
        assert (DOCUMENTATION.parents[1] / place).exists(), place
