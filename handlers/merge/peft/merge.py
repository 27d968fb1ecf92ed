"""The merge by PEFT itself, for everything that streaming does not support: the whole model is loaded.

Called by `handlers.merge.api`. It adds what PEFT does not do: every adapter key must have been loaded, a tied head is untied where the live
adapter changes head and embedding differently, the vocabulary is resized before loading, and config.json gets exactly the keys that the
merge changed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.configs import shown
from daemon.contract.models.safetensors import DTYPES
from handlers.child import foreign
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.keys import doubles, parse, without_wrappers
from handlers.merge.adapters.name_mapping import OPERATION, nothing_matches
from handlers.merge.adapters.patterns import bound
from handlers.merge.peft.ties import separate, tied_modules, untie
from handlers.merge.plan.fused_experts import square_of_older
from handlers.merge.weights.model_structure import model_class
from handlers.models.files import Edits
from handlers.models.folder import ModelFolder

PREFIX = "base_model.model."
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "shared.weight", "lm_head.weight")
SHARD = "5GB"


@dataclass
class PeftMerge:
    """What the merge did besides writing weights."""

    edits: Edits = field(default_factory=dict)
    """Keys of config.json that have to change; None removes one."""
    warnings: list[str] = field(default_factory=list)


def _check_memory(base: ModelFolder) -> None:
    """Raise Retryable when the box has less memory available than loading and merging takes."""
    import psutil

    # The weights once (of a quantized base four times), plus the libraries.
    wanted = int(base.file_bytes * (4.4 if base.setting("quantization_config") else 1.15)) + (700 << 20)
    free = psutil.virtual_memory().available
    if free < wanted:
        raise Retryable.after(
            300,
            FaultCode.NOT_ENOUGH_MEMORY,
            OPERATION,
            f"this adapter needs the whole model in memory, about {wanted / 1e9:.1f} GB, and {free / 1e9:.1f} GB are available",
            "wait for memory, or merge on a larger machine; a plain LoRA on linear layers needs far less",
            path=base.path,
        )


def _stored_dtype(base: ModelFolder, done: PeftMerge) -> Any:
    """Return the dtype to load with: that of most of the base's bytes, or "auto" where headers don't say it."""
    import torch

    if base.pickled:
        return "auto"
    floats = {DTYPES[info.dtype][0] for info in base.headers.values() if info.dtype in ("F64", "F32", "F16", "BF16")}
    name = base.main_dtype
    if name not in floats:
        return "auto"
    if len(floats) > 1:
        done.warnings.append(f"the base mixes {', '.join(sorted(floats))}; all weights are written as {name}")
    return getattr(torch, name)


def _load_base(base: ModelFolder, done: PeftMerge) -> Any:
    cls = model_class(base)
    quantized = base.setting("quantization_config")
    code, remedy = FaultCode.BASE_NOT_LOADABLE, "check that the base loads with transformers"
    with foreign.reading("load the base model", base.path, reader="transformers", code=code, remedy=remedy):
        model = cls.from_pretrained(base.path, dtype="auto" if quantized else _stored_dtype(base, done), local_files_only=True)
        if quantized:
            model = model.dequantize()
            done.edits["quantization_config"] = None
            name = str(next(iter(model.parameters())).dtype).removeprefix("torch.")
            done.edits["dtype" if "dtype" in base.config else "torch_dtype"] = name
            done.warnings.append(f"the base is stored quantized; its weights were dequantized to {name} before the merge")
    return model.eval()


def _resize(model: Any, adapter: Adapter, done: PeftMerge, fill_rows: bool) -> None:
    """Give the base as many embedding rows as the adapter saved, when training added tokens.

    Rows that no file holds get the mean of the base's rows, as transformers does by default but without its noise; Permanent where
    `fill_rows` does not allow it.
    """
    embeddings = getattr(model.get_input_embeddings(), "weight", None)
    if embeddings is None:  # a model that reads no tokens
        return
    full = {without_wrappers(key): shape for key, shape in adapter.shapes.items() if len(shape) == 2}
    rows = {shape[0] for key, shape in full.items() if key.endswith(EMBEDDINGS)}
    have = embeddings.shape[0]
    if len(rows) == 1 and rows != {have}:
        wanted = rows.pop()
        before = {name: len(parameter) for name, parameter in model.named_parameters(remove_duplicate=False) if parameter.ndim}
        model.resize_token_embeddings(wanted, mean_resizing=False)
        done.edits["vocab_size"] = wanted
        parameters, keys = dict(model.named_parameters(remove_duplicate=False)), parse(adapter.shapes)
        saved = {id(parameters[name]) for name in {*keys.saved, *keys.base} if name in parameters}
        lost = [
            name
            for name, parameter in parameters.items()
            if parameter.ndim and len(parameter) > before.get(name, len(parameter)) and id(parameter) not in saved
        ]
        if lost:
            _tell_missing(lost, range(have, wanted), adapter, done, fill_rows)
            for name in lost:
                rows = parameters[name].data
                rows[have:] = rows[:have].float().mean(dim=0).to(rows.dtype)


def _tell_missing(lost: list[str], rows: range, adapter: Adapter, done: PeftMerge, allowed: bool) -> None:
    """A warning that names rows which no file holds; Permanent where they are not allowed."""
    holders = sorted({name.rpartition(".")[0].rpartition(".")[2] for name in lost})
    cause = (
        f"training enlarged the vocabulary by {len(rows)} rows, and the adapter holds no values for rows {rows[0]} to {rows[-1]} of"
        f" {' and '.join(lost)}"
    )
    if not allowed:
        raise Permanent(
            FaultCode.MISSING_ROWS,
            OPERATION,
            cause,
            f"train with {' and '.join(holders)} in modules_to_save, or save the adapter with save_embedding_layers=True and without the"
            " embeddings and the head among the target modules; to merge it with the mean of the other rows there, set merge.fill_rows",
            path=adapter.folder,
        )
    done.warnings.append(f"{cause}: they get the mean of the other rows, as merge.fill_rows allows")


def _peft_config(adapter: Adapter) -> Any:
    """adapter_config.json as PEFT reads it. Permanent for a method or a field that the installed PEFT does not take."""
    from peft import PeftConfig, __version__
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    path = adapter.folder / "adapter_config.json"
    known = sorted(str(method.value) for method in PEFT_TYPE_TO_CONFIG_MAPPING)
    if adapter.config["peft_type"] not in known:
        raise Permanent(
            FaultCode.BAD_ADAPTER_CONFIG, OPERATION,
            f"peft_type is {shown(adapter.config['peft_type'])}, which PEFT {__version__} does not know; it knows {', '.join(known)}",
            "install the PEFT that this adapter was trained with, or correct peft_type", path=path,
        )  # fmt: skip
    try:
        return PeftConfig.from_pretrained(str(adapter.folder))
    except ImportError as error:
        cause = f"PEFT {__version__} needs another package for it: {foreign.in_words(error)}"
        raise Permanent(
            FaultCode.ADAPTER_NOT_LOADABLE, OPERATION, cause, "install that package into the environment of ckptd", path=path
        ) from error
    except Exception as error:
        if isinstance(error, CkptdError) or foreign.of_machine(error):
            raise
        cause = f"PEFT {__version__} does not accept it: {foreign.in_words(error)}"
        raise Permanent(FaultCode.BAD_ADAPTER_CONFIG, OPERATION, cause, "save the adapter again with PEFT", path=path) from error


def _attach(model: Any, adapter: Adapter) -> Any:
    """Return the model with the adapter loaded; Permanent unless every key of the adapter found its place."""
    from peft import PeftModel

    config = _peft_config(adapter)
    config.inference_mode = True
    if getattr(config, "lora_dropout", 0):
        config.lora_dropout = 0.0  # of no effect after training, but PEFT puts no adapter with it on the parameters of experts
    if config.is_prompt_learning:
        raise _not_mergeable(adapter, f"{adapter.method} changes the inputs, not the weights, so there is nothing to merge")
    names = {name for name, _ in model.named_modules() if name}
    bound(config, names | {name for name, _ in model.named_parameters(remove_duplicate=False)}, adapter.folder)
    try:
        wrapped = PeftModel(model, config, "default")
        result = wrapped.load_adapter(str(adapter.folder), "default")
    except Exception as error:
        if isinstance(error, CkptdError) or foreign.of_machine(error):
            raise
        if adapter.older_experts and "size mismatch" in str(error):
            raise _of_older_peft(adapter) from error
        cause = f"PEFT can't put it on this base: {foreign.in_words(error)}"
        raise Permanent(
            FaultCode.ADAPTER_NOT_LOADABLE,
            "load the adapter into the base",
            cause,
            f"check that the base is the one the adapter was trained on, which it names {adapter.base_name}",
            path=adapter.folder,
        ) from error
    for name, module in wrapped.named_modules():
        if adapter.older_experts and getattr(module, "_did_swap_in_out_features", False) and module.in_features == module.out_features:
            raise square_of_older(adapter, f"{name.removeprefix(PREFIX)}.{module.parameter_name}")
    # The rows of trained tokens of a tied head are those of the embedding; PEFT saves them twice where the vocabulary was resized.
    tied = {f"{name}.trainable_tokens_delta" for name, module in wrapped.named_modules() if getattr(module, "tied_adapter", None)}
    unexpected = sorted(set(result.unexpected_keys) - doubles(adapter.shapes) - tied)
    if unexpected:
        modules = sorted({key.removeprefix(PREFIX).partition(".lora_")[0].removesuffix(".weight") for key in unexpected})
        raise nothing_matches(adapter, modules, names)
    # What several modules share, as VB-LoRA's bank of vectors, is in the file once, and under one of its names.
    parameters = dict(wrapped.named_parameters(remove_duplicate=False))
    loaded = {id(parameter) for name, parameter in parameters.items() if name not in result.missing_keys}
    missing = sorted(key for key in result.missing_keys if "default" in key and id(parameters.get(key)) not in loaded)
    if missing:
        raise Permanent(
            FaultCode.BASE_WEIGHT_UNCHANGED,
            OPERATION,
            f"the adapter has no weights for {len(missing)} parameters that its configuration names, for example {missing[0]}",
            f"check that the base is the one the adapter was trained on, which it names {adapter.base_name}",
            path=adapter.folder,
        )
    return wrapped


def _of_older_peft(adapter: Adapter) -> Permanent:
    """Return the error for factors of experts that only streaming can merge, and today's PEFT can't load."""
    return Permanent(
        FaultCode.ADAPTER_NOT_LOADABLE,
        "load the adapter into the base",
        f"the adapter was saved by PEFT {adapter.peft_version}, which laid out the factors of stacked experts (target_parameters) the other"
        " way round than PEFT does since 0.19",
        "merge it with the PEFT that trained it (merge_and_unload) and export the result as a full fine-tune",
        path=adapter.folder,
    )


def _not_mergeable(adapter: Adapter, cause: str) -> Permanent:
    return Permanent(FaultCode.ADAPTER_NOT_MERGEABLE, OPERATION, cause, "serve it with PEFT beside its base instead", path=adapter.folder)


def _merged(wrapped: Any, adapter: Adapter) -> Any:
    try:
        return wrapped.merge_and_unload()
    except Exception as error:
        if isinstance(error, CkptdError) or foreign.of_machine(error):
            raise
        cause = "" if "merge_and_unload" in str(error) else foreign.in_words(error)  # a method that has no merge
        raise _not_mergeable(adapter, f"PEFT can't merge {adapter.method} into this base" + (f" ({cause})" if cause else "")) from error


def _unwrap(model: Any) -> None:
    """Put the trained module in the place of each wrapper that PEFT's merge left: that of LN_TUNING leaves those of saved modules."""
    from peft.utils.other import AuxiliaryTrainingWrapper

    for name, module in list(model.named_modules()):
        if isinstance(module, AuxiliaryTrainingWrapper):
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, module.unload_and_optionally_merge_module(True, False, None))


