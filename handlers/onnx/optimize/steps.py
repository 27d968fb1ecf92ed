"""The table of steps, in the order in which they are tried: patterns first, since what tidies a graph can hide them.

Read by `run`. A step only makes a graph; `run` decides whether it is kept. `basic` uses the standard's operators alone, `extended`
brings in onnxruntime's own but leaves every product with a weight a product, so that other stages still find it; `all` has no such limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime

from handlers.graphs.attention.fusing import fuse
from handlers.graphs.attention.reading import OtherFormError
from handlers.graphs.attention.standard import unite
from handlers.onnx.optimize.fusions import FOLD, divide, fuse_attention, fuse_gelu, fuse_norms, pack_attention, ready, spell_out, unflatten
from handlers.onnx.optimize.step import NotForThisError, Step, StepInput
from handlers.onnx.optimize.weightless import hide

_TRANSFORMERS_TYPES = {
    **dict.fromkeys(("bert", "roberta", "distilbert", "electra", "albert", "xlm-roberta", "camembert", "gpt2", "gpt_neox"), "bert"),
    **dict.fromkeys(("bart", "marian", "mbart", "m2m_100"), "bart"),
    **dict.fromkeys(("t5", "mt5"), "t5"),
    **dict.fromkeys(("qwen2", "qwen3", "llama", "mistral"), "qwen3"),
}
"""config.json's model_type → which of onnxruntime's own optimizers reads its graphs. Its gpt2 and phi break on those that torch writes."""
_HIDING = ("MatmulTransposeFusion", "GemmActivationFusion", "MatMulActivationFusion")
"""onnxruntime's optimizers that put a product with a weight into an operator where nobody finds it."""


def fold(subject: StepInput) -> ir.Model:
    """Compute what is constant, drop what nobody reads, compute once what is computed twice; simplify what computes shapes."""
    return ready(subject.model)


def slim(subject: StepInput) -> ir.Model:
    """onnxslim: folds constants and shapes, removes nodes that do nothing, merges neighbours."""
    onnxslim: Any = import_module("onnxslim")
    hidden = hide(subject.model)
    return hidden.restore(onnxslim.slim(hidden.proto))


def fuse_by_type(subject: StepInput) -> ir.Model:
    """onnxruntime's own optimizer of transformers, as far as it knows the model's type; attention is left as it is."""
    name = str(subject.config.get("model_type", ""))
    if name not in _TRANSFORMERS_TYPES:
        raise NotForThisError(f"onnxruntime.transformers has nothing for the model type {name or '(none)'}")
    module, options = (import_module(f"onnxruntime.transformers.{part}") for part in ("optimizer", "fusion_options"))
    wishes = options.FusionOptions(_TRANSFORMERS_TYPES[name])
    wishes.enable_attention = wishes.enable_embed_layer_norm = wishes.enable_rotary_embeddings = False
    hidden = hide(subject.model)
    heads, width = (int(subject.config.get(key) or 0) for key in ("num_attention_heads", "hidden_size"))
    made = module.optimize_by_fusion(hidden.proto, _TRANSFORMERS_TYPES[name], heads, width, wishes)
    return spell_out(hidden.restore(made.model))


def optimize_offline(subject: StepInput, without: Sequence[str] = _HIDING) -> ir.Model:
    """What onnxruntime does to a graph whenever it loads it, as far as it does not depend on the machine, done once and saved.

    `without`: the optimizers of onnxruntime that are left out.
    """
    hidden = hide(subject.model)
    source, target = subject.scratch / "before.onnx", subject.scratch / "after.onnx"
    onnx.save_model(hidden.proto, source)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    options.intra_op_num_threads = subject.threads
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(without))
    return spell_out(hidden.restore(onnx.load(target)))


def optimize_offline_beside_attention(subject: StepInput) -> ir.Model:
    """The same, with the products of attention left as they are: they are put into one operator later."""
    return optimize_offline(subject, (*_HIDING, "MatMulScaleFusion"))


def cached_attention(subject: StepInput) -> ir.Model:
    """Put each attention over a cache into one operator, whose cache need not be copied from token to token."""
    return _changed(subject, fuse)


def standard_attention(subject: StepInput) -> ir.Model:
    """Put each attention over a cache into the standard's operator, where the opset has it."""
    return _changed(subject, unite)


def _changed(subject: StepInput, change: Callable[[ir.Model], ir.Model]) -> ir.Model:
    try:
        return change(subject.model)
    except OtherFormError as error:
        raise NotForThisError(str(error)) from error


ANY_ATTENTION = Step("fuse-attention", "extended", fuse_attention)
STANDARD_ATTENTION = Step("standard-attention", "basic", standard_attention)
CACHED_ATTENTION = Step("cached-attention", "extended", cached_attention, buffers=True)
OFFLINE = Step("optimize-offline", "all", optimize_offline)
STEPS: tuple[Step, ...] = (
    Step(FOLD, "basic", fold),
    Step("unflatten", "basic", unflatten),
    STANDARD_ATTENTION,
    CACHED_ATTENTION,
    Step("fuse-norms", "extended", fuse_norms),
    Step("fuse-gelu", "extended", fuse_gelu),
    ANY_ATTENTION,
    Step("fuse-by-type", "extended", fuse_by_type),
    Step("pack-attention", "all", pack_attention),
    Step("divide", "basic", divide),
    Step("slim", "basic", slim),
    OFFLINE,
)
KEEPING_ATTENTION = {ANY_ATTENTION.name: None, OFFLINE.name: Step(OFFLINE.name, OFFLINE.level, optimize_offline_beside_attention)}
"""Where attention is put into one operator after all steps: name of a step that would hide it → the step in its place; None for none."""
