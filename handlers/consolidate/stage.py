"""The stage `consolidate`: from the pinned pieces of a sharded checkpoint to an adapter's folder or a model's, which all others then read.

Run by `handlers.__main__` before the merge. The output is what `save_pretrained` would have written: adapter_config.json with
adapter_model.safetensors, or config.json with weights and tokenizer; and whatever else the pin has beside the pieces. Bytes are copied as
they are stored. An interrupted attempt starts again: it costs one pass over the checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from daemon.contract.disk.failpoints import point
from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from daemon.contract.models.configs import adapter_config, model_config
from daemon.contract.models.safetensors import DTYPES
from daemon.contract.sharded import mlx, verl
from daemon.contract.sharded.forms import is_adapter, read_tensors, shards_in
from daemon.contract.sharded.pickles import Unsafe
from daemon.contract.sharded.pieces import ShardedTensor
from daemon.contract.values import Json
from handlers.child.progress import Reporter, StageOutput
from handlers.consolidate import model_names
from handlers.consolidate.adapter_names import OPERATION, peft_names, refuse_trained_beside
from handlers.consolidate.assemble import damaged, same_bytes, write_file
from handlers.merge.plan.output_layout import resharded
from handlers.models.files import TEMPLATES, TOKENIZER, copy_tokenizer, read_json, setting
from handlers.models.folder import INDEX, ModelFolder, copy_generation

MOST_IN_A_FILE = 5 * 10**9
"""Bytes of the tensors of one file, as transformers divides a model."""
_PRIVATE = (".linked",)
"""What a pin says of itself, and what would not be true of the output."""


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Put the pieces together. Permanent for a damaged checkpoint, and for one whose tensors fit what they are for in no single way."""
    pin, staging = Path(context.pin), Path(context.staging)
    try:
        tensors = read_tensors(pin)
    except Unsafe as error:
        raise Permanent(
            FaultCode.UNSAFE_PICKLE, OPERATION, str(error), "save the checkpoint again; pickled code is never executed", path=pin
        ) from None
    except ValueError as error:
        raise damaged(pin, str(error)) from None
    adapter = is_adapter(tensors)
    _copy_beside(pin, staging, {piece.file for tensor in tensors.values() for piece in tensor.pieces})
    base = Path(context.base) if context.base else None
    names = _adapter(pin, staging, tensors, base) if adapter else _model(context, tensors, base)
    chosen = {said: tensors[name] for name, said in names.items()}
    done, total = 0, sum(tensor.size for tensor in chosen.values()) or 1

    def moved(count: int) -> None:
        nonlocal done
        done += count
        reporter.progress(min(done / total, 0.99), "putting the pieces together")

    sizes = ((name, tensor.size) for name, tensor in chosen.items())
    files = {"adapter_model.safetensors": tuple(chosen)} if adapter else resharded(sizes, MOST_IN_A_FILE)
    for name, held in files.items():
        write_file(pin, staging / name, {key: chosen[key] for key in held}, moved)
        point("consolidate.file.written")
    if len(files) > 1:
        weight_map = dict(sorted((key, name) for name, held in files.items() for key in held))
        index = {"metadata": {"total_size": sum(tensor.size for tensor in chosen.values())}, "weight_map": weight_map}
        write_atomic(staging / INDEX, json.dumps(index, indent=2) + "\n")
    return StageOutput(
        figures={
            "tensors": len(chosen), "pieces": sum(len(tensor.pieces) for tensor in chosen.values()), "weight_bytes": total,
            "left_out": sorted(tensors.keys() - names.keys())[:20], "adapter": adapter,
        }
    )  # fmt: skip


def _copy_beside(pin: Path, staging: Path, files: Collection[str]) -> None:
    """Everything that the pin has beside the pieces. `files`: in which the tensors lie."""
    with os.scandir(pin) as entries:
        pieces = {name.partition("/")[0] for name in (*shards_in(entries), *files)}
    for path in sorted(pin.iterdir()):
        if path.name in pieces or path.name in _PRIVATE:
            continue
        if path.is_dir():
            shutil.copytree(path, staging / path.name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(path, staging / path.name)


def _adapter(pin: Path, staging: Path, tensors: Mapping[str, ShardedTensor], base: Path | None) -> dict[str, str]:
    """Return the names of an adapter's tensors, by the base's headers as far as they tell; verl's and mlx-lm's has its configuration
    made of them."""
    model = ModelFolder.opened(base, "base") if base else None
    shapes = {} if model is None or model.pickled else {name: info.shape for name, info in model.headers.items()}
    names = peft_names(tensors, {name.rpartition(".")[0] for name in shapes})
    left_out = {name: tensors[name].shape for name in tensors.keys() - names.keys()}
    path, operation = pin / "adapter_config.json", "read the adapter's configuration"
    if not path.exists() and (said := verl.lora_of(pin)) is not None:
        path = staging / path.name
        write_atomic(path, json.dumps(verl.adapter_config_of(said, names.values()), indent=2) + "\n")
    config = read_json(path, operation)
    if mlx.is_config(config):
        path, config = staging / path.name, mlx.peft_config(config, names.values())
        write_atomic(path, json.dumps(config, indent=2) + "\n")
    adapter_config(config, path, operation)
    refuse_trained_beside(left_out, config, shapes)
    return names


def _model(context: StageContext, tensors: Mapping[str, ShardedTensor], base: Path | None) -> dict[str, str]:
    """Return the names of a full model's tensors, with its configuration and tokenizer put into the staging folder."""
    pin, staging, scratch = Path(context.pin), Path(context.staging), Path(context.temporary)
    own = (pin / "config.json").is_file()
    place = pin if own else base
    operation = "read the model's configuration"
    config = model_config(read_json(place / "config.json", operation), place / "config.json", operation) if place else {}
    expected = [wanted for wanted in (model_names.of_base(base) if base else None, model_names.of_config(pin) if own else None) if wanted]
    names = model_names.matched(
        tensors,
        expected,
        lambda first, second: same_bytes(pin, first, second, scratch),
        setting(config, "tie_word_embeddings") is not False,
    )
    if base is not None and not own:
        _write_config(config, {name: tensors[name] for name in names}, staging)
        copy_generation(base, staging)
    if base is not None:
        for path in [path for pattern in (*TOKENIZER, *TEMPLATES) for path in staging.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        copy_tokenizer(pin, base, staging)
    return names


def _write_config(config: Json, tensors: Mapping[str, ShardedTensor], staging: Path) -> None:
    """The base's configuration, with the dtype that these weights have."""
    sizes: dict[str, int] = {}
    for tensor in tensors.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size
    dtype = DTYPES[max(sizes, key=lambda name: sizes[name])][0]
    said = {key: dtype for key in ("dtype", "torch_dtype") if key in config} or {"dtype": dtype}
    write_atomic(staging / "config.json", json.dumps({**config, **said}, indent=2, ensure_ascii=False) + "\n")
