"""The stage `pytorch-adapter`: the checkpoint's adapter as a folder of its own, that PEFT and servers load over the base.

Run by `handlers.__main__` after the merge, which has shown that adapter and base belong together and that every tensor is used. The folder
holds adapter_config.json, adapter_model.safetensors, adapter_base.json (which base), README.md, and tokenizer and chat template if the
checkpoint has its own; no weights of the base and no pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Json
from handlers.adapter import base, card, config, servers, weights
from handlers.child.progress import Reporter, StageOutput
from handlers.merge.adapters.adapter import Adapter, read_adapter
from handlers.merge.weights.base_digest import base_digest
from handlers.models import hub
from handlers.models.files import TOKENIZER, TokenizerCopy, copy_tokenizer
from handlers.models.folder import ModelFolder
from handlers.models.tasks import task_of_config
from handlers.validate.engines.registry import base_values


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Write the folder. Permanent for a full fine-tune, which has no adapter, for an adapter that can't be read, and where other adapters
    are merged with it.
    """
    if context.base is None:
        raise Permanent(
            FaultCode.NO_ADAPTER,
            "publish the adapter alone",
            "the checkpoint is a full fine-tune, which has no adapter",
            "leave pytorch-adapter out of export.variants; to do so only for this run, put a ckptd.toml into its directory",
            path=context.checkpoint.path,
        )
    if context.checkpoint.mixture:
        names = ", ".join(addition.name for _, addition in context.additions)
        what = (
            f"the export merges {names} together with it"
            if names
            else f"the export merges it with the factor {context.checkpoint.weight:g}"
        )
        raise Permanent(
            FaultCode.ADAPTER_NOT_ALONE,
            "publish the adapter alone",
            f"{what}, so the adapter alone is not the model that was verified",
            "leave pytorch-adapter out of export.variants, or export the checkpoint without merge.add and merge.weight",
            path=context.checkpoint.path,
        )
    pin, staging = Path(context.pin), Path(context.staging)
    model, merged = ModelFolder.opened(Path(context.base), "base"), ModelFolder(Path(context.inputs["merge"]), "merged model")
    adapter = read_adapter(pin)
    reporter.progress(0.1, "writing the adapter's tensors")
    size = weights.write(adapter, staging)
    reporter.progress(0.4, "copying tokenizer and chat template")
    copied = _own_tokenizer(pin, Path(context.base), staging)
    reporter.progress(0.5, "naming the base")
    named = hub.name_of(adapter.config.get("base_model_name_or_path"), Path(context.base))
    digest = base_digest(model, Path(context.cache), _alive(reporter))
    content = base.written(named, adapter.config, digest, base_values(context))
    _write(staging / base.FILE, content)
    reporter.progress(0.8, "writing adapter_config.json")
    published = config.cleaned(adapter.config, named.name)
    _write(staging / "adapter_config.json", published)
    task = task_of_config(merged.config)
    repository = hub.repository_of(named, Path(context.base))
    license_ = hub.license_of(Path(context.base), repository)
    unsuited = servers.unsuited(adapter, task.kind if task else None)
    write_atomic(staging / "README.md", card.text(adapter, named, repository, digest, unsuited, task.name if task else None, license_))
    output = StageOutput(
        figures={
            "weight_bytes": size,
            "method": adapter.method,
            "base": named.name,
            "base_digest": digest,
            "base_values": content["values"],
            "tokenizer": copied.source is not None,
            "chat_template": copied.chat_template,
            "dropped_keys": config.dropped(adapter.config, published),
            "unsuited": unsuited,
            "max_lora_rank": servers.max_lora_rank(adapter),
            **_differences(model, merged, adapter),
        }
    )
    output.warnings += [f"{server} can't use this adapter: {'; '.join(reasons)}." for server, reasons in unsuited.items()]
    if named.local:
        output.warnings.append(
            f"The adapter names its base by a folder of this machine ({named.name}), which a server on another machine does"
            " not have: in the training, load the base by its name on a hub, or start the server with the right base."
        )
    return output


def _own_tokenizer(pin: Path, folder: Path, staging: Path) -> TokenizerCopy:
    """The checkpoint's tokenizer; with the base's vocabulary where it brings its other files alone, and none where it brings nothing."""
    copied = copy_tokenizer(pin, None, staging)
    if copied.source is None and any(path for pattern in TOKENIZER for path in staging.glob(pattern)):
        return copy_tokenizer(pin, folder, staging)
    return copied


def _differences(model: ModelFolder, merged: ModelFolder, adapter: Adapter) -> Json:
    """What has to be said to transformers when the base is loaded for this adapter: another vocabulary, labels of a head."""
    differences: dict[str, Any] = {}
    if (rows := merged.setting("vocab_size")) != model.setting("vocab_size"):
        differences["vocabulary"] = rows
    labels = merged.config.get("id2label")
    if isinstance(labels, dict) and adapter.config.get("modules_to_save") and labels != model.config.get("id2label"):
        differences["labels"] = len(labels)
    return differences


def _alive(reporter: Reporter) -> Callable[[int], None]:
    """A base that the merge has not read in this cache is read for its digest; the stage may be told to stop meanwhile."""

    def moved(count: int) -> None:
        reporter.progress(0.5, "reading the base for its digest")

    return moved


def _write(path: Path, value: Json) -> None:
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
