"""Models that read pictures or sound through the whole `ckptd export`: what is published answers as base and adapter do, by stock code."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.media.families import FAMILIES

ROOT = Path(__file__).parents[2]
FORMS = ("pytorch", "pytorch-fp16", "pytorch-bf16")
EIGHT_BITS = ("pytorch-bnb-int8", "pytorch-w8a8")
"""Weights of random models have no margin for 4 bits."""
NEAR = {"pytorch": 1e-4, "pytorch-fp16": 0.1, "pytorch-bf16": 0.6}
"""Form → most standard deviations that an output may be from the live model's; other forms are rounded more."""
SETTINGS = {
    "CKPTD_VALIDATE__SAMPLES": "4", "CKPTD_VALIDATE__NEW_TOKENS": "6", "CKPTD_VALIDATE__SPEED_TOKENS": "0",
    "CKPTD_LIMITS__DISK_RESERVE": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
PILLOW = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="Pillow prepares pictures, and it is not installed")


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **SETTINGS, **more}
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def stock(*arguments: str) -> None:
    done = run("-m", "tests.media.stock", *arguments)
    assert done.returncode == 0, done.stderr


def export(folder: Path, variants: str, **more: str) -> subprocess.CompletedProcess[str]:
    return run(
        "ckptd.py", "export", str(folder / "run" / "checkpoint-4"), "--output", str(folder / "out"), XDG_STATE_HOME=str(folder / "state"),
        CKPTD_EXPORT__VARIANTS=variants, **more,
    )  # fmt: skip


def verdicts(folder: Path) -> dict[str, str]:
    (report,) = (json.loads(path.read_bytes()) for path in folder.glob("out/run/step-4*/report.json"))
    return {artifact["variant"]: artifact["verdict"] for artifact in report["artifacts"]}


def answers(name: str, folder: Path, variant: str) -> dict[str, np.ndarray]:
    """Of the live model, or of a published variant."""
    output = folder / f"{variant}.npz"
    if variant == "live":
        stock("answer", name, str(folder / "base"), str(output), str(folder / "run" / "checkpoint-4"))
    elif variant == "base":
        stock("answer", name, str(folder / "base"), str(output))
    else:
        stock("answer", name, str(folder / "out" / "run" / "step-4" / variant), str(output))
    with np.load(output) as stored:
        return dict(stored)


def apart(live: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference of each output, in standard deviations of the live model's; tokens are not outputs."""
    assert live.keys() == other.keys()
    return {key: float(np.abs(live[key] - other[key]).max() / live[key].std()) for key in live if not key.startswith("tokens")}


def check(name: str, folder: Path, forms: tuple[str, ...]) -> None:
    stock("make", name, str(folder))
    done = export(folder, ",".join(forms))
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdicts(folder) == dict.fromkeys(forms, "passed")
    live, base = answers(name, folder, "live"), answers(name, folder, "base")
    moved = apart(live, base)
    assert min(moved.values()) > 0.1, f"the adapter changes too little for a proof: {moved}"
    for form in forms:
        mine = answers(name, folder, form)
        far = apart(live, mine)
        assert max(far.values()) < NEAR.get(form, min(moved.values())), (form, far)
        if form == "pytorch":
            assert all((mine[key] == live[key]).all() for key in live if key.startswith("tokens"))
        published = folder / "out" / "run" / "step-4" / form
        for file in folder.glob("base/*processor*.json"):
            assert json.loads((published / file.name).read_bytes()) == json.loads(file.read_bytes())
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[PILLOW] if family.media == "image" else []) for name, family in FAMILIES.items()]
)
def test_a_family_is_exported_as_base_and_adapter_answer(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, FORMS + EIGHT_BITS * FAMILIES[name].eight_bits)
