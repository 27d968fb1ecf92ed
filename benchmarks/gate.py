"""How often the gate is wrong: sound artifacts that it fails, and faulty ones that it lets pass, beside what they really change.

    python benchmarks/gate.py [--json FILE] [--records FILE] [--quick] [--part K/N] [--mutants N] [--seeds N] [--kinds NAME …]

Small models of many kinds are trained, each with an adapter, weakly, as usual or strongly; the project merges them. Of each merge come
sound artifacts in several forms, and mutants: the merge with one fault, from hardly anything to all of it, and forms of a sound merge that
have one. The project's stages make the forms, and its gate (the checks of handlers/validate, beside the live model) judges each. The truth
about each is measured apart from it, with transformers, PEFT and ONNX Runtime, on hundreds of texts that the gate never reads: the share of
greedy choices that differ, and the divergence.

`false_accept_percent`: of artifacts that surely change at least 1 % of the choices more than the sound one of their form, or surely have
more divergence than their limit, those that pass. `false_reject_percent`: of those without a fault that are surely within it, those
that fail. What lies between counts as neither. `undecided_percent` and `median_prompts` are of all. Intervals are Clopper and Pearson's.

A line for each artifact is added to `--records`, and what is there already is not measured again, so that a run that was cut off goes on;
`--only-read` measures nothing. `--part 1/2` and `--part 2/2`, each with a file of its own, share the work; the files are put together with
`cat`. `--publish` also writes what the reports and docs/figures.md show.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common
from benchmarks._gate import curve

MUTANTS = 24
READ = 256
"""Texts that are kept for the gate: half of them, by their digests, are there to be compared on."""
SEEDS = 3
SHOWN = ("subject", "adapter", "form", "fault", "strength", "truth", "verdict", "reasons", "kl", "agreement", "error_max")
QUICK = ("qwen3", "mistral", "bert classes")


@dataclass(frozen=True)
class Artifact:
    """One artifact of a subject."""

    form: str
    fault: str | None = None
    strength: float = 0.0


def main() -> None:
    """Measure, and write the figures."""
    options = _options()
    with _common.scratch("gate") as folder:
        path = options.records or folder / "records.jsonl"
        if not options.only_read:
            _measure(options, path, folder)
        records = read(path)
    figures = curve.figures(records)
    for wrong in curve.wrong(records):
        print(json.dumps({key: wrong[key] for key in SHOWN if key in wrong}))
    _common.write("gate", figures, options.json)
    if options.publish:
        from benchmarks._gate import publishing

        publishing.publish(figures)


def _options() -> argparse.Namespace:
    parser = _common.parser("How often the gate is wrong.")
    parser.add_argument("--records", type=Path, help="add what is measured to this file, and read all of it; default: a new one")
    parser.add_argument("--quick", action="store_true", help="about sixty artifacts of three models")
    parser.add_argument("--kinds", nargs="+", metavar="NAME", help="kinds of models; default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="models of each kind: trained ones as many, others fewer")
    parser.add_argument("--mutants", type=int, default=MUTANTS, help="mutants of each model")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N", help="the Kth of N parts of the models")
    parser.add_argument("--only-read", action="store_true", help="measure nothing, read --records")
    parser.add_argument("--publish", action="store_true", help="write what reports and docs/figures.md show")
    return parser.parse_args()


def _part(text: str) -> tuple[int, int]:
    """Read "K/N"."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise argparse.ArgumentTypeError(f"{text} is no part: the first of two is 1/2")
    return part, parts


def read(path: Path) -> list[curve.Record]:
    """Give the records of a file, without a last line that was cut off."""
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _measure(options: argparse.Namespace, path: Path, folder: Path) -> None:
    import torch
    import transformers

    from benchmarks._gate import subjects

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    known = read(path)
    path.write_text("".join(json.dumps(record) + "\n" for record in known))  # without a line that was cut off
    done = {record["subject"] for record in known}
    kinds = [kind for kind in subjects.kinds() if kind.name in (options.kinds or (QUICK if options.quick else (kind.name,)))]
    order = list(enumerate(kinds))
    random.Random(0).shuffle(order)  # so that a run that was cut off has some of all
    part, parts = options.part
    order = order[part - 1 :: parts]
    for seed in range(1 if options.quick else options.seeds):
        for number, kind in order:
            if f"{kind.name} {seed}" in done or seed >= (options.seeds if kind.base_steps else 2 if kind.odd is None else 1):
                continue
            began = time.monotonic()
            try:
                subject = subjects.make(kind, seed + 3 * number, folder / "subject", f"{kind.name} {seed}")
                records = list(_records(subject, options.mutants))
            except Exception:  # a kind that can't be made is left out, and seen in the counts
                traceback.print_exc(limit=-4)
                continue
            finally:
                shutil.rmtree(folder / "subject", ignore_errors=True)
                gc.collect()
            with path.open("a") as stream:
                stream.writelines(json.dumps(record) + "\n" for record in records)
            _say(subject.name, records, time.monotonic() - began)


