"""transformers' table of how the weights of each kind of model are renamed, made here instead of by each process that loads a first model.

Imported by the process from which attempts are forked. Where a version has no such table, nothing is done.
"""

from __future__ import annotations

import contextlib
import importlib

with contextlib.suppress(ImportError, AttributeError, TypeError):
    importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("")
