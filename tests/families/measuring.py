"""Every family through the whole `ckptd export`, and what came of it: `python -m tests.families.measuring FOLDER [FAMILY…]` writes
`results.json` beside this file. What FOLDER has already is not made again, so that a run can be continued.

Of each variant the outcome is "equal" (published, its checks passed, and a stock reader gives the live model's logits), "refused" (before
anything was merged), "failed" (later) or "other" (published, but the reader gives something else).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers

from tests.families.table import FAMILIES

ROOT, RESULTS = Path(__file__).parents[2], Path(__file__).with_name("results.json")
VARIANTS = ("pytorch", "onnx")
EQUAL = 1e-4
"""Largest difference of a logit, in standard deviations of the live model's."""
KEPT = ("model_type", "architectures", "layer_types", "layers_block_type", "block_types", "num_kv_shared_layers")
"""Keys of config.json by which a variant may be refused."""
SETTINGS = {
    "CKPTD_EXPORT__VARIANTS": ",".join(VARIANTS), "CKPTD_VALIDATE__SAMPLES": "2", "CKPTD_VALIDATE__NEW_TOKENS": "4",
    "CKPTD_VALIDATE__SPEED_TOKENS": "0", "CKPTD_LIMITS__DISK_RESERVE": "0", "CKPTD_ONNX__OPTIMIZE": "none", "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}  # fmt: skip


def measure(folder: Path, families: Sequence[str]) -> dict[str, Any]:
    """Family → what it is and what came of its export; families that transformers can't make are left out."""
    wanted = [family for family in families if not (folder / "stock" / family).is_dir()]
    _run("tests.families.stock", str(folder / "stock"), *wanted)
    made = [family for family in families if (folder / "stock" / family / "made.json").is_file()]
    orders = [
        [str(folder / "stock" / family / "run" / "checkpoint-4"), str(place / "out"), str(place / "answer.json")]
        for family in made if not ((place := folder / "exports" / family) / "answer.json").is_file()
    ]  # fmt: skip
    for _, output, _ in orders:
        Path(output).mkdir(parents=True, exist_ok=True)
    _listed("tests.matrix.exports", folder / "orders.json", orders)
    done = [family for family in made if (folder / "exports" / family / "answer.json").is_file()]
    reads = [
        [family, str(folder / "stock" / family / "live.safetensors"), str(path), str(_answer(folder, family, path.name))]
        for family in done for path in _published(folder, family) if not _answer(folder, family, path.name).is_file()
    ]  # fmt: skip
    _listed("tests.families.reading", folder / "reads.json", reads)
    return {family: _result(folder, family) for family in done}


def _run(module: str, *arguments: str) -> None:
    environment = {**os.environ, **SETTINGS, "XDG_STATE_HOME": os.environ.get("FAMILIES_STATE", "")}
    if not environment["XDG_STATE_HOME"]:
        environment["XDG_STATE_HOME"] = str(Path(arguments[0]).parent / "state")
    subprocess.run([sys.executable, "-m", module, *arguments], env=environment, cwd=ROOT, check=True)


def _listed(module: str, file: Path, orders: list[list[str]]) -> None:
    file.write_text(json.dumps(orders))
    if orders:
        _run(module, str(file))


def _published(folder: Path, family: str) -> list[Path]:
    return [path for name in VARIANTS for path in (folder / "exports" / family).glob(f"out/*/step-4/{name}")]


def _answer(folder: Path, family: str, variant: str) -> Path:
    return folder / "exports" / family / f"{variant}.difference.json"


def _result(folder: Path, family: str) -> dict[str, Any]:
    place = folder / "stock" / family
    config = json.loads((place / "base" / "config.json").read_text())
    reports = list((folder / "exports" / family).glob("out/*/step-4*/report.json"))
    report = json.loads(reports[0].read_text()) if reports else {"artifacts": [], "failures": []}
    return {
        **json.loads((place / "made.json").read_text()), "transformers": transformers.__version__,
        "config": {key: config[key] for key in KEPT if key in config},
        "variants": {name: _outcome(report, name, _answer(folder, family, name)) for name in VARIANTS},
    }  # fmt: skip


def _outcome(report: dict[str, Any], variant: str, answer: Path) -> dict[str, Any]:
    artifact: dict[str, Any] = next((entry for entry in report["artifacts"] if entry["variant"] == variant), {})
    refused = [entry for entry in report["failures"] if entry["code"] == "form-not-possible" and not entry.get("log")]
    if artifact.get("verdict") == "passed":
        said = json.loads(answer.read_text())
        if isinstance(said, float) and said <= EQUAL:
            return {"outcome": "equal", "difference": float(f"{said:.0e}")}
        return {"outcome": "other", "why": str(said)}
    if mine := next((entry for entry in refused if variant in entry["sentence"].partition(":")[0].split(" ")), None):
        return {"outcome": "refused", "why": mine["cause"], "remedy": mine["remedy"]}
    return {"outcome": "failed", "why": "; ".join(artifact.get("reasons", ["there is no report"]))}


if __name__ == "__main__":
    chosen = [family for family in FAMILIES if family in sys.argv[2:]] or list(FAMILIES)
    answers = measure(Path(sys.argv[1]).resolve(), chosen)
    before = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    merged = {family: {**before, **answers}[family] for family in FAMILIES if family in before or family in answers}
    RESULTS.write_text(json.dumps(merged, indent=1) + "\n")
