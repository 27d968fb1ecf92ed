"""Which accuracy level an onnxruntime-genai graph with 4-bit weights runs at: the fastest that leaves its answers as they are.

Called by `int4` where `[onnx] accuracy_level` is -1. The reference is the same graph at level 1, which computes in fp32 with the
dequantized weights: level 4 rounds activations to int8 as well, and has changed the most likely token of some models. On the CPU the
levels between are level 1, so only these two are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child.progress import StageOutput
from handlers.folder import genai_config
from handlers.folder.playback import GraphRun, run, tokenize
from handlers.graphs.graph_file import MODEL_FILE
from handlers.graphs.sessions import open_session
from handlers.onnx.quantize.accuracy_levels import EXACT, FAST, SLOWER, LevelChoice, LevelMeasurement, compare, measure, rounded_session
from handlers.texts.selection import calibration_texts

ERROR = 0.05
"""Root of the mean squared difference from level 1, in units of the logits' standard deviation, that the fast level may have. 4-bit
weights alone cost about 0.07 of a small trained model, so this adds a quarter to that at most; measured there: 0.005 to 0.009."""
NEAR_TIE = 0.1
"""Where the two largest logits are closer than that, in the same units, which one is larger says nothing."""
TEXTS, TOKENS, STEPS = 4, 48, 4
"""Texts, tokens of each, and how many of these are fed one at a time, as decoding does: those take other code in the runtime."""


def settle(context: StageContext, output: StageOutput) -> None:
    """Leave the graph of the staging folder at the level that is best, and say in `output` what was measured."""
    staging = Path(context.staging)
    exact, fast = staging / MODEL_FILE, staging / f"{MODEL_FILE}.level"
    try:
        rows = tokenize(staging, calibration_texts(context, TEXTS, staging).plain, longest=TOKENS).rows
    except Permanent as error:
        taken = f"level {EXACT}, fp32, unmeasured"
        output.fallbacks.append(Fallback(wanted="an accuracy level chosen by measurement", taken=taken, reason=error.fault.cause))
        output.figures["accuracy_level"] = EXACT
        return
    set_level(exact, FAST, fast)
    sessions = {level: open_session(path, context.limits.threads) for level, path in ((EXACT, exact), (FAST, fast))}
    width = genai_config.read(staging)["model"]["decoder"]["head_size"]
    calls = [call for row in rows for call in play(sessions[EXACT], row, width)]
    flips = count_flips(calls, sessions[FAST])
    trials = measure({level: partial(dict, model=session) for level, session in sessions.items()}, calls, rounds=3)
    sessions.clear()
    rounded = rounded_session(exact, context.limits.threads)
    by_rows, _ = compare(calls, [run(rounded, call.feeds) for call in calls])
    choice = choose(trials, flips, by_rows)
    if choice.level == FAST:
        fast.replace(exact)
    else:
        fast.unlink()
    output.figures |= choice.figures
    output.figures["accuracy_level_flips"] = flips


def choose(trials: dict[int, LevelMeasurement], flips: int, by_rows: float) -> LevelChoice:
    """The level to run at, from what was measured of both; `flips`: tokens that the fast one changes without a near-tie; `by_rows`: its
    difference where a processor rounds most coarsely."""
    exact, fast = trials[EXACT], trials[FAST]
    for error, where in ((fast.error, ""), (by_rows, " (the largest value, on ARM64)")):
        if not error <= ERROR:
            reason = (
                f"level {FAST} differs from the exact level by {error:.3g} standard deviations of the logits{where}, more than {ERROR:g}"
            )
            return LevelChoice(EXACT, reason, trials, by_rows)
    if flips:
        return LevelChoice(
            EXACT,
            f"level {FAST} changes the most likely token at {flips} places where the best two tokens are not almost equal",
            trials,
            by_rows,
        )
    if fast.milliseconds > SLOWER * exact.milliseconds:
        return LevelChoice(EXACT, f"level {FAST} is not faster here", trials, by_rows)
    reason = (
        f"it differs from level {EXACT} by {fast.error:.3g} standard deviations of the logits and changes no token that was"
        " clearly the most likely"
    )
    return LevelChoice(FAST, reason, trials, by_rows)


def count_flips(calls: Sequence[GraphRun], session: onnxruntime.InferenceSession) -> int:
    """Positions at which the session's most likely token is another than the calls', where theirs leads by more than a near-tie."""
    deviation = max(float(np.concatenate([call.outputs["logits"].ravel() for call in calls]).std()), 1e-9)
    flips = 0
    for call in calls:
        wanted, got = call.outputs["logits"], run(session, call.feeds)["logits"]
        second, first = np.moveaxis(np.partition(wanted, -2, axis=-1)[..., -2:], -1, 0)
        clear = first - second > NEAR_TIE * deviation
        flips += int((clear & (wanted.argmax(-1) != got.argmax(-1))).sum())
    return flips


def play(session: onnxruntime.InferenceSession, ids: Sequence[int], width: int) -> list[GraphRun]:
    """A text's calls: most tokens at once, the last ones singly on top of the cache. `width`: of a head, which the graph leaves open."""
    steps = min(STEPS, len(ids) - 1)
    pieces = [list(ids[: len(ids) - steps]), *([token] for token in ids[len(ids) - steps :])]
    past = {
        value.name: np.zeros((1, value.shape[1], 0, width), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past_key_values.")
    }
    calls, seen = [], 0
    for piece in pieces:
        seen += len(piece)
        feeds = {"input_ids": np.array([piece], np.int64), "attention_mask": np.ones((1, seen), np.int64), **past}
        outputs = run(session, feeds)
        calls.append(GraphRun("model", feeds, outputs))
        past = {name: outputs[name.replace("past_key_values.", "present.", 1)] for name in past}
    return calls


def set_level(graph: Path, level: int, target: Path) -> None:
    """Write a graph with all its products at an accuracy level; it shares the weights' file beside it."""
    proto = onnx.load(graph, load_external_data=False)
    for node in proto.graph.node:
        if node.op_type == "MatMulNBits":
            others = [attribute for attribute in node.attribute if attribute.name != "accuracy_level"]
            del node.attribute[:]
            node.attribute.extend([*others, onnx.helper.make_attribute("accuracy_level", level)])
    onnx.save_model(proto, target)
