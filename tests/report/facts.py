"""Journal facts of exports that went well or badly, made of the contract's own types."""

from __future__ import annotations

import functools
import math
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import (
    ArtifactCheck,
    AttemptFacts,
    CheckpointRef,
    ChildLimits,
    Fallback,
    FileEntry,
    JobFacts,
    Outcome,
    StageContext,
    StageFacts,
    StageResult,
    Verdict,
)
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from handlers.report.content.build import build
from handlers.report.model import Report
from handlers.validate.arithmetic import distribution
from handlers.validate.arithmetic.comparison import Comparison

BEGIN = datetime.fromisoformat("2026-11-20T10:00:00+00:00")
END = BEGIN + timedelta(seconds=96)
BASE_BYTES = 1_192_099_840
OUT_OF_MEMORY = Fault(
    code="out-of-memory", operation="quantize the graph", cause="the kernel ended the child at 6.1 GB",
    remedy="raise limits.memory_fraction or leave onnx-int8 out",
)  # fmt: skip
BASE_MISSING = Fault(
    code="base-not-found", operation="merge the adapter", path="/models/Qwen3-0.6B", cause="the folder holds no config.json",
    remedy="point the configuration at a folder that holds the base model", details="Traceback (most recent call last):\n  …",
)  # fmt: skip
REJECTION_REASON = "agreement 0.71 is below 0.85"
REJECTION_REMEDY = "use the variant onnx instead, or relax validate.limits.onnx-int8.agreement if you accept the difference"


def at(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).isoformat()


def files(*sizes: int) -> tuple[FileEntry, ...]:
    names = ("model.safetensors", "tokenizer.json", "config.json")
    return tuple(FileEntry(path=name, size=size, sha256=f"{size:064x}") for name, size in zip(names, sizes, strict=False))


def done(name: str, start: float, seconds: float, *, sizes: tuple[int, ...] = (), earlier: tuple[AttemptFacts, ...] = (), **result: Any):
    attempt = AttemptFacts(
        number=len(earlier) + 1, strategy="default", outcome="succeeded", started=at(start), ended=at(start + seconds),
        log=f"/var/log/ckptd/{name}.log", estimate=2_100_000_000,
    )  # fmt: skip
    made = StageResult(
        outcome=Outcome.SUCCEEDED, files=files(*sizes), seconds=seconds, cpu_seconds=2 * seconds, peak_rss=1_600_000_000,
        versions={"python": "3.11.2", "torch": "2.13.0"}, **result,
    )  # fmt: skip
    return StageFacts(name=name, state="succeeded", attempts=(*earlier, attempt), result=made)


def lost(name: str, fault: Fault | None, *, state: str = "failed", start: float | None = 5.0, outcome: str = "permanent") -> StageFacts:
    attempts = ()
    if start is not None:
        attempts = (
            AttemptFacts(
                number=1,
                strategy="default",
                outcome=outcome,
                started=at(start),
                ended=at(start + 2),
                log=f"/var/log/ckptd/{name}.log",
                fault=fault,
            ),
        )
    return StageFacts(name=name, state=state, attempts=attempts, fault=fault)


NEEDS = "any x86-64 or ARM64 processor"
CHECKED_ON = {"architecture": "x86_64", "vendor": "GenuineIntel", "model": "Xeon | Gold", "features": ["avx2", "avx512_vnni"]}


