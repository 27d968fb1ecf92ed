"""The stage `calibration`: the texts that quantized forms are calibrated with, for all of a job's stages that need some.

Called by `handlers/__main__.py`, where a variant of the plan needs it. It reads what the configuration names, without what artifacts are
compared on. Where that gives too few texts, the live model is asked to write some: its own words are nearer to its use than any built-in
text. If it can't be run, built-in texts are taken, and that is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.texts import selection
from handlers.texts.built_in import BUILT_IN, FURTHER
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.texts.rows import RowRefused, Turn
from handlers.validate.engines.registry import base_values, live_spec
from handlers.validate.engines.task_profile import subject_of
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Continue, Decode, Encode, Rebase

MOST = 512
"""Texts that the stage leaves: each stage that calibrates takes as many of them as its option says."""
SAMPLED = 12
"""Texts that the live model writes at most; in eager mode a model of 600 M parameters takes a minute or two for them."""
TOKENS = 40
"""Tokens of each."""
START_WORDS = 3
"""Words of a built-in text after which it goes on."""


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Choose the texts and leave them in the staging folder. Raises Permanent where what the configuration names can't be read."""
    rendering = Rendering.of(ModelFiles.of_job(context))
    output = StageOutput()

    def ask(count: int) -> Sequence[str]:
        if rendering.kind != "causal":
            return ()
        try:
            return _sampled(context, reporter, rendering, min(count, SAMPLED))
        except WorkerFailed as error:
            reporter.checkpoint()  # a stage that is told to stop loses its worker too
            output.fallbacks.append(Fallback(wanted=selection.SAMPLED_SOURCE, taken=selection.BUILT_IN_SOURCE, reason=error.cause))
            output.reusable = False
            return ()

    texts = selection.choose_calibration(context.work.validation, rendering, MOST, ask)
    selection.write(Path(context.staging), texts)
    output.figures |= {"texts": len(texts.texts), "sources": dict(texts.sources), "digest": texts.digest}
    output.warnings += texts.warnings
    return output


def _sampled(context: StageContext, reporter: Reporter, rendering: Rendering, count: int) -> list[str]:
    """Give texts that the live model writes after the first words of built-in ones; a fixed seed each. Raises WorkerFailed."""
    subject = subject_of(Path(context.inputs["merge"]))
    spec = live_spec(context, "torch" if context.base is None else "live", subject)
    texts = []
    with EngineWorker("live", spec, Path(context.temporary), context.limits) as live:
        room = live.load().context_length
        if (values := base_values(context)) != "original":
            live.ask(Rebase(values=values))
        for number, start in enumerate(starts(rendering, count)):
            reporter.progress(number / count, f"the live model writes calibration text {number + 1} of {count}")
            ids = live.ask(Encode(texts=[start])).ids[0]
            tokens = TOKENS if room is None else min(TOKENS, room - len(ids))
            if ids and tokens > 0:
                (written,) = live.ask(Continue(prompts=[ids], tokens=tokens, seed=number)).tokens
                texts.append(start + live.ask(Decode(ids=written)).text)
    return texts


def starts(rendering: Rendering, count: int) -> list[str]:
    """Give beginnings of texts; of a chat model's, every second one is a question through its template."""
    beginnings = []
    for number, text in enumerate([*FURTHER, *BUILT_IN][:count]):
        words = " ".join(text.split(" ")[:START_WORDS])
        if rendering.template is not None and number % 2 == 0:
            try:
                asked = rendering.template.render([Turn("user", text)], answer=True)
                words = asked.removeprefix(rendering.begins) if rendering.begins else asked
            except RowRefused:
                pass
        beginnings.append(words)
    return beginnings
