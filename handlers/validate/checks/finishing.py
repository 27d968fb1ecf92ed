"""What is asked of a model last, once it was examined: the answers that people see, its scores, what its process took.

Called by the stages `merged` and `check-VARIANT` while a worker holds the model.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from handlers.child.progress import StageOutput
from handlers.validate.checks import answers, scoring
from handlers.validate.checks.examination import Examination, logits_file
from handlers.validate.checks.live.reference import Reference
from handlers.validate.engines.registry import as_taken
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import AskStats


def finish(
    worker: EngineWorker, engine: str, reference: Reference, outputs: Path, result: Examination, output: StageOutput, *, exact: bool
) -> None:
    """Add these figures to `result`, and the fallback of an engine that does not hold its model whole to `output`. `outputs`: the folder
    with the model's logits. Raises WorkerFailed."""
    answered = answers.given(worker, reference.samples, exact=exact)
    stats = worker.ask(AskStats())
    rows_of, went_on = partial(logits_file, outputs), [prompt.tokens for prompt in result.prompts]
    scores, marked = scoring.score(reference, answered, rows_of), scoring.completion(reference, rows_of)
    figures = scoring.put_into(answers.put_into(result.figures, went_on, reference, answered), scores, marked)
    result.figures = figures.plus(load_seconds=stats.load_seconds, peak_rss_bytes=stats.peak_rss_bytes)
    if (taken := as_taken(engine)) is not None:
        output.fallbacks.append(taken)
        result.figures = result.figures.plus(way=taken.taken)