def check(variant: str, verdict: Verdict = Verdict.PASSED, **figures: Any) -> ArtifactCheck:
    ratio = {"pytorch": 1.0, "onnx": 2.6, "onnx-int8": 4.8}.get(variant, 1.0)
    typical: dict[str, Any] = {
        "agreement": 1.0, "kl": 2.4e-7, "error_max": 3.1e-4, "error_max_absolute": 4e-4, "logit_std": 1.3, "positions": 311,
        "greedy_identical": 6, "greedy_prompts": 6, "tokens_per_second": 6.5 * ratio, "pytorch_tokens_per_second": 6.5,
        "speed_over_pytorch": ratio, "peak_rss_bytes": 1_450_000_000, "load_seconds": 1.2, "prefill_seconds": 0.61,
        "sample": {"prompt": "def add(a, b):", "reference": "\n    return a + b\n", "text": "\n    return a + b\n"},
    }  # fmt: skip
    if variant.startswith("onnx"):
        typical |= {"cache_error_max_absolute": 2e-5, "padding_error_max_absolute": 1e-5, "merged_error_max_absolute": 1e-5, "needs": NEEDS}
    worst = {
        "number": 2,
        "kl": 0.02,
        "position": 14,
        "position_kl": 0.31 if "int8" in variant else 3e-6,
        "prompt": PROSE,
        "before": f"{PROSE} the lamp was",
    }
    typical |= {
        "texts": 6, "perplexity": 14.31, "perplexity_ratio": 1.004, "perplexity_ratio_interval": [0.998, 1.011], "perplexity_tokens": 167,
        "greedy_same": [24, 24, 11, 24, 24, 24], "greedy_same_median": 24.0, "greedy_tokens_median": 24.0, "fine_tuning": 0.998,
        "fine_tuning_interval": [0.991, 1.003], "distance_from_live": 0.002, "distance_from_base": 0.31,
        "worst": {**worst, "live": " lit", "artifact": " out" if "int8" in variant else " lit"},
    }  # fmt: skip
    typical["statistics"] = statistics(0.3 if "int8" in variant else 1e-3)
    typical["decisions"] = [
        {"limit": "kl", "value": (typical | figures)["kl"], "allowed": 0.05, "low": 0.0, "high": 0.03, "outcome": "passed", "texts": 6},
        {"limit": "agreement", "value": (typical | figures)["agreement"], "allowed": 0.85, "low": 0.7, "high": 1.0,
         "outcome": "undecided" if "int8" in variant else "passed", "texts": 64 if "int8" in variant else 6, "looks": 5},
        {"limit": "error", "value": (typical | figures)["error_max"], "allowed": 2.0, "high": 0.24, "outcome": "passed", "texts": 6},
    ]  # fmt: skip
    for name, low, high in (("kl", 0.5, 1.6), ("agreement", 0.98, 1.01)):
        value = (typical | figures)[name]
        if isinstance(value, float):
            typical[f"{name}_interval"] = [low * value, min(1.0, high * value)]
    first, written = figures.get("sample", typical["sample"]), " the lamp was lit once." if "int8" in variant else SAMPLES[1]["text"]
    typical["samples"] = [
        dict(first) if isinstance(first, dict) else first,
        {"prompt": PROSE, "reference": SAMPLES[1]["text"], "text": written},
    ]
    typical["by_text"] = {
        name: by_text(name, (typical | figures)[name]) for name in ("kl", "perplexity") if (typical | figures)[name] is not None
    }
    rejected = verdict is Verdict.FAILED
    return ArtifactCheck(
        variant=variant, verdict=verdict, reasons=(REJECTION_REASON,) if rejected else (), remedy=REJECTION_REMEDY if rejected else None,
        figures=typical | figures,
    )  # fmt: skip


@functools.cache
def statistics(noise: float) -> dict[str, Any]:
    """Of 311 positions, as a check gives them, with so much noise in the logits."""
    rng = np.random.default_rng(3)
    mine = rng.normal(0, 1, (311, 50)) * rng.uniform(0.5, 8, (311, 1))
    following = [(row, int(mine[row].argmax()) if row % 2 else row % 50) for row in range(167)]
    rows = Comparison().add(mine, mine + rng.normal(0, noise, mine.shape), following).positions
    return distribution.statistics([rows], [following], (0.998, 1.011)).written()


def by_text(name: str, value: float, texts: int = 6) -> list[list[float]]:
    """[sum, weight] of texts that are harder or easier for all models alike: every difference of two models is one."""
    shares = [0.9 + 0.2 * number / (texts - 1) for number in range(texts)]
    return [[50 * (math.log(value) + share if name == "perplexity" else value * share), 50] for share in shares]


