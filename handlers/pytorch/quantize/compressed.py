"""The stages `pytorch-w8a8` and `pytorch-w4a16`: the linear layers as compressed-tensors stores them, for vLLM and transformers.

Run by `handlers.__main__` after the merge. w8a8: int8 weights with a scale a row; servers quantize the activations token by token as they
run. w4a16: 4-bit weights in groups, with the errors of rounding corrected where the model can be walked through layer by layer. One matrix,
or one decoder layer with the activations of the calibration texts, is in memory at a time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.merge.plan.output_layout import Output
from handlers.models.folder import ModelFolder
from handlers.pytorch.options import PytorchOptions
from handlers.pytorch.quantize import calibration, rounding
from handlers.pytorch.quantize.bnb import finished
from handlers.pytorch.quantize.linears import Linear, Linears, find, split_while_loading, unfit_without_weight, working_dtype
from handlers.pytorch.quantize.source import Merged, limit
from handlers.pytorch.quantize.walk import UnknownModelError, Walk
from handlers.pytorch.quantize.writing import WeightFiles, declared

W8A8, W4A16 = "pytorch-w8a8", "pytorch-w4a16"
EIGHT = 16
"""What the kernels for int8 ask both sides of a matrix to be divisible by."""
SHRINKING = 1.0
"""Tokens for each input of a layer at which what the texts say of its inputs, and that they are unrelated, count alike."""

_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass
class _Job:
    """One run of a stage."""

    context: StageContext
    reporter: Reporter
    variant: str
    merged: Merged
    linears: Linears
    layers: dict[str, Linear]
    """Weight's name → layer, of those that this form takes."""
    groups: dict[str, int]
    """Weight's name → size of its groups; empty for w8a8."""
    unfit: dict[str, str]
    """Module → class of its tower, of which transformers can't load this form."""
    done: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)

    @property
    def model(self) -> ModelFolder:
        """The merged model."""
        return self.merged.model