def _say(name: str, records: Sequence[curve.Record], seconds: float) -> None:
    whole = curve.summary(records)
    rates = {key: whole[key] and f"{whole[key]['hits']}/{whole[key]['of']}" for key in ("false_accept", "false_reject", "undecided")}
    print(f"{seconds:6.1f} s {name}: {len(records)} artifacts, {rates}", flush=True)


def artifacts(subject: Any, mutants: int) -> Iterator[Artifact]:
    """Give the sound artifacts of a subject and its mutants: another part of all faults and strengths for each subject."""
    from benchmarks._gate.faults import graded
    from benchmarks._gate.forms import FORMS, PLAIN

    yield from (Artifact(form) for form in FORMS)
    drawn = random.Random(subject.name)
    every = [(fault, strength) for fault, strength in graded()]
    drawn.shuffle(every)
    forms = [name for name in FORMS if name != PLAIN]
    for number, (fault, strength) in enumerate(every):
        plain = fault.files or number % 5 < 3
        yield Artifact(PLAIN if plain else drawn.choice(forms), fault.name, strength)


def _records(subject: Any, mutants: int) -> Iterator[curve.Record]:
    """Judge each artifact, and measure it; `mutants` of those that the subject can have."""
    import itertools

    from benchmarks._gate.judging import Gate
    from benchmarks._gate.truth import Teller

    texts = list(itertools.islice(subject.texts, READ))
    gate, teller = Gate(subject, subject.folder / "gate", texts), Teller(subject)
    sound: dict[str, Any] = {}
    left = mutants
    for artifact in artifacts(subject, mutants):
        if artifact.fault is not None and (left == 0 or artifact.form not in sound):
            continue
        folder = made(subject, artifact, subject.folder / "artifact")
        if folder is None:
            continue
        left -= artifact.fault is not None
        yield record(subject, artifact, folder, gate, teller, sound)


def made(subject: Any, artifact: Artifact, folder: Path) -> Path | None:
    """Make an artifact below `folder`, of a merge that has the fault; None where the subject can't have it."""
    from safetensors.torch import save_file

    from benchmarks._gate.faults import BY_NAME
    from benchmarks._gate.forms import written

    shutil.rmtree(folder, ignore_errors=True)
    merged = folder / "merged"
    shutil.copytree(subject.merged, merged)
    tensors = {name: tensor.clone() for name, tensor in subject.tensors.items()}
    if artifact.fault and not BY_NAME[artifact.fault].change(subject, tensors, merged, artifact.strength):
        return None
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, merged / "model.safetensors", {"format": "pt"})
    return written(subject, artifact.form, merged, folder)


def record(subject: Any, artifact: Artifact, folder: Path, gate: Any, teller: Any, sound: dict[str, Any]) -> curve.Record:
    """Give the record of one artifact. `sound`: what is true of the sound one of each form, which comes first."""
    from benchmarks._gate import judging
    from benchmarks._gate.faults import BY_NAME
    from benchmarks._gate.forms import FORMS, PLAIN

    variant = FORMS[artifact.form]
    of_files = artifact.fault is not None and BY_NAME[artifact.fault].files
    judged = gate.judged(variant, folder, files=of_files or (artifact.fault is None and artifact.form == PLAIN))
    truth: dict[str, Any]
    if of_files:
        truth = {"reads_otherwise": teller.reads_otherwise(folder)}
    else:
        measured = teller.truth(folder)
        sound.setdefault(artifact.form, measured)
        beyond, kl = measured.beyond(sound[artifact.form]), measured.kl
        truth = {"flips": _pair(measured.flips), "beyond": _pair(beyond), "kl": kl and _pair(kl), "tuned": measured.tuned}
    return {
        "subject": subject.name, "kind": subject.kind.name, "family": subject.kind.about,
        "adapter": subject.strength, "form": artifact.form, "variant": variant,
        "fault": artifact.fault, "strength": artifact.strength, "truth": truth, "undecided": judged.undecided, "prompts": judged.prompts,
        "seconds": round(judged.seconds, 3), **judging.shown(judged.check),
    }  # fmt: skip


def _pair(estimate: Any) -> list[float]:
    """Give a figure with half of its 95 % interval."""
    return [float(f"{estimate.value:.6g}"), float(f"{estimate.value - estimate.least:.3g}")]


if __name__ == "__main__":
    main()
