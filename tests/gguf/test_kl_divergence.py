"""llama.cpp's own `llama-perplexity --kl-divergence` finds the numbers that a check finds, on the same tokens of the same files.

Its file of the base holds log-probabilities in 16 bits, in steps of (largest - smallest logit, at most 16) / 65535. With e as half a step,
the base's log-probability of a token is off by up to e, its probability p by up to p(exp(e) - 1), and a divergence Σ p ln(p / q) by up to
e + (exp(e) - 1)(Σ p |ln(p / q)| + e). Tokens less likely than exp(-16) are left out of it. From that, and from the digits that are
printed, each tolerance below is computed.
"""

from __future__ import annotations

import math
import random
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from daemon.contract.jobs.figures import Percentiles, Statistics
from handlers.validate.arithmetic import distribution
from handlers.validate.arithmetic.comparison import Comparison
from tests import models
from tests.deliver.servers import llama_server
from tests.deliver.servers.gguf_files import base_file
from tests.onnx.conftest import train

pytestmark = pytest.mark.slow

WINDOW, WINDOWS = 64, 40
LEFT_OUT = 16.0
"""Nats below which llama.cpp leaves a token out, and below the largest logit beyond which it stores none."""
NOISE = 2e-5
"""Nats that two builds of llama.cpp may differ by in a log-probability: sums of fp32 in another order."""
NUMBER = r"(-?\d+\.\d+|-?nan|-?inf)"


@dataclass(frozen=True)
class Files:
    """A model without loss, the same in 4 bits, and what llama.cpp says of both."""

    whole: Path
    small: Path
    base: Path
    said: str


@pytest.fixture
def files(toolchain: Path, tmp_path_factory: pytest.TempPathFactory, libraries: None) -> Files:
    """Both files, and llama.cpp's table."""
    from handlers.gguf.llama import library

    program, folder = llama_server.program(tmp_path_factory, "llama-perplexity"), tmp_path_factory.mktemp("perplexity")
    made = Files(folder / "whole.gguf", folder / "small.gguf", folder / "base.kld", "")
    base_file(toolchain / "bin" / "python", train(folder / "model"), made.whole)
    library.quantize(made.whole, made.small, "Q4_0", 1, {})
    lines = [line for text in models.TEXTS for line in text.splitlines() if line] * 60
    random.Random(7).shuffle(lines)
    (folder / "text").write_text("\n".join(lines), encoding="utf-8")
    exact = ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", "1", "-c", WINDOW, "-b", WINDOW, "--chunks", WINDOWS]
    command = [program, *exact, "-f", folder / "text", "--kl-divergence-base", made.base]
    run(*command, "-m", made.whole)
    return Files(made.whole, made.small, made.base, run(*command, "-m", made.small, "--kl-divergence"))


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def windows(base: Path) -> np.ndarray:
    """The tokens that llama.cpp read, as its file of the base has them."""
    words = np.frombuffer(base.read_bytes()[8 : 20 + 4 * WINDOW * WINDOWS], np.int32)
    assert base.read_bytes()[:8] == b"_logits_" and words[0] == WINDOW and words[2] == WINDOWS
    return words[3:].reshape(WINDOWS, WINDOW)


