"""What lies beside the graphs or programs of a folder, so that it can be used without the checkpoint: configuration and tokenizer.

Called by the stages that write such a folder, once its graphs or programs are there.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.jobs.messages import StageContext
from handlers.folder import tokenizer_files
from handlers.models import sentence
from handlers.models.folder import ModelFolder, copy_config
from handlers.models.releases.older_readers import make_readable


def place(context: StageContext, source: Path, folder: Path) -> tokenizer_files.Completed:
    """Put configuration and tokenizer of the model `source`, and its modules of sentence-transformers, into `folder`."""
    copy_config(ModelFolder(source), folder)
    sentence.place(source, folder)
    tokenizer = tokenizer_files.place(Path(context.pin), Path(context.base) if context.base else None, folder)
    make_readable(folder)
    return tokenizer
