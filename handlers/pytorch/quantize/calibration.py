"""The texts that the correction of errors measures with, as token ids: never those that artifacts are compared on.

Called by `compressed`.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.jobs.messages import StageContext
from handlers.models.files import copy_tokenizer, has_tokenizer
from handlers.texts.selection import calibration_texts

LONGEST = 512
"""Tokens of a text that are taken."""
MOST = 1 << 13
"""Tokens of all texts together: their activations are kept in memory."""
FEW = 500
"""Tokens below which it is worth a warning."""


def token_rows(context: StageContext, wanted: int) -> list[list[int]]:
    """Up to `wanted` texts as the job's tokenizer reads them; empty where there is none, or no text that nothing is compared on."""
    from transformers import AutoTokenizer

    folder = Path(context.temporary) / "tokenizer"
    folder.mkdir()
    copy_tokenizer(Path(context.pin), Path(context.base) if context.base else None, folder)
    if not has_tokenizer(folder):
        return []
    texts = calibration_texts(context, wanted, Path(context.inputs["merge"])).plain
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    rows, total = list[list[int]](), 0
    for text in texts:
        row = list(tokenizer(text)["input_ids"])[: min(LONGEST, MOST - total)]
        if len(row) > 1:
            rows.append(row)
            total += len(row)
    return rows
