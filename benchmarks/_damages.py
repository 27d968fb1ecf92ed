"""What of damaged artifacts the checks find, and what they say of sound ones: the sets of the tests, counted by class and by format.

Called by `artifacts.py --damages` and `--odd-models`. A damage counts as found where the reason that belongs to it is given; of one that
is harmless nothing may be said.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.jobs.messages import ArtifactCheck, Verdict


@dataclass(frozen=True)
class Outcome:
    """What became of one artifact."""

    kind: str
    """weights, files, length or rounding; "" of a sound one."""
    variant: str
    name: str
    right: bool


def _said(check: ArtifactCheck, words: str | None) -> bool:
    if not words:
        return check.verdict is Verdict.PASSED
    return check.verdict is Verdict.FAILED and any(re.search(words, reason) for reason in check.reasons)


def _weights(folder: Path) -> Iterator[Outcome]:
    from tests.validate import sabotage

    folder.mkdir()
    lab = sabotage.make(folder)
    bench = lab.bench(folder / "bench")
    for variant in sabotage.VARIANTS:
        yield Outcome("", variant, "sound", _said(bench.check(variant, lab.made("sound", variant), lab.source(variant)), None))
    for number, (case, variant) in enumerate(sabotage.CASES):
        check = sabotage.checked(lab, bench, case, variant, folder / f"case-{number}")
        yield Outcome("weights", variant, case.name, _said(check, case.words))


def _files(folder: Path) -> Iterator[Outcome]:
    from tests.validate import damage_files

    folder.mkdir()
    bank, benches = damage_files.Bank(folder), dict[str, Any]()
    for number, (case, kind) in enumerate(damage_files.ALL):
        place = "causal" if kind in damage_files.CAUSAL else kind
        if place not in benches:
            benches[place] = bank.bench(kind, folder / f"bench-{place}")
        variant, sound = bank.sound(kind)
        if kind not in benches or number == 0:
            benches[kind] = benches[place]
            yield Outcome("", variant, f"sound, {kind}", _said(bank.check(kind, benches[place], sound), None))
        check = damage_files.checked(bank, benches[place], case, kind, folder / f"case-{number}")
        yield Outcome("files", variant, f"{case.name}, {kind}", _said(check, case.words))


def _length(folder: Path) -> Iterator[Outcome]:
    from tests.validate import damage_length

    folder.mkdir()
    lab, benches = damage_length.LongLab(folder), dict[str, Any]()
    for number, (case, variant) in enumerate(damage_length.CASES):
        if case.kind not in benches:
            lab.made(case.kind, "pytorch")
            benches[case.kind] = lab.bench(case.kind, folder / case.kind / "bench")
            for one in dict.fromkeys(name for damage, name in damage_length.CASES if damage.kind == case.kind):
                check = benches[case.kind].check(one, lab.made(case.kind, one), lab.source(case.kind, one))
                yield Outcome("", one, f"sound, {case.kind}", _said(check, None))
        check = damage_length.checked(lab, benches[case.kind], case, variant, folder / f"case-{number}")
        yield Outcome("length", variant, f"{case.name}, {case.kind}", _said(check, case.words))


def _rounding(folder: Path) -> Iterator[Outcome]:
    from tests.validate import damage_quantized, sabotage

    folder.mkdir()
    lab = sabotage.make(folder)
    for form in damage_quantized.FORMS:
        answer = damage_quantized.answered(lab, form, damage_quantized.artifact(lab, form))
        yield Outcome("", _variant(form), f"sound, {form}", not damage_quantized.reasons(answer))
    for number, (case, form) in enumerate(damage_quantized.CASES):
        target = case.apply(damage_quantized.artifact(lab, form), folder / f"case-{number}")
        reasons = damage_quantized.reasons(damage_quantized.answered(lab, form, target))
        right = bool(re.search(case.words, reasons)) if case.words else not reasons
        yield Outcome("rounding", _variant(form), f"{case.name}, {form}", right)


def _variant(form: str) -> str:
    return f"onnx-{form}" if form != "fp32" else "onnx"


CLASSES = {"weights": _weights, "files": _files, "length": _length, "rounding": _rounding}


def detection(folder: Path, classes: Sequence[str] = ()) -> dict[str, Any]:
    """`detection_rate` of all damages, by class and by format, `false_alarm_rate` of the sound artifacts beside them, and the names of
    those that were not judged rightly. `classes`: those that are tried, all without any."""
    outcomes = []
    for name in classes or CLASSES:
        for outcome in CLASSES[name](folder / name):
            print(f"{outcome.kind or 'sound':9} {outcome.variant:20} {outcome.name:60} {'right' if outcome.right else 'WRONG'}", flush=True)
            outcomes.append(outcome)
    damaged, sound = [one for one in outcomes if one.kind], [one for one in outcomes if not one.kind]
    found = {
        "damages": len(damaged),
        "detection_rate": _rate(damaged),
        "sound_artifacts": len(sound),
        "false_alarm_rate": 1 - _rate(sound),
        "wrongly_judged": [f"{one.variant}: {one.name}" for one in outcomes if not one.right],
    }
    for key in ("kind", "variant"):
        counts = Counter(getattr(one, key) for one in damaged)
        rights = Counter(getattr(one, key) for one in damaged if one.right)
        found |= {f"detected_{name}": f"{rights[name]} of {count}" for name, count in sorted(counts.items())}
    return found


def _rate(outcomes: list[Outcome]) -> float:
    return sum(one.right for one in outcomes) / len(outcomes)


def odd_models(folder: Path) -> dict[str, Any]:
    """How many artifacts of sound models of odd kinds raise an alarm, of those that are exact enough by their thresholds."""
    from tests.validate.odd_models import ODD
    from tests.validate.test_odd_models import COARSE, export

    alarms, total = [], 0
    for number, odd in enumerate(ODD):
        report = export(odd, folder / str(number))
        for one in report["artifacts"]:
            total += 1
            wrong = [why for why in one["reasons"] if not COARSE.match(why)]
            if one["verdict"] == "failed" and wrong:
                alarms.append(f"{odd.name}, {one['variant']}: {wrong[0]}")
        print(f"{odd.name}: {len(report['artifacts'])} artifacts, {len(alarms)} alarms so far", file=sys.stderr, flush=True)
    return {"odd_models": len(ODD), "odd_artifacts": total, "odd_alarms": alarms, "odd_false_alarm_rate": len(alarms) / max(1, total)}
