"""What each variant is worth beside the live model: its size over the base's, its speed over torch eager, its divergence.

    python benchmarks/artifacts.py [--json FILE] [--variants NAME…] [--seconds 60] [--steps 60] [--damages [CLASS…]] [--odd-models]

The demo's base learns Python for `--seconds`, a LoRA adapter is trained on it for `--steps`, and `ckptd export` makes and validates the
variants of the last checkpoint, as a user's command would; the figures are those of its report. `size_ratio`: bytes of the artifact over
bytes of the base's weights, which are bf16. `speed_over_eager`: tokens a second over those of torch eager, in turns. `kl`: nats a token
against base + adapter. `check_share`: the CPU seconds of the stages that look whether artifacts are right (`reference`, `merged`, all
`check-…`) over those of all stages of the export, `cpu_seconds` are those of each stage. The model is small: what a call costs
weighs more in its speeds than arithmetic; `onnx.py` has larger ones.

`--damages` adds what the checks find of artifacts that are wrong in one way each (`detection_rate`, by class and by format) and say of
sound ones (`false_alarm_rate`); `--odd-models` the alarms in exports of sound models of odd kinds. Each takes most of an hour.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _damages
from daemon.cli.demo.setup import PROMPTS
from daemon.contract.formats.catalog import catalog

WRONG = 1
"""Exit code of an export in which nothing succeeded; one in which a variant failed (3) still has figures."""


def train(folder: Path, seconds: float, steps: int) -> Path:
    """The last checkpoint of an adapter, on a base in `folder`/bases; both trained here."""
    base, run = folder / "bases" / "base", folder / "runs" / "bench"
    run.parent.mkdir()
    base.parent.mkdir()
    _common.run_child(_common.python("-m", "handlers.demo.make_base", str(base), "--seconds", str(seconds)))
    _common.run_child(
        _common.python(
            "-m", "handlers.demo.finetune", str(base), str(run), "--steps", str(steps), "--save-steps", str(steps), "--threads", "2"
        )
    )
    return run / f"checkpoint-{steps}"


def export(folder: Path, checkpoint: Path, variants: list[str]) -> dict[str, Any]:
    """The report of an export of `checkpoint`."""
    configuration, prompts = folder / "config.toml", folder / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS) + "\n")
    configuration.write_text(
        f"""
[base]
search = [{json.dumps(str(folder / "bases"))}]
[export]
variants = {json.dumps(variants)}
[validate]
samples = {len(PROMPTS)}
prompts = {json.dumps(str(prompts))}
"""
    )
    output = folder / "export"
    command = _common.python("-m", "daemon", "export", str(checkpoint), "--config", str(configuration), "--output", str(output))
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(_common.ROOT)}, capture_output=True, text=True)
    reports = list(output.rglob("report.json"))
    if ended.returncode == WRONG or len(reports) != 1:
        raise RuntimeError(f"the export ended with {ended.returncode}: {ended.stderr[-2000:]}")
    return json.loads(reports[0].read_text())  # type: ignore[no-any-return]


def without_toolchain() -> list[str]:
    """The variants that are made and checked in the Python of ckptd itself."""
    return [name for name, one in catalog().variants.items() if not (one.toolchain or one.limits.toolchain)]


def main() -> None:
    """Train, export, print the table, write the JSON file."""
    parser = _common.parser("What each variant is worth beside the live model.")
    parser.add_argument("--variants", nargs="+", default=without_toolchain(), help="default: all that need no toolchain")
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of the base")
    parser.add_argument("--steps", type=int, default=60, help="training steps of the adapter")
    parser.add_argument(
        "--damages", nargs="*", choices=list(_damages.CLASSES), help="damaged and sound artifacts too, of these classes or all"
    )
    parser.add_argument("--odd-models", action="store_true", help="exports of sound models of odd kinds too")
    options = parser.parse_args()
    with _common.scratch("artifacts") as folder:
        checkpoint = train(folder, options.seconds, options.steps)
        report = export(folder, checkpoint, options.variants)
    figures: dict[str, Any] = {"parameters": report["base"]["parameters"], "base_mb": report["base"]["size_bytes"] / 1e6}
    figures |= {"check_share": report["checking_share"], "cpu_seconds": {stage["name"]: stage["cpu_seconds"] for stage in report["stages"]}}
    for artifact in report["artifacts"]:
        found = artifact["figures"]
        figures[artifact["variant"]] = {
            "verdict": artifact["verdict"], "size_ratio": artifact["size_ratio"], "speed_over_eager": found.get("speed_over_pytorch"),
            "kl": found.get("kl"), "agreement": found.get("agreement"),
        }  # fmt: skip
    if options.damages is not None:
        with _common.scratch("damages") as folder:
            figures |= _damages.detection(folder, options.damages)
    if options.odd_models:
        with _common.scratch("odd") as folder:
            figures |= _damages.odd_models(folder)
    libraries = ("torch", "transformers", "peft", "onnxruntime", "onnxruntime-genai")
    _common.write("artifacts", figures, options.json, libraries=libraries)


if __name__ == "__main__":
    main()
