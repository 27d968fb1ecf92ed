"""The stage `onnx-mixed`: the fp32 graphs with weights in 4, 8 or 32 bits, as small as a limit of divergence allows.

Run by `handlers/__main__.py` on the output of the onnx stage. The bits are chosen layer by layer (`handlers.onnx.mixed.search`), by what
each layer's precision costs on texts that the check does not use. What the layers of a run cost differs little between its checkpoints:
the measurements are kept, and the next checkpoint measures only the choices that follow from them. Free of torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Fallback, StageContext
from daemon.contract.values import digest_of
from handlers.child.progress import Reporter, StageOutput
from handlers.folder.playback import Tokens, UnknownInputError, tokenize
from handlers.graphs.graphset import Graph, GraphSet, read
from handlers.graphs.rewriting import Counts, Lookup, Product
from handlers.models.folder import ModelFolder
from handlers.onnx.mixed.search import BudgetMissed, Choice, Cost, search
from handlers.onnx.mixed.summary import listed, summarize
from handlers.onnx.mixed.trial import FULL, Trial
from handlers.onnx.mixed.weights import Group, Weight, find, grouped
from handlers.onnx.options import OnnxOptions
from handlers.onnx.quantize.accuracy_levels import EXACT
from handlers.onnx.quantize.cache import keep_in_int8
from handlers.onnx.quantize.derive import derive, sizes, unturned
from handlers.onnx.quantize.rewriters.block_quantization import Blocks, Scheme
from handlers.onnx.quantize.rewriters.weight_only_rewriter import WeightOnlyRewriter
from handlers.onnx.quantize.weight_only import choose_level
from handlers.texts.selection import calibration_texts

OPERATION = "choose the bits of each layer"
TEXTS, TOKENS = 6, 48
MARGIN = 0.6
"""Share of the check's limit that is aimed at: it compares other texts, and with the live model."""
FILE = "quantization.json"
"""Which weight has how many bits, beside the graphs."""


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Choose the bits, write the graphs, and say what was kept more exact.

    Permanent `nothing-to-quantize` where no graph has a weight to turn, `budget-missed` where no choice keeps to the limits, or only that
    of leaving all weights as they are.
    """
    folder, options = Path(context.inputs["onnx"]), context.work.options(OnnxOptions)
    source = read(folder)
    merged = Path(context.inputs["merge"]) if "merge" in context.inputs else None
    weights = find(folder, source, merged)
    if not weights:
        raise unturned(context, OPERATION)
    groups, limits = grouped(weights), _Limits(context, merged)
    tokens = tokens_of(context, folder)
    schemes = schemes_of(context)
    output = StageOutput()
    try:
        trial = Trial(folder, source, weights, tokens.rows, schemes, context.limits.threads)
    except UnknownInputError as error:
        raise Permanent(FaultCode.NO_CALIBRATION, OPERATION, str(error), "leave onnx-mixed out", path=folder) from error
    notes = _Notes(context, groups, schemes, tokens)
    choice = _chosen(
        trial, groups, limits, notes.known(), source.size(folder), lambda share: reporter.progress(0.7 * share, "measuring layers")
    )
    notes.keep(choice.sensitivity)
    if options.symmetric and options.algorithm == "rtn":
        choice, schemes = _without_zero_points(trial, groups, choice, limits, schemes)
    bits = {key: choice.bits[group.name] for group in groups for key in group.keys}
    made, counts = written(context, reporter, trial, weights, bits)
    level = options.accuracy_level
    if level < 0:
        reporter.progress(0.95, "measuring accuracy levels")
        choose_level(context, source, made, output, 4)
    else:
        output.figures["accuracy_level"] = level
    keep_in_int8(context, reporter, source, made, output)
    (Path(context.staging) / FILE).write_text(json.dumps(_described(choice, groups, schemes), indent=1) + "\n", encoding="utf-8")
    output.figures |= counts.figures | sizes(context, made) | _figures(choice, notes.taken)
    output.figures["texts"] = tokens.figures
    for more, names in choice.raised.items():
        if names:
            output.fallbacks.append(
                Fallback(wanted="4 bits in all layers", taken=f"{more} bits in {listed(names)}", reason=limits.statement)
            )
    return output


class _Limits:
    """What the choice must keep to."""

    def __init__(self, context: StageContext, merged: Path | None) -> None:
        target, limit = context.work.export.target, context.work.validation.thresholds.get("onnx-mixed")
        self.size = target.bytes_of(ModelFolder(merged).stored_bytes if merged else None)
        self.asked = f'export.target.size = "{target.size}"'
        if target.kl:
            self.divergence: float | None = target.kl
            self.statement = f"export.target.kl is {target.kl:g}"
        elif self.size is not None:
            self.divergence, self.statement = None, self.asked
        else:
            self.divergence = MARGIN * (limit.kl if limit else 0.05)
            self.statement = f"the divergence is to stay below {self.divergence:.3g} nats, {MARGIN:.0%} of the check's limit"


def _chosen(
    trial: Trial, groups: list[Group], limits: _Limits, known: Mapping[str, float] | None, source_bytes: int, look: Callable[[float], None]
) -> Choice:
    keys = {group.name: group.keys for group in groups}
    costs = [Cost(group.name, {bits: sum(trial.bytes(key, bits) for key in group.keys) for bits in (4, 8, FULL)}) for group in groups]
    rest = max(0, source_bytes - sum(cost.bytes[FULL] for cost in costs))
    try:
        choice = search(
            costs, lambda bits: trial.divergence({key: bits[name] for name in bits for key in keys[name]}),
            divergence=limits.divergence, size=None if limits.size is None else limits.size - rest, known=known, look=look,
        )  # fmt: skip
    except BudgetMissed as error:
        needed = error.needed + rest
        if error.best is None:
            cause = f"even with 4 bits in all layers the graphs take {needed} bytes, and {limits.asked} allows {limits.size}"
        else:
            cause = (
                f"within {limits.divergence:.3g} nats the graphs take {needed} bytes, and {limits.asked} allows {limits.size}; at that size"
                f" the divergence is {error.best.divergence:.3g} nats"
            )
        remedy = "raise export.target.size or export.target.kl"
        raise Permanent(FaultCode.BUDGET_MISSED, OPERATION, cause, remedy) from None
    if set(choice.bits.values()) == {FULL}:
        cause = f"{limits.statement}, and no layer can have fewer than 32 bits within that: the graphs would be those of onnx"
        raise Permanent(FaultCode.BUDGET_MISSED, OPERATION, cause, "raise export.target.kl, or deploy onnx")
    return choice


def _without_zero_points(
    trial: Trial, groups: list[Group], choice: Choice, limits: _Limits, schemes: dict[int, Scheme]
) -> tuple[Choice, dict[int, Scheme]]:
    """Where 4 bits are enough in all layers, the same without zero points if that is enough too: it is smaller, and is what onnx-int4 is.

    Leaves `trial` with the schemes that it gives.
    """
    if limits.divergence is None or set(choice.bits.values()) != {4}:
        return choice, schemes
    plain = {**schemes, 4: replace(schemes[4], symmetric=True)}
    bits = {key: 4 for group in groups for key in group.keys}
    trial.use(plain)
    divergence = trial.divergence(bits)
    if divergence > limits.divergence:
        trial.use(schemes)
        return choice, schemes
    size = sum(trial.bytes(key, 4) for key in bits)
    return replace(choice, divergence=divergence, lowest=divergence, size=size, trials=choice.trials + 1), plain


def schemes_of(context: StageContext) -> dict[int, Scheme]:
    """Bits → how weights are quantized to them."""
    options = context.work.options(OnnxOptions)
    return {
        4: Scheme(4, options.block_size, symmetric=False, algorithm=options.algorithm),
        8: Scheme(8, options.block_size, symmetric=False),
    }  # fmt: skip


def tokens_of(context: StageContext, folder: Path) -> Tokens:
    """Texts that the check does not use."""
    return tokenize(folder, calibration_texts(context, TEXTS, folder).plain, longest=TOKENS)


class _Rewriter(WeightOnlyRewriter):
    """Gives each weight its own bits."""

    def __init__(self, model: ir.Model, trial: Trial, bits: Mapping[str, tuple[str, int]], level: int) -> None:
        """`bits`: name of an initializer → (key of the weight, bits)."""
        super().__init__(model, trial.schemes[4], level)
        self._trial, self._bits = trial, bits

    def turns(self, product: Product) -> bool:
        return self._is_turned(product.weight)

    def looks_up(self, lookup: Lookup) -> bool:
        return self._is_turned(lookup.table)

    def _is_turned(self, weight: ir.Value) -> bool:
        return self._bits.get(str(weight.name), ("", FULL))[1] != FULL

    def scheme_of(self, weight: ir.Value) -> Scheme:
        return self._trial.schemes[self._bits[str(weight.name)][1]]

    def quantized(self, weight: ir.Value, array: np.ndarray, scheme: Scheme) -> Blocks:
        return self._trial.blocks(self._bits[str(weight.name)][0], scheme.bits)


def written(
    context: StageContext, reporter: Reporter, trial: Trial, weights: list[Weight], bits: Mapping[str, int]
) -> tuple[GraphSet, Counts]:  # fmt: skip
    """Write the graphs with each weight (by key) in so many bits into the staging folder, with the files beside them."""
    counts, asked = Counts(), context.work.options(OnnxOptions).accuracy_level

    def transform(graph: Graph, model: ir.Model) -> ir.Model:
        own = {use.name: (weight.key, bits[weight.key]) for weight in weights for use in weight.uses if use.file == graph.file}
        counts.add(_Rewriter(model, trial, own, EXACT if asked < 0 else asked).rewrite())
        return model

    made = derive(context, reporter, transform, dtype="int4", operation="write the graph with the chosen bits", doing="turning weights")
    return made, counts


def _figures(choice: Choice, reused: bool) -> dict[str, object]:
    raised = choice.raised
    return {
        "told": summarize(choice),
        "kl_on_calibration": choice.divergence,
        "kl_with_4_bits_everywhere": choice.lowest,
        "sensitivity": {name: float(f"{value:.4g}") for name, value in sorted(choice.sensitivity.items(), key=lambda pair: -pair[1])},
        "sensitivity_reused": reused,
        "bits": {str(bits): raised[bits] for bits in raised},
        "trials": choice.trials,
    }


def _described(choice: Choice, groups: list[Group], schemes: Mapping[int, Scheme]) -> dict[str, object]:
    """quantization.json."""
    return {
        "schemes": {
            str(bits): {"block_size": scheme.block_size, "symmetric": scheme.symmetric, "algorithm": scheme.algorithm}
            for bits, scheme in schemes.items()
        },
        "divergence_nats": choice.divergence,
        "layers": [{"name": group.name, "bits": choice.bits[group.name], "weights": list(group.keys)} for group in groups],
    }


class _Notes:
    """What the layers of a run cost, kept for its next checkpoint."""

    def __init__(self, context: StageContext, groups: list[Group], schemes: Mapping[int, Scheme], tokens: Tokens) -> None:
        seen = context.checkpoint
        key = digest_of([
            seen.root, seen.run, context.base, [[group.name, list(group.keys)] for group in groups],
            [[bits, scheme.block_size, scheme.algorithm] for bits, scheme in schemes.items()], tokens.rows,
        ])  # fmt: skip
        self._path = Path(context.cache) / "sensitivities" / f"{key}.json"
        self.taken = False

    def known(self) -> dict[str, float] | None:
        """Group → divergence, of an earlier checkpoint; None where there is none that can be read."""
        try:
            stored = json.loads(self._path.read_bytes())
            known = {str(name): float(value) for name, value in stored.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return None
        self.taken = True
        return known

    def keep(self, sensitivity: Mapping[str, float]) -> None:
        """Keep what was measured."""
        if sensitivity and not self.taken:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, json.dumps(dict(sensitivity)).encode())
