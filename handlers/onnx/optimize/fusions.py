"""The fusions that onnxscript keeps for onnxruntime, in groups that can be kept or undone apart.

Used by the table of steps. They know the graphs that torch's exporter writes. Norms that end up in an operator which no standard and
no operator set names (`SimplifiedLayerNormalization` of the standard's own domain) are spelt out again: a graph must pass the checker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript import optimizer
from onnxscript.rewriter.ort_fusions import (
    attention,
    bias_gelu,
    cos_sin_cache,
    erfgelu,
    gelu,
    gqa,
    gqa_packed_qkv,
    mha,
    mha_bias,
    mha_scale,
    rms_normalization,
    rotary_embedding,
    sdpa,
    sdpa_via_mha,
    shape_optimization,
    skip_normalization,
)

from handlers.onnx.optimize import rules
from handlers.onnx.optimize.step import StepInput

FOLD = "fold"
"""The step that does what `ready` does, and nothing else."""


def ready(model: ir.Model) -> ir.Model:
    """Infer shapes and simplify what computes them, which the patterns rely on."""
    passes.ShapeInferencePass()(model)
    optimizer.optimize_ir(model)
    shape_optimization.rules.apply_to_model(model)
    optimizer.optimize_ir(model)
    return model


def _all(model: ir.Model, fusions: Sequence[Callable[..., Any]]) -> ir.Model:
    for fusion in fusions:
        fusion(model)
    optimizer.optimize_ir(model)
    return model


def fuse_norms(subject: StepInput) -> ir.Model:
    """RMS norms, and additions together with the norm that follows."""
    model = ready(subject.model)
    fused = _all(
        model,
        [
            rms_normalization.fuse_rms_normalization,
            skip_normalization.fuse_skip_layer_normalization,
            skip_normalization.fuse_skip_rms_normalization,
        ],
    )
    return spell_out(fused)


def fuse_gelu(subject: StepInput) -> ir.Model:
    """Every spelling of GELU, with the bias before it."""
    rules.GELU.apply_to_model(ready(subject.model))
    return _all(subject.model, [erfgelu.fuse_erfgelu, gelu.fuse_gelu, bias_gelu.fuse_bias_gelu])


def fuse_attention(subject: StepInput) -> ir.Model:
    """Scores, mask, softmax and sum of an attention; rotary embeddings on the way. Projections stay products of their own."""
    model = ready(subject.model)
    rotary = [rotary_embedding.fuse_rotary_embedding, cos_sin_cache.fuse_cos_sin_cache]
    for fusion in rotary:
        fusion(model)
    passes.CommonSubexpressionEliminationPass()(model)
    rotary_embedding.fuse_partial_rotary_embedding(model)
    sdpa.fuse_sdpa(model, apply_shape_inference=True)
    inner = [gqa.fuse_gqa, gqa_packed_qkv.fuse_qkv_gqa, mha.fuse_mha1, mha.fuse_mha2, mha_scale.fuse_mha_scale]
    return _all(model, [*inner, mha_bias.fuse_mha_bias, sdpa_via_mha.replace_sdpa_by_mha])


def pack_attention(subject: StepInput) -> ir.Model:
    """Put the projections of a fused self-attention into its operator, as one matrix."""
    model = ready(subject.model)
    if not attention.fuse_attention(model):
        return model
    # The matrices are joined now: left to the runtime, they would be joined at each start and held twice.
    optimizer.optimize_ir(
        model, input_size_limit=1 << 40, output_size_limit=1 << 40, should_fold=lambda node: node.op_type == "Concat" or None
    )
    return model


def spell_out(model: ir.Model) -> ir.Model:
    """Norms in standard operators, where they stand in one that only onnxruntime knows under the standard's name."""
    if rules.SPELL_OUT.apply_to_model(model):
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        passes.DeduplicateInitializersPass()(model)
    return model


def divide(subject: StepInput) -> ir.Model:
    """Divide where a graph multiplies by a reciprocal."""
    rules.DIVISION.apply_to_model(subject.model)
    return subject.model


def unflatten(subject: StepInput) -> ir.Model:
    """Products over rows that were flattened for them take the batch as it is: no shapes to compute around each."""
    changes = rules.UNFLATTEN.apply_to_model(subject.model)
    if not changes and FOLD in subject.idle:  # what follows has just been tried on this graph
        return subject.model
    return ready(subject.model)
