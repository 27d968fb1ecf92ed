"""Where good artifacts and damaged ones part, what limits find of them, and the limits that follow. Pure.

Called by `thresholds.py`. A record is what the check of one artifact found (`thresholds.Model.record`), as JSON.

The rule. The *tight* limits are what these models would bear: of `kl` and `error`, ROOM times the largest value of any good artifact, up to
the next of 1, 2, 5 × 10ⁿ; of `agreement`, 1 − ROOM × (1 − the smallest good value), down to the next 0.01; none wider than before. A limit
that is too tight refuses sound artifacts of users' models, and starts the way down. So limits are tightened only where the tight ones find
a damaged artifact that the whole check, with the earlier limits, misses (`gained`), and never below what was published of real models in as
many bits (REAL).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daemon.contract.formats.thresholds import Thresholds
from handlers.validate.deciding import EVEN_FIGURE as EVEN

Record = dict[str, Any]
GOOD = "good"
ROOM = 3.0
"""Users' models are not those of this benchmark."""
FIGURES = ("kl", "disagreement", "error_max", "cache", "padding", "merged")
"""Figures that are larger where something is wrong; disagreement is 1 − agreement."""
EARLIER = {
    "pytorch": (0.97, 0.001, 0.25), "onnx": (0.97, 0.001, 0.25), "onnx-fp16": (0.96, 0.002, 0.3), "onnx-int8": (0.85, 0.05, 2.0),
    "onnx-int8-static": (0.85, 0.05, 2.0), "onnx-int8-weight": (0.95, 0.005, 0.5), "onnx-int4": (0.8, 0.1, 3.0),
    "onnx-int4-fine": (0.8, 0.1, 3.0), "onnx-mixed": (0.85, 0.05, 2.0), "pytorch-fp16": (0.96, 0.002, 0.3),
    "pytorch-bf16": (0.95, 0.005, 0.5), "pytorch-bnb-int8": (0.9, 0.02, 1.5), "pytorch-bnb-nf4": (0.8, 0.1, 3.0),
    "pytorch-w8a8": (0.9, 0.02, 1.5), "pytorch-w4a16": (0.8, 0.1, 3.0),
}  # fmt: skip
"""Variant → agreement, kl and error that were declared before this benchmark was there."""
EARLIER_ITSELF = {
    "onnx-int8": (1.0, 1.5), "onnx-int8-static": (0.5, 1.5), "onnx-int4": (0.5, 0.25), "onnx-int4-fine": (0.5, 0.25),
    "onnx-mixed": (0.5, 0.25),
}  # fmt: skip
"""The same of cache and padding, where it was another than today: the limit, and the share of the error to which it may rise."""


@dataclass(frozen=True)
class Judge:
    """What an artifact is judged by: thresholds against the live model, and limits of its difference from itself."""

    thresholds: Thresholds
    itself: tuple[float, float]
    """As in EARLIER_ITSELF."""


def key(record: Record) -> tuple[Any, ...]:
    """What a record is of: no two of a file have the same."""
    return tuple(record.get(name, 0) for name in ("model", "variant", "kind", "live", "seed"))


def value(record: Record, figure: str) -> float | None:
    """A figure of a record; infinite where the outputs were not finite, None where the task does not have it."""
    if figure == "disagreement":
        return None if record.get("agreement") is None else 1.0 - float(record["agreement"])
    found = record.get(figure)
    return None if found is None else float(found)


def crosses(record: Record, limits: Thresholds, even: float | None = None) -> bool:
    """Whether an artifact fails by these limits alone. `even`: agreement does not count where the interval of the divergence ends at most
    there; None: by the limits."""
    even = EVEN * limits.kl if even is None else even
    agreement, kl, upper, error = (value(record, name) for name in ("agreement", "kl", "kl_upper", "error_max"))
    return (
        (agreement is not None and not agreement >= limits.agreement and not (upper is not None and upper <= even))
        or (kl is not None and not kl <= limits.kl)
        or (error is not None and not error <= limits.error)
    )


def contradicts(record: Record, itself: tuple[float, float]) -> bool:
    """Whether cached steps or padded batches differ from single passes by more than the limit."""
    limit, part = itself
    allowed = max(limit, part * (value(record, "error_max") or 0.0))
    return any(found is not None and not found <= allowed for found in (value(record, "cache"), value(record, "padding")))