REFERENCE: dict[str, Any] = {
    "adapter": {
        "agreement": 0.579, "kl": 0.0837, "texts": 6, "agreement_interval": [0.52, 0.63], "kl_interval": [0.051, 0.122], "perplexity": 21.7,
        "perplexity_ratio": 1.523, "perplexity_ratio_interval": [1.31, 1.79], "greedy_same": [3, 0, 24, 1], "greedy_same_median": 2.0,
        "greedy_tokens_median": 24.0,
    },
    "perplexity": 14.25, "dtype": "float32", "tokens_per_second": 6.5, "peak_rss_bytes": 2_900_000_000,
    "load_seconds": 3.4,
    "method": "base + adapter",
}  # fmt: skip
PROSE = "The keeper climbed the stairs, and"
SAMPLES = [
    {"prompt": "def add(a, b):", "base": "\n    print(a, b)\n", "text": "\n    return a + b\n"},
    {"prompt": PROSE, "base": " the lamp was out.", "text": " the lamp was lit again."},
]
"""What base and live model say, as the stage `reference` gives it."""
MERGE = {
    "base_bytes": BASE_BYTES, "parameters": 596_049_920, "base_dtype": "bfloat16", "base_digest": "ab" * 32, "changed_modules": 196,
    "changed_parameters": 440_401_920, "ranks": [16], "scale": 2.0, "method": "LORA", "merge_seconds": 4.9,
}  # fmt: skip
RETRIED = AttemptFacts(
    number=1, strategy="default", outcome="retryable", started=at(7), ended=at(16), log="/var/log/ckptd/onnx-1.log", fault=OUT_OF_MEMORY
)
GRAPH = {"opset": 18, "nodes": 1432, "attention": "eager"}
WARNING = "1 MatMul has no constant weight"
FALLBACK = Fallback(wanted="opset 23", taken="opset 18", reason="the runtime has no kernel for Attention 23")


def checkpoint(**changes: Any) -> CheckpointRef:
    history = [[step, round(7.6 * 0.985**step + 0.2 * (step % 3), 3)] for step in range(1, 61)]
    values: dict[str, Any] = {
        "root": "/runs", "run": "code-lora", "step": 60, "path": "/runs/code-lora/checkpoint-60", "layout": "trainer-adapter",
        "digest": "cd" * 32, "method": "LORA", "base_name": "Qwen/Qwen3-0.6B",
        "metadata": {"epoch": 1.2, "rank": 16, "alpha": 32, "loss_history": history},
    }  # fmt: skip
    return CheckpointRef(**{**values, **changes})


def job(*stages: StageFacts, **changes: Any) -> JobFacts:
    values: dict[str, Any] = {
        "export_id": "7f3a9c21", "created": at(0), "started": at(0), "checkpoint": checkpoint(), "base": "/models/Qwen3-0.6B",
        "work": Work(export=ExportOptions(), validation=ValidateOptions()), "stages": stages, "target": "/exports/code-lora/step-60",
    }  # fmt: skip
    return JobFacts(**{**values, **changes})


def skipped(name: str, need: str, cause: str, remedy: str) -> Fault:
    """What the runner says of a stage that it does not start."""
    return Fault(code="skipped", operation=f"run the stage {name}", cause=f"the stage {need} gave no output: {cause}", remedy=remedy)


def _by_stage(checks: tuple[ArtifactCheck, ...]) -> dict[str, tuple[ArtifactCheck, ...]]:
    """Stage → the check that it gives; a stage without one was skipped with the reference."""
    given = {check.variant: check for check in checks}
    stages = {"merged": "pytorch", "check-onnx": "onnx", "check-onnx-int8": "onnx-int8"}
    stages |= {f"check-{variant}": variant for variant in given if variant not in stages.values()}
    return {stage: (given[variant],) if variant in given else () for stage, variant in stages.items()}