def _forget_packing(model: Any) -> None:
    """Drop the load-time conversions of packed weights, through which a dequantized model can't be saved."""
    conversions = getattr(model, "_weight_conversions", None)
    if not conversions:
        return
    kept = []
    for conversion in conversions:
        try:
            conversion.reverse_transform()
        except NotImplementedError:
            continue
        kept.append(conversion)
    model._weight_conversions = kept


def _check_finite(model: Any, adapter: Adapter) -> None:
    import torch

    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not torch.isfinite(parameter).all():
            sound = all(bool(torch.isfinite(adapter.tensor(key)).all()) for key in adapter.shapes)
            cause = f"{name} holds NaN or infinity after the merge, " + (
                "but the adapter's weights are finite: the base's own are not, or the sum is beyond"
                f" {str(parameter.dtype).removeprefix('torch.')}"
                if sound
                else "as the adapter's weights do"
            )
            raise Permanent(
                FaultCode.NON_FINITE_WEIGHTS, OPERATION, cause, "take an earlier checkpoint, or restore the base", path=adapter.folder
            )


def merge_with_peft(adapter: Adapter, base: ModelFolder, output: Path, *, fill_rows: bool = False) -> PeftMerge:
    """Load `base` and `adapter`, merge, and save the weights into `output` (an existing folder) as safetensors. `fill_rows`: as in
    MergeOptions.

    Permanent when either does not load, when a key of the adapter is not used, or when the method can't be merged; Retryable when memory
    is short.
    """
    _check_memory(base)
    done = PeftMerge()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = _load_base(base, done)
        _resize(model, adapter, done, fill_rows)
        tied = tied_modules(model)  # asked now: PEFT may change modules and configuration
        wrapped = _attach(model, adapter)
        untie(wrapped.base_model.model, adapter)
        merged = _merged(wrapped, adapter)
        _unwrap(merged)
    initializer = adapter.config.get("init_lora_weights")
    if isinstance(initializer, str) and initializer != "gaussian":
        done.warnings.append(
            f"PEFT ran the initializer {initializer} on the base again; the result is right only if this gives exactly the"
            " same values as in training"
        )
    messages = {" ".join(str(warning.message).split())[:300] for warning in said if issubclass(warning.category, UserWarning)}
    done.warnings.extend(sorted(message for message in messages if "tie_word_embeddings" not in message))  # ties are dealt with below
    _check_finite(merged, adapter)
    edits, said_of_ties = separate(merged, tied, adapter)
    done.edits.update(edits)
    done.warnings.extend(said_of_ties)
    if "quantization_config" in done.edits:
        _forget_packing(merged)
    merged.save_pretrained(output, max_shard_size=SHARD)
    for name in ("config.json", "generation_config.json", "README.md"):
        (output / name).unlink(missing_ok=True)
    return done
