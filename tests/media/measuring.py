"""Models of pictures and sound through the whole `ckptd export`, and what came of them, by stock transformers and PEFT:
`python -m tests.media.measuring FOLDER [FAMILY…] [FORM…]` writes `results.json` beside this file.

Of each form the outcome is "published" (its checks passed), with its largest difference from the live model's answers, "refused" (it can't
be made of such a model), or "failed".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from tests.media.families import FAMILIES

ROOT, RESULTS = Path(__file__).parents[2], Path(__file__).with_name("results.json")
FORMS = ("pytorch", "pytorch-fp16", "pytorch-bf16")
WIDE = {form: {"agreement": 0.2, "kl": 1.0, "error": 8.0} for form in ("pytorch-w4a16",)}
"""Limits for 4 bits, since random weights leave their answers no margin."""
GRAPHS = ("onnx", "onnx-fp16", "onnx-int8")
SETTINGS = {
    "CKPTD_VALIDATE__LIMITS": json.dumps(WIDE),
    "CKPTD_VALIDATE__SAMPLES": "4", "CKPTD_VALIDATE__NEW_TOKENS": "6", "CKPTD_VALIDATE__SPEED_TOKENS": "0",
    "CKPTD_LIMITS__DISK_RESERVE": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip


def forms_of(name: str) -> tuple[str, ...]:
    """All forms that are asked of a family."""
    return FAMILIES[name].plain + FAMILIES[name].smaller + GRAPHS


def measure(name: str, folder: Path, asked: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a family is, how far its adapter moves it, and what came of each form that is asked of it (all, where none is named).

    Differences are the largest of an output, in standard deviations of the live model's; `greedy_same`: of the tokens that its own
    `generate` writes after pictures or sounds, all are the live model's (null where it writes none).
    """
    _run("-m", "tests.media.stock", "make", name, str(folder))
    config = json.loads((folder / "base" / "config.json").read_bytes())
    forms = asked or forms_of(name)
    failed = _export(folder, forms)
    _run("-m", "tests.media.stock", "answer", name, str(folder), str(published(folder)), *(form for form in forms if not failed[form]))
    live, base = _answers(folder, "live"), _answers(folder, "base")
    made: dict[str, dict[str, Any]] = {}
    for form in forms:
        if failed[form]:
            refused = all(reason.startswith("it was not made") for reason in failed[form])
            made[form] = {"outcome": "refused" if refused else "failed", "why": failed[form]}
        else:
            made[form] = {"outcome": "published", **_likeness(live, _answers(folder, form))}
    return {
        "model_type": config["model_type"], "class": config["architectures"][0], "transformers": transformers.__version__,
        "moved": _rounded(min(_apart(live, base).values())), "forms": made,
    }  # fmt: skip


def published(folder: Path) -> Path:
    """The folder of the export."""
    (export,) = folder.glob("out/run/step-4*")
    return export


def _run(*arguments: str, **more: str) -> str:
    environment = {**os.environ, **SETTINGS, **more}
    done = subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    partly = (1, 3) if arguments[0] == "ckptd.py" else ()  # nothing of an export was made, or not all of it
    assert done.returncode in (0, *partly), done.stdout + done.stderr
    return done.stdout


def _export(folder: Path, forms: tuple[str, ...]) -> dict[str, list[str]]:
    """Form → why it was not published; nothing where it passed its checks."""
    said = _run(
        "ckptd.py", "export", str(folder / "run" / "checkpoint-4"), "--output", str(folder / "out"), XDG_STATE_HOME=str(folder / "state"),
        CKPTD_EXPORT__VARIANTS=",".join(forms),
    )  # fmt: skip
    reports = list(folder.glob("out/run/step-4*/report.json"))
    assert len(reports) == 1, said
    artifacts = {entry["variant"]: entry for entry in json.loads(reports[0].read_bytes())["artifacts"]}
    return {form: [] if artifacts[form]["verdict"] == "passed" else artifacts[form]["reasons"] for form in forms}


def _answers(folder: Path, form: str) -> dict[str, np.ndarray]:
    with np.load(folder / f"{form}.npz") as stored:
        return dict(stored)


def _apart(live: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference of each output; tokens are not outputs."""
    assert live.keys() == other.keys()
    return {key: float(np.abs(live[key] - other[key]).max() / live[key].std()) for key in live if not key.startswith("tokens")}


def _likeness(live: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, Any]:
    same = [bool((live[key] == other[key]).all()) for key in live if key.startswith("tokens")]
    return {"difference": _rounded(max(_apart(live, other).values())), "greedy_same": all(same) if same else None}


def _rounded(number: float) -> float:
    return float(f"{number:.0e}")


if __name__ == "__main__":
    chosen = [family for family in FAMILIES if family in sys.argv[2:]] or list(FAMILIES)
    wanted = tuple(form for form in sys.argv[2:] if form not in FAMILIES)
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for family in chosen:
        place = Path(sys.argv[1]).resolve() / family
        place.mkdir(parents=True)
        made = measure(family, place, wanted)
        forms = {**(results[family]["forms"] if wanted and family in results else {}), **made["forms"]}
        results[family] = made | {"forms": {form: forms[form] for form in forms_of(family) if form in forms}}
        ordered = {name: results[name] for name in FAMILIES if name in results}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
