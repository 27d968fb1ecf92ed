"""From records of artifacts to the gate's error rates: what counts as sound and as bad, intervals, and the operating curve. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from daemon.contract.formats.catalog import catalog

Record = dict[str, Any]
"""One artifact: what it is, what it really changes, what the gate says. See `gate.record`."""
CHANGED = 0.01
"""Share of the choices from which on a fault counts: what it changes more than the sound artifact of the same form."""
TUNED = 0.75
"""Share of the fine-tuning's effect that a sound artifact has: few bits can erase a weak one."""
EVEN, FARTHEST = 0.5, 2.5
"""As docs/validation.md has it: at so little of the divergence's limit, up to so many times the choices may differ that may otherwise."""
STEPS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Where the classes of the operating curve begin."""
SOUND, BAD, GRAY = "sound", "bad", "gray"
CONFIDENCE = 0.95
PARTS = (1.0, 0.5, 0.2, 0.1)
RATES = ("false_accept", "false_reject", "undecided")


def label(record: Record) -> str:
    """Tell whether an artifact is sound, bad, or neither for certain.

    Bad: a fault that surely changes at least CHANGED of the choices, or whatever surely has more divergence than its limit. Sound: no
    fault, surely no more divergence than that, not surely fewer equal choices than the documented limits ask for, and bits that left the
    fine-tuning in it. Of files: whether transformers reads something else from them.
    """
    truth = record["truth"]
    if "reads_otherwise" in truth:
        return BAD if truth["reads_otherwise"] else GRAY
    kl, limit = truth.get("kl"), catalog().thresholds[record["variant"]].kl
    if _surely_beyond(record):
        return BAD
    if record["fault"] is not None:
        return BAD if truth["beyond"][0] - truth["beyond"][1] >= CHANGED else GRAY
    erased = (tuned := truth.get("tuned")) is not None and tuned < TUNED
    return SOUND if (kl is None or kl[0] + kl[1] <= limit) and not erased and not _chooses_otherwise(record) else GRAY


def _chooses_otherwise(record: Record) -> bool:
    """Tell whether choices surely differ more often than the limits allow, and no small divergence excuses it."""
    flips, kl, limits = record["truth"].get("flips"), record["truth"].get("kl"), catalog().thresholds[record["variant"]]
    if flips is None or kl is None:
        return False
    excused = flips[0] - flips[1] <= FARTHEST * (1 - limits.agreement) and kl[0] - kl[1] <= EVEN * limits.kl
    return bool(flips[0] - flips[1] > 1 - limits.agreement) and not excused


def _surely_beyond(record: Record) -> bool:
    """Tell whether the divergence is surely beyond its limit, whatever the reason."""
    kl = record["truth"].get("kl")
    return kl is not None and bool(kl[0] - kl[1] > catalog().thresholds[record["variant"]].kl)


def clopper_pearson(hits: int, of: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Give the exact interval of a share (Clopper and Pearson, Biometrika 26, 1934)."""
    outside = (1 - confidence) / 2
    low = 0.0 if hits == 0 else _solved(lambda share: 1 - _at_most(hits - 1, of, share) >= outside)
    high = 1.0 if hits == of else _solved(lambda share: _at_most(hits, of, share) <= outside)
    return low, high


def _solved(reached: Callable[[float], bool]) -> float:
    """Give the smallest share for which a condition that stays holds."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _at_most(hits: int, of: int, share: float) -> float:
    """Give the probability of at most so many hits."""
    if share <= 0:
        return 1.0
    if share >= 1:
        return float(hits >= of)
    term = (1 - share) ** of
    if term == 0.0:  # so many that only the middle of the distribution can be written
        return _at_most_in_logarithms(hits, of, share)
    total = term
    for number in range(hits):
        term *= (of - number) / (number + 1) * share / (1 - share)
        total += term
    return min(1.0, total)


def _at_most_in_logarithms(hits: int, of: int, share: float) -> float:
    import math

    def term(number: int) -> float:
        ways = math.lgamma(of + 1) - math.lgamma(number + 1) - math.lgamma(of - number + 1)
        return math.exp(ways + number * math.log(share) + (of - number) * math.log1p(-share))

    return min(1.0, math.fsum(term(number) for number in range(hits + 1)))


def rate(records: Sequence[Record], hit: Callable[[Record], bool]) -> dict[str, Any] | None:
    """Give a share with its interval; None of nothing."""
    if not records:
        return None
    hits = sum(map(hit, records))
    low, high = clopper_pearson(hits, len(records))
    return {"share": round(hits / len(records), 5), "interval": [round(low, 5), round(high, 5)], "hits": hits, "of": len(records)}


def accepted(record: Record) -> bool:
    """Tell whether an artifact would be published as good."""
    return bool(record["verdict"] == "passed")


def rejected(record: Record) -> bool:
    """Tell whether it failed."""
    return bool(record["verdict"] == "failed")


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Give the gate's error rates, in all and by what the artifacts are."""
    labels = [label(record) for record in records]
    sound, bad = ([record for record, known in zip(records, labels, strict=True) if known == which] for which in (SOUND, BAD))
    prompts = [record["prompts"] for record in records]
    return {
        "artifacts": len(records), "sound": len(sound), "bad": len(bad), "gray": labels.count(GRAY),
        "false_accept": rate(bad, accepted), "false_reject": rate(sound, rejected),
        "beyond_limit": rate([record for record in records if _surely_beyond(record)], accepted),
        "undecided": rate(records, lambda record: record["undecided"]),
        "median_prompts": statistics.median(prompts) if prompts else None, "most_prompts": max(prompts, default=None),
    }  # fmt: skip