def logits(path: Path, tokens: np.ndarray) -> np.ndarray:
    """What the model says in the second half of each window, where the next token is known: (windows, rows, vocabulary)."""
    from handlers.gguf.llama import library

    with library.Model(path) as model:
        context = library.Context(model, 256, 1, 1)
        rows = []
        for window in tokens.tolist():
            context.forget()
            rows.append(context.run([(token, place, 0) for place, token in enumerate(window)])[WINDOW // 2 : WINDOW - 1])
        context.close()
    return np.stack(rows)


@dataclass(frozen=True)
class Reach:
    """How far llama.cpp's numbers may be from ours."""

    loss: float
    """A negative log-likelihood under the base, in nats."""
    divergences: np.ndarray
    """The divergence of each position, in nats."""
    ties: int
    """Positions at which the base's two most likely tokens may change places."""


def reach(whole: np.ndarray, small: np.ndarray) -> Reach:
    mine, theirs = (rows - np.log(np.exp(rows).sum(axis=1, keepdims=True)) for rows in (whole.astype(np.float64), small.astype(np.float64)))
    spans = np.minimum(whole.max(axis=1) - whole.min(axis=1), LEFT_OUT)
    half = spans / 65535 / 2 + NOISE
    terms = np.exp(mine) * np.abs(mine - theirs)
    rounded = half + np.expm1(half) * (terms.sum(axis=1) + half) + NOISE
    left_out = np.where(mine <= half[:, None] - LEFT_OUT, terms, 0.0).sum(axis=1)
    best = np.sort(whole, axis=1)[:, -2:]
    return Reach(float(half.max()), rounded + left_out, int((best[:, 1] - best[:, 0] <= 4 * half).sum()))


def said(text: str, title: str) -> list[float]:
    """The number, or the number and what stands behind its "±", in a line of llama.cpp's table."""
    (line,) = re.findall(rf"^\s*{re.escape(title)}\s*:\s*(.+)$", text, re.MULTILINE)
    return [float(number) for number in re.findall(NUMBER, line)]


def judged(text: str, kind: str, mine: Percentiles, scale: float, off: np.ndarray, digits: float) -> None:
    """Hold a table of percentiles to ours. `off`: how far each position's value may be off."""
    count, largest = len(off), float(off.max())
    mean, error = said(text, f"Mean    {kind}")
    assert mine.mean * scale == pytest.approx(mean, abs=float(off.mean()) * scale + digits)
    assert mine.standard_error is not None
    assert mine.standard_error * scale == pytest.approx(error, abs=largest / math.sqrt(count - 1) * scale + digits)
    # It finds the place of a percentile in fp32.
    place = count * 2.0**-22 * (mine.maximum - mine.minimum)
    for name, title in {
        "99.9": f"99.9%   {kind}", "99": f"99.0%   {kind}", "95": f"95.0%   {kind}", "90": f"90.0%   {kind}", "50": f"Median  {kind}",
        "10": f"10.0%   {kind}", "5": f"5.0%   {kind}", "1": f"1.0%   {kind}",
    }.items():  # fmt: skip
        value = mine.percentiles[name]
        assert value is not None and value * scale == pytest.approx(said(text, title)[0], abs=(largest + place) * scale + digits), name
    for value, title in ((mine.maximum, f"Maximum {kind}"), (mine.minimum, f"Minimum {kind}")):
        assert value * scale == pytest.approx(said(text, title)[0], abs=largest * scale + digits), title


def ours(whole: Sequence[np.ndarray], small: Sequence[np.ndarray], tokens: np.ndarray) -> Statistics:
    """The figures, as a check computes them."""
    comparison, rows = Comparison(), []
    following = [list(enumerate(window[WINDOW // 2 + 1 :].tolist())) for window in tokens]
    for mine, theirs, next_tokens in zip(whole, small, following, strict=True):
        rows.append(comparison.add(mine, theirs, next_tokens).positions)
    return distribution.statistics(rows, following, comparison.figures(1.0).perplexity_ratio_interval)


def test_llama_cpps_own_statistics_are_those_of_a_check(files: Files, libraries: None) -> None:
    tokens, text = windows(files.base), files.said
    whole, small = logits(files.whole, tokens), logits(files.small, tokens)
    mine, off = ours(list(whole), list(small), tokens), reach(np.concatenate(list(whole)), np.concatenate(list(small)))
    count = len(off.divergences)
    assert count == WINDOWS * (WINDOW // 2 - 1) >= 1000 and mine.kld and mine.delta_p and mine.kld.mean > 20 * off.divergences.mean()

    judged(text, "KLD", mine.kld, 1.0, off.divergences, 6e-7)
    judged(text, "Δp", mine.delta_p, 100.0, np.full(count, math.expm1(off.loss + NOISE)), 6e-4)
    rms, rms_error = said(text, "RMS Δp")
    assert mine.delta_p_rms and mine.delta_p_rms_standard_error is not None
    change = math.expm1(off.loss + NOISE)
    assert mine.delta_p_rms * 100 == pytest.approx(rms, abs=change * 100 + 6e-4)
    largest = max(mine.delta_p.maximum, -mine.delta_p.minimum)
    spread = (
        3 * change * largest / math.sqrt(count - 1) / (2 * mine.delta_p_rms) + mine.delta_p_rms_standard_error * change / mine.delta_p_rms
    )
    assert mine.delta_p_rms_standard_error * 100 == pytest.approx(rms_error, abs=spread * 100 + 6e-4)

    ratio, ratio_error = said(text, "Mean ln(PPL(Q)/PPL(base))")
    assert mine.ln_ppl_ratio == pytest.approx(ratio, abs=off.loss + NOISE + 6e-7)
    assert mine.ln_ppl_ratio_standard_error == pytest.approx(ratio_error, abs=(off.loss + NOISE) / math.sqrt(count - 1) + 6e-7)
    (correlation,) = said(text, "Cor(ln(PPL(Q)), ln(PPL(base)))")
    _, base_error = said(text, "Mean PPL(base)")
    deviation = base_error / said(text, "Mean PPL(base)")[0] * math.sqrt(count - 1)
    assert mine.ppl_correlation is not None
    assert mine.ppl_correlation * 100 == pytest.approx(correlation, abs=200 * (off.loss + NOISE) / deviation + 6e-3)

    same, same_error = said(text, "Same top p")
    assert mine.same_top_p is not None and mine.same_top_p_standard_error is not None
    assert mine.same_top_p * 100 == pytest.approx(same, abs=100 * off.ties / count + 6e-4)
    assert mine.same_top_p_standard_error * 100 == pytest.approx(same_error, abs=100 * off.ties / count + 6e-4)