def made_all(*checks: ArtifactCheck, **changes: Any) -> JobFacts:
    """Every artifact was made; validation gave `checks`."""
    return job(
        done("merge", 0, 5, figures=MERGE),
        done("pytorch", 5, 1.5, sizes=(BASE_BYTES, 11_422_654, 726)),
        done("onnx", 18, 30, sizes=(2_384_000_000, 11_422_654, 726), earlier=(RETRIED,), figures=GRAPH, fallbacks=(FALLBACK,)),
        done("onnx-int8", 48, 21, sizes=(604_000_000, 11_422_654, 726), figures={"quantized_nodes": 197}, warnings=(WARNING,)),
        done("reference", 69, 10, figures={"reference": REFERENCE, "checked_on": CHECKED_ON, "samples": SAMPLES}),
        *(done(stage, 79 + 4 * place, 4, checks=those) for place, (stage, those) in enumerate(_by_stage(checks).items())),
        StageFacts(name="report", state="running", attempts=(AttemptFacts(number=1, strategy="default", outcome=None, started=at(95)),)),
        **changes,
    )  # fmt: skip


def succeeded(**changes: Any) -> JobFacts:
    return made_all(
        check("pytorch", kl=0.0, error_max=0.0), check("onnx"), check("onnx-int8", agreement=0.962, kl=0.011, error_max=0.62), **changes
    )


def rejected_int8() -> JobFacts:
    """The int8 artifact was made and disagrees with the live model."""
    sample = {"prompt": "def add(a, b):", "reference": "\n    return a + b\n", "text": "\n    return b\n\n\n"}
    wrong = check("onnx-int8", Verdict.FAILED, agreement=0.71, kl=0.42, error_max=3.9, sample=sample)
    return made_all(check("pytorch", kl=0.0, error_max=0.0), check("onnx"), wrong)


def failed_int8() -> JobFacts:
    """The int8 stage itself failed."""
    facts = made_all(check("pytorch"), check("onnx"))
    return facts.model_copy(
        update={"stages": tuple(lost("onnx-int8", OUT_OF_MEMORY) if s.name == "onnx-int8" else s for s in facts.stages)}
    )


def failed_merge() -> JobFacts:
    """The merge failed, so nothing else could start."""
    others, cause = [], BASE_MISSING.cause
    for need, name in (("merge", "pytorch"), ("merge", "onnx"), ("onnx", "onnx-int8"), ("merge", "reference"), ("reference", "merged")):
        told = cause if need == "merge" else f"the stage merge gave no output: {cause}"
        others.append(lost(name, skipped(name, need, told, BASE_MISSING.remedy), state="skipped", start=None))
    return job(lost("merge", BASE_MISSING), *others)


def withheld() -> JobFacts:
    """Everything was made; validation itself failed, and nothing may be published without it."""
    return unverified(allowed=())


def unverified(allowed: tuple[str, ...] = ("pytorch", "onnx", "onnx-int8")) -> JobFacts:
    """Everything was made; validation itself failed."""
    facts = made_all(work=Work(export=ExportOptions(), validation=ValidateOptions(publish_unverified=allowed)))
    fault = Fault(code="reference-load", operation="load the live model", cause="no memory", remedy="free memory and retry")
    checks = ("merged", "check-onnx", "check-onnx-int8")
    missed = {name: lost(name, skipped(name, "reference", fault.cause, fault.remedy), state="skipped", start=None) for name in checks}
    stages = (lost("reference", fault) if s.name == "reference" else missed.get(s.name, s) for s in facts.stages)
    return facts.model_copy(update={"stages": tuple(stages)})


def context(facts: JobFacts | None, folder: Path) -> StageContext:
    """The job file of the report stage, with its folders made below `folder`."""
    for name in ("staging", "temporary", "cache", "pin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    reference = facts.checkpoint if facts else checkpoint()
    return StageContext(
        job="7f3a9c21", stage="report", entry="handlers.report.stage:run", attempt=1,
        checkpoint=reference, pin=str(folder / "pin"), staging=str(folder / "staging"),
        result=str(folder / "result.json"), temporary=str(folder / "temporary"), cache=str(folder / "cache"),
        work=facts.work if facts else Work(export=ExportOptions(), validation=ValidateOptions()), facts=facts,
        limits=ChildLimits(nice=0, idle=False),
    )  # fmt: skip


def report_of(job: JobFacts, folder: Path) -> Report:
    """Its report, ended after 96 s."""
    return build(context(job, folder), END)