def w8a8(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `pytorch-w8a8`."""
    job = _job(context, reporter, W8A8)
    with WeightFiles(Path(context.staging), _tensors(job, _declare_int8), limit(context)) as files:
        _write_rest(job, files, _put_int8)
    weights = _numbers(8, strategy="channel")
    activations = {**_numbers(8, strategy="token"), "dynamic": True, "observer": None}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return _finished(job, files.size, {"group_0": scheme}, "int-quantized")


def w4a16(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `pytorch-w4a16`; a model that can't be walked through is rounded to nearest, which is told as a fallback."""
    job, fallbacks, figures = _job(context, reporter, W4A16), list[Fallback](), dict[str, Any]()
    with WeightFiles(Path(context.staging), _tensors(job, _declare_int4), limit(context)) as files:
        if context.work.options(PytorchOptions).error_correction:
            fallbacks, figures = _correct(job, files)
        _write_rest(job, files, _put_nearest)
    sizes = Counter(job.groups.values())
    common = sizes.most_common(1)[0][0]
    schemes = {}
    for number, size in enumerate(sorted(sizes, reverse=True)):
        names = (
            ["Linear"]
            if size == common
            else sorted(job.layers[name].module for name, group_size in job.groups.items() if group_size == size)
        )
        weights = {**_numbers(4, strategy="group"), "group_size": size}
        schemes[f"group_{number}"] = {"targets": names, "weights": weights, "input_activations": None, "output_activations": None}
    output = _finished(job, files.size, schemes, "pack-quantized")
    output.figures = {**output.figures, "group_sizes": {str(size): count for size, count in sorted(sizes.items())}, **figures}
    output.fallbacks += fallbacks
    return output


def _job(context: StageContext, reporter: Reporter, variant: str) -> _Job:
    """Permanent where no layer can be quantized in this form."""
    model = ModelFolder(Path(context.inputs["merge"]))
    reporter.progress(0.02, "finding the linear layers")
    linears = find(model, variant)
    quantized, most = linears.quantized, context.work.options(PytorchOptions).group_size
    groups, unfit = dict[str, int](), dict[str, str]()
    if variant == W4A16:
        sizes = {name: rounding.group_size_for(linear.inputs, most) for name, linear in quantized.items() if not linear.transposed}
        groups = {name: size for name, size in sizes.items() if size is not None}
        unfit = unfit_without_weight(linears.built, [quantized[name].module for name in groups])
        groups = {name: size for name, size in groups.items() if quantized[name].module not in unfit}
        layers = {name: quantized[name] for name in groups}
    else:
        fitting = (name for name, linear in quantized.items() if not (linear.transposed or linear.inputs % EIGHT or linear.outputs % EIGHT))
        layers = {name: quantized[name] for name in fitting}
    cause = ""
    if apart := next((name for name in model.headers if _EXPERT.search(name)), None):
        cause = f"transformers can't load compressed-tensors' layers beside experts that are stored one by one, such as {apart}"
    elif getattr(linears.built.config, "is_encoder_decoder", False):
        # generate() begins with the encoder alone, and the weights are unpacked when the whole model is first called.
        cause = "transformers can't generate with an encoder-decoder in compressed-tensors' layers: it does not unpack the encoder's"
    elif split := split_while_loading(linears.built):
        cause = f"transformers can't load compressed-tensors' layers of a model whose tensors it splits as it loads them, such as {split}"
    elif not layers and any(linear.transposed for linear in quantized.values()):
        cause = "its linear layers are Conv1D, which compressed-tensors does not know"
    elif not layers:
        cause = f"no linear layer has sizes that can be divided by {min(rounding.GROUPS) if variant == W4A16 else EIGHT}"
    if cause:
        remedy = f"use pytorch-bnb-int8 or pytorch-bnb-nf4, and leave {variant} out"
        raise Permanent(FaultCode.FORM_NOT_POSSIBLE, f"quantize the model to {variant}", cause, remedy, path=model.path)
    return _Job(context, reporter, variant, Merged(model, working_dtype(model), variant), linears, layers, groups, unfit)


def _tensors(job: _Job, declare: Callable[[_Job, Linear], list[Output]]) -> list[Output]:
    """All tensors of the output, in the merged model's order."""
    tensors: list[Output] = []
    for name in job.model.headers:
        tensors += declare(job, job.layers[name]) if name in job.layers else [job.merged.declare(name)]
    return tensors


def _write_rest(job: _Job, files: WeightFiles, put: Callable[[_Job, Linear, WeightFiles], None]) -> None:
    """Write all tensors that are not written yet."""
    moved = 0
    for name, info in job.model.headers.items():
        job.reporter.progress(0.6 + 0.3 * moved / job.model.stored_bytes, f"writing {name}")
        if name not in job.layers:
            job.merged.copy(name, files)
        elif name not in job.done:
            put(job, job.layers[name], files)
        moved += info.size


def _declare_int8(job: _Job, layer: Linear) -> list[Output]:
    return [
        declared(layer.tensor, torch.int8, (layer.outputs, layer.inputs)),
        declared(f"{layer.tensor}_scale", job.merged.dtype, (layer.outputs, 1)),
    ]


def _put_int8(job: _Job, layer: Linear, files: WeightFiles) -> None:
    values, scales = rounding.int8_rows(job.merged.whole(layer.tensor), job.merged.dtype)
    files.put(layer.tensor, values)
    files.put(f"{layer.tensor}_scale", scales)


def _declare_int4(job: _Job, layer: Linear) -> list[Output]:
    return [
        declared(f"{layer.tensor}_packed", torch.int32, (layer.outputs, layer.inputs // 8)),
        declared(f"{layer.tensor}_scale", job.merged.dtype, (layer.outputs, layer.inputs // job.groups[layer.tensor])),
        declared(f"{layer.tensor}_shape", torch.int64, (2,)),
    ]


def _put_int4(layer: Linear, files: WeightFiles, values: torch.Tensor, scales: torch.Tensor) -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    files.put(f"{layer.tensor}_packed", pack_to_int32(values, 4))
    files.put(f"{layer.tensor}_scale", scales)
    files.put(f"{layer.tensor}_shape", torch.tensor([layer.outputs, layer.inputs]))


def _put_nearest(job: _Job, layer: Linear, files: WeightFiles) -> None:
    weight, group = job.merged.whole(layer.tensor), job.groups[layer.tensor]
    scales = rounding.int4_scales(weight, group, job.merged.dtype)
    _put_int4(layer, files, rounding.int4_nearest(weight, scales, group), scales)


def _correct(job: _Job, files: WeightFiles) -> tuple[list[Fallback], dict[str, Any]]:
    """Walk through the model and write each layer with its errors corrected; what could not be is left, and told."""
    options = job.context.work.options(PytorchOptions)
    rows = calibration.token_rows(job.context, options.calibration_samples)
    figures: dict[str, Any] = {"calibration_texts": len(rows), "calibration_tokens": sum(map(len, rows))}
    failed: list[str] = []

    def quantize(layer: Linear, weight: torch.Tensor, hessian: torch.Tensor, tokens: int) -> torch.Tensor:
        if layer.tensor not in job.layers:
            return weight
        group = job.groups[layer.tensor]
        scales = rounding.int4_scales(weight, group, job.merged.dtype, hessian.diagonal())
        values = rounding.int4_corrected(weight, scales, group, shrunk(hessian, tokens))
        if values is None:
            failed.append(layer.module)
            values = rounding.int4_nearest(weight, scales, group)
        _put_int4(layer, files, values, scales)
        job.done.add(layer.tensor)
        return (values.view(*scales.shape, group) * scales.float()[..., None]).view(weight.shape)

    reason = ""
    if not rows:
        reason = "no text is left that nothing is compared on, or there is no tokenizer; validate.data can name the data of the training"
    else:
        try:
            Walk(job.model, job.linears).run(
                rows, quantize, lambda done, of: job.reporter.progress(0.05 + 0.55 * done / of, f"layer {done} of {of}")
            )
        except UnknownModelError as error:
            reason = str(error)
    figures["corrected_layers"] = len(job.done) - len(failed)
    left = len(job.layers) - figures["corrected_layers"]
    if failed and not reason:
        reason = f"what the calibration texts give to {failed[0]} can't be used for it"
    if figures["corrected_layers"] and figures["calibration_tokens"] < calibration.FEW:
        job.warnings.append(
            f"the error correction was calibrated with only {figures['calibration_tokens']} tokens; validate.data can name the data of"
            " the training"
        )
    if not left:
        return [], figures
    taken = f"rounding to nearest in {left} of {len(job.layers)} layers"
    return [Fallback(wanted="rounding with its errors corrected (GPTQ)", taken=taken, reason=reason)], figures


def shrunk(hessian: torch.Tensor, tokens: int) -> torch.Tensor:
    """What few texts say of a layer's inputs, brought nearer to inputs that are unrelated the fewer tokens there were."""
    share = tokens / (tokens + SHRINKING * len(hessian))
    result = hessian * share
    result.diagonal().copy_(hessian.diagonal())
    return result


def _numbers(bits: int, *, strategy: str) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": False, "observer": "minmax"}


def _finished(job: _Job, size: int, schemes: dict[str, Any], layout: str) -> StageOutput:
    """The files beside the weights, figures and warnings."""
    job.reporter.progress(0.9, "copying tokenizer and chat template")
    for scheme in schemes.values():
        scheme["format"] = layout
    config = {
        "quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed", "config_groups": schemes,
        "ignore": _ignored(job), "kv_cache_scheme": None, "global_compression_ratio": None,
    }  # fmt: skip
    output = finished(job.context, job.merged, job.layers, size, config)
    output.warnings += job.warnings
    if job.unfit:
        towers = " and ".join(sorted(set(job.unfit.values())))
        output.warnings.append(f"{len(job.unfit)} linear layers stay in 16 bits, since transformers can't load packed layers of {towers}")
    left = (linear.module for name, linear in job.linears.quantized.items() if name not in job.layers)
    if kept := sorted(name for name in left if name not in job.unfit):
        output.warnings.append(
            f"{len(kept)} linear layers stay in 16 bits, since their sizes do not fit {job.variant}, for example {kept[0]}"
        )
    return output


def _ignored(job: _Job) -> list[str]:
    """What a reader must not take for quantized: linear layers by name; by pattern what is a matrix in the files and may be one in other
    programs, as routers and experts are."""
    taken = {layer.module for layer in job.layers.values()}
    linear = {layer.module for layer in job.linears.quantized.values()} - taken | set(job.linears.kept)
    embeddings = {name for name, part in job.linears.built.named_modules() if isinstance(part, torch.nn.Embedding)}
    patterns = set()
    for name, info in job.model.headers.items():
        module = name.removesuffix(".weight")
        if name not in job.layers and len(info.shape) == 2 and module not in linear | embeddings:
            patterns.add("re:" + re.sub(r"\d+", r"\\d+", re.escape(module).replace(r"\_", "_")) + "$")
    return [*sorted(linear), *sorted(patterns)]
