"""Checks of an artifact outside of our engines: the example that it brings, and another program where one is installed.

Called by an artifact's check once the artifact's own worker has ended, so that the model lies in memory once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from daemon.contract.formats.declaration import Variant
from daemon.contract.jobs.figures import ForeignFigures
from daemon.contract.jobs.messages import StageContext
from handlers.validate.checks.examination import Examination
from handlers.validate.checks.live.reference import Reference
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.files import expected
from handlers.validate.outside import chat, example, optimum_reader
from handlers.validate.outside.optimum_reader import OwnAnswer


def example_fault(
    context: StageContext, variant: Variant, spec: EngineSpec, reference: Reference, examination: Examination, rows: np.ndarray | None
) -> str | None:  # fmt: skip
    """Say why the folder's example does not work on the first prompt; None when it does, or where it can't be asked.

    `rows`: what the artifact gave for that prompt, for an encoder.
    """
    first = reference.samples[0]
    if not reference.readable or len(first.ids) != len(first.encoded):
        return None
    if rows is not None:
        wanted = example.Wanted(reference.subject, first, rows, variant.limits.cache * reference.logit_std)
        check = example.check_encoder if reference.subject.reads_text else example.check_media
        return check(Path(spec.folder), wanted, spec.threads, Path(context.temporary))
    said = expected.read(reference.files)
    ends = expected.ends(said) if said else None
    fault = example.check(Path(spec.folder), first.text, examination.prompts[0].tokens or [], spec.threads, ends)
    return fault or chat.fault(Path(spec.folder), said)


def other_program(
    context: StageContext, variant: Variant, reference: Reference, own: OwnAnswer, safe_point: Callable[[], None]
) -> ForeignFigures | None:
    """Compare another program's outputs for the first prompt with `own`, our engine's; no verdict depends on it. None if none was run."""
    if variant.limits.engine != "onnx" or own.subject.sentence or not own.subject.reads_text:  # it is given token ids
        return None
    return optimum_reader.compare(context, own, variant.limits.cache * reference.logit_std, safe_point=safe_point)