def fails(record: Record, judge: Judge) -> bool:
    """Whether it fails by these limits or by anything else that the check looks at."""
    return bool(record["otherwise"]) or contradicts(record, judge.itself) or crosses(record, judge.thresholds)


def share(hits: Iterable[bool]) -> float | None:
    """The share of hits; None of nothing."""
    found = list(hits)
    return sum(found) / len(found) if found else None


def split(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """The good ones and the damaged ones."""
    found = list(records)
    return [one for one in found if one["kind"] == GOOD], [one for one in found if one["kind"] != GOOD]


def parting(records: Sequence[Record], figure: str) -> dict[str, Any] | None:
    """Where a figure's good and damaged values part; None where one of both is missing.

    Damages that leave the figure below the largest good value can't be told by it: they are counted in `below`.
    """
    good, bad = ([found for one in part if (found := value(one, figure)) is not None] for part in split(records))
    if not good or not bad:
        return None
    largest = max(good)
    above = [one for one in bad if one > largest]
    return {
        "largest_good": largest, "smallest_bad": min(bad), "smallest_bad_above": min(above) if above else None,
        "below": len(bad) - len(above), "of": len(bad),
    }  # fmt: skip


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Smallest, median and largest; None of nothing."""
    found = sorted(one for one in values if one is not None)
    return {"min": found[0], "median": found[len(found) // 2], "max": found[-1]} if found else None


def next_step(number: float) -> float:
    """The smallest of 1, 2, 5 × 10ⁿ that is not below a number above 0."""
    power = math.floor(math.log10(number))
    steps = [float(f"{digit}e{power + more}") for more in (0, 1) for digit in (1, 2, 5)]
    return next(step for step in steps if step >= number * (1 - 1e-9))


def tight(records: Sequence[Record], earlier: Thresholds) -> Thresholds | None:
    """The limits that the good artifacts would bear, by the rule above; None where there is none."""
    good, _ = split(records)
    if not good:
        return None

    def upward(figure: str, ceiling: float) -> float:
        found = [one for record in good if (one := value(record, figure)) is not None]
        return min(ceiling, next_step(max([ROOM * one for one in found] + [1e-6])))

    apart = max((one for record in good if (one := value(record, "disagreement")) is not None), default=0.0)
    agreement = max(earlier.agreement, math.floor(100 * (1 - ROOM * apart) + 1e-9) / 100)
    return Thresholds(agreement=agreement, kl=upward("kl", earlier.kl), error=upward("error_max", earlier.error))


def gained(records: Sequence[Record], judge: Judge, limits: Thresholds) -> list[Record]:
    """The damaged artifacts that the whole check misses and that these limits would find."""
    even = EVEN * judge.thresholds.kl
    return [one for one in split(records)[1] if crosses(one, limits, even) and not fails(one, judge)]


def proposed(records: Sequence[Record], judge: Judge, real: tuple[float, float] | None) -> Thresholds:
    """The thresholds by the rule above. `real`: agreement and kl that real models need, None where nothing is known."""
    earlier = judge.thresholds
    found = tight(records, earlier)
    if found is None or real is None or not gained(records, judge, found):
        return earlier
    agreement, kl = real
    return Thresholds(
        agreement=max(earlier.agreement, min(found.agreement, agreement)), kl=min(earlier.kl, max(found.kl, kl)), error=earlier.error
    )  # fmt: skip


REAL = {
    "onnx-int8-weight": (0.97, 0.005), "onnx-int4": (0.8, 0.2), "onnx-int4-fine": (0.85, 0.15), "pytorch-bnb-nf4": (0.8, 0.2),
    "pytorch-w4a16": (0.8, 0.2),
}  # fmt: skip
"""Variant → agreement and kl of small real models, from published measurements; docs/validation.md names them."""


def figures(records: Sequence[Record], declared: Mapping[str, Judge]) -> dict[str, Any]:
    """What `thresholds.py` writes, of records of any number of models."""
    left_out = [one for one in records if "left_out" in one]
    records = [one for one in records if "left_out" not in one]
    good, bad = split(records)
    earlier = earlier_of(declared)
    result: dict[str, Any] = {
        "models": len({one["model"] for one in records}),
        "parameters": sorted({one["parameters"] for one in records}),
        "good": len(good),
        "bad": len(bad),
        "detection_rate": share(fails(one, declared[one["variant"]]) for one in bad),
        "false_alarm_rate": share(fails(one, declared[one["variant"]]) for one in good),
        **_rates(records, earlier, declared),
    }
    for variant in EARLIER:
        own = [one for one in records if one["variant"] == variant]
        if own:
            result[variant] = _of_variant(own, variant, declared, earlier)
    result["damages"] = {
        kind: {"of": len(own), **_rates(own, earlier, declared)}
        for kind in sorted({one["kind"] for one in bad}) if (own := [one for one in bad if one["kind"] == kind])
    }  # fmt: skip
    result["of_models"] = {
        name: _of_model([one for one in records if one["model"] == name], earlier, declared)
        for name in sorted({one["model"] for one in records})
    }  # fmt: skip
    result["missed"] = [f"{one['model']}, {one['variant']}, {one['kind']}" for one in bad if not fails(one, declared[one["variant"]])]
    result["false_alarms"] = [f"{one['model']}, {one['variant']}, {one['live']}" for one in good if fails(one, declared[one["variant"]])]
    result["left_out"] = sorted({f"{one['model']}, {one['variant']}, {one['kind']}: {one['left_out']}" for one in left_out})
    return result


def earlier_of(declared: Mapping[str, Judge]) -> dict[str, Judge]:
    """Variant → what artifacts were judged by before this benchmark was there."""
    return {
        name: Judge(Thresholds(agreement=agreement, kl=kl, error=error), EARLIER_ITSELF.get(name, declared[name].itself))
        for name, (agreement, kl, error) in EARLIER.items() if name in declared
    }  # fmt: skip


def _rates(records: Sequence[Record], earlier: Mapping[str, Judge], declared: Mapping[str, Judge]) -> dict[str, float | None]:
    """Detection, and false alarms, by thresholds alone and by the whole check, with the earlier limits and the declared ones."""
    found: dict[str, float | None] = {}
    for told, part in zip(("false_alarms", "detection"), split(records), strict=True):
        for name, judges in (("earlier", earlier), ("declared", declared)):
            found[f"{told}_{name}"] = share(crosses(one, judges[one["variant"]].thresholds) for one in part)
            found[f"{told}_whole_{name}"] = share(fails(one, judges[one["variant"]]) for one in part)
    return {key: one for key, one in found.items() if one is not None}


def _of_model(records: Sequence[Record], earlier: Mapping[str, Judge], declared: Mapping[str, Judge]) -> dict[str, Any]:
    """Of one architecture in one size: rates, and by variant the largest figures of its good artifacts."""
    good, bad = split(records)
    largest = {
        variant: {
            figure: max(values)
            for figure in FIGURES if (values := [found for one in own if (found := value(one, figure)) is not None])
        }
        for variant in EARLIER if (own := [one for one in good if one["variant"] == variant])
    }  # fmt: skip
    told = {name: sorted({one[name] for one in records})[0] for name in ("parameters", "loss")}
    return {**told, "good": len(good), "bad": len(bad), **_rates(records, earlier, declared), "largest_good": largest}


def _of_variant(
    records: Sequence[Record], variant: str, declared: Mapping[str, Judge], earlier: Mapping[str, Judge]
) -> dict[str, Any]:  # fmt: skip
    good, bad = split(records)
    found: dict[str, Any] = {"good": len(good), "bad": len(bad), **_rates(records, earlier, declared)}
    for figure in FIGURES:
        found[figure] = {
            "good": spread(value(one, figure) for one in good),
            "parting": parting(records, figure),
            "by_damage": {
                kind: told for kind in sorted({one["kind"] for one in bad})
                if (told := spread(value(one, figure) for one in bad if one["kind"] == kind))
            },
        }  # fmt: skip
    found["fine_tuning"] = spread(value(one, "fine_tuning") for one in good)
    found["growth"] = spread(value(one, "growth") for one in good)
    judge, narrow = earlier[variant], tight(records, earlier[variant].thresholds)
    found["tight"] = narrow.model_dump() if narrow else None
    found["detection_tight"] = share(crosses(one, narrow) for one in bad) if narrow else None
    found["gained"] = len(gained(records, judge, narrow)) if narrow else 0
    found["proposed"] = proposed(records, judge, REAL.get(variant)).model_dump()
    return found
