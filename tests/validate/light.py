"""A stage as an attempt's entry, where its own process may import no heavy library; its workers may."""

from __future__ import annotations

import builtins
import os
import pkgutil
from typing import Any
from unittest import mock

from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.plan import spec_of
from handlers.child.progress import Reporter, StageOutput

HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "sentencepiece", "peft", "onnx", "onnx_ir", "onnxruntime", "onnxscript"}


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Run the stage's own entry. Where it is forked from a process that has libraries loaded, its imports alone say which it needs."""
    plain, stage = builtins.__import__, os.getpid()

    def checked(name: str, *given: Any, **named: Any) -> Any:
        level = named.get("level", given[3] if len(given) > 3 else 0)
        if os.getpid() == stage and level == 0 and name.partition(".")[0] in HEAVY:
            raise AssertionError(f"the process of the stage {context.stage} imports {name}")
        return plain(name, *given, **named)

    with mock.patch.object(builtins, "__import__", checked):
        result: StageOutput = pkgutil.resolve_name(spec_of(context.stage).entry)(context, reporter)
    return result