def grouped(records: Iterable[Record], key: Callable[[Record], str]) -> dict[str, Any]:
    """Give the summary of each group."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return {name: summary(rows) for name, rows in sorted(groups.items())}


CLASSES = {"exact": 0.005, "8 bits": 0.05, "4 bits": 1.0}
"""Class of limits → the largest limit of the divergence in it."""


def limits_class(record: Record) -> str:
    """Give how wide the limits of an artifact are."""
    kl = catalog().thresholds[record["variant"]].kl
    return next(name for name, most in CLASSES.items() if kl <= most)


def operating_curve(records: Iterable[Record]) -> dict[str, list[dict[str, Any]]]:
    """Give the share that is accepted by how much a fault really changes, for each class of limits."""
    curve: dict[str, list[dict[str, Any]]] = {}
    measured = [record for record in records if record["fault"] is not None and "beyond" in record["truth"]]
    for name in CLASSES:
        mine = [record for record in measured if limits_class(record) == name]
        points = []
        for start, end in zip(STEPS, (*STEPS[1:], 1.01), strict=True):
            inside = [record for record in mine if start <= max(0.0, record["truth"]["beyond"][0]) < end]
            if inside:
                points.append({"from": start, "to": min(end, 1.0), **(rate(inside, accepted) or {})})
        curve[name] = points
    return curve


def figures(records: Sequence[Record]) -> dict[str, Any]:
    """Give all figures of a run."""
    whole = summary(records)
    rates = {f"{name}_percent": whole[name] and round(100 * whole[name]["share"], 2) for name in RATES}
    return {
        **rates, "median_prompts": whole["median_prompts"], "whole": whole,
        "by_form": grouped(records, lambda record: record["form"]),
        "by_limits": grouped(records, limits_class),
        "by_family": grouped(records, lambda record: record["family"]),
        "by_kind": grouped(records, lambda record: record["kind"]),
        "by_adapter": grouped(records, lambda record: record["adapter"]),
        "by_fault": grouped((record for record in records if record["fault"]), lambda record: record["fault"]),
        "by_strength": grouped(
            (record for record in records if record["fault"]), lambda record: f"{record['fault']}, {record['strength']:g}"
        ),
        "operating_curve": operating_curve(records), "tightened": tightened(records),
        "seconds": {"judging": round(sum(record["seconds"] for record in records), 1)},
    }  # fmt: skip


def tightened(records: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    """Give what the rates would be if the limit of the divergence were a part of what is declared, for each class of limits."""
    measured = [record for record in records if record["truth"].get("kl") is not None and record.get("kl") is not None]
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in CLASSES:
        mine = [record for record in measured if limits_class(record) == name]
        sound, bad = ([record for record in mine if label(record) == which] for which in (SOUND, BAD))
        rows[name] = [
            {
                "part": part,
                "false_accept": rate(bad, lambda record: accepted(record) and _within(record, part)),  # noqa: B023 (called at once)
                "false_reject": rate(sound, lambda record: not accepted(record) or not _within(record, part)),  # noqa: B023
            }
            for part in PARTS
        ]  # fmt: skip
    return rows


def _within(record: Record, part: float) -> bool:
    return bool(record["kl"] <= part * catalog().thresholds[record["variant"]].kl)


def wrong(records: Iterable[Record]) -> list[Record]:
    """Give the sound ones that failed and the bad ones that passed."""
    return [
        record for record in records
        if (label(record) == SOUND and rejected(record)) or (label(record) == BAD and accepted(record))
    ]  # fmt: skip
