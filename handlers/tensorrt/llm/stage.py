"""The stage `tensorrt-llm`: the merged model as a checkpoint of TensorRT-LLM, for its releases that build engines with `trtllm-build`.

Run by `handlers/__main__.py`. The bytes of the weights are copied, those of a fused matrix one after another; nothing is cast. An
architecture that is not mapped is refused. TensorRT-LLM itself is not needed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from daemon.contract.models.safetensors import DTYPES, TensorInfo
from daemon.contract.values import Json
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import not_possible
from handlers.models.files import copy_tokenizer
from handlers.models.folder import GENERATION, ModelFolder
from handlers.tensorrt.llm import mapping, readback

CONFIG, WEIGHTS = "config.json", "rank0.safetensors"
BLOCK = 16 << 20


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Write config.json, rank0.safetensors and the tokenizer. Permanent `form-not-possible`."""
    source, staging = ModelFolder(Path(context.inputs["pytorch"])), Path(context.staging)
    try:
        if source.pickled:
            raise mapping.Unmapped("its weights are pickled; `ckptd convert` makes safetensors of them")
        dtypes = sorted({DTYPES[info.dtype][0] for info in source.headers.values()})
        if len(dtypes) != 1:
            raise mapping.Unmapped(
                f"its weights are stored in several types ({', '.join(dtypes)}), and such a checkpoint has one: set merge.dtype"
            )
        config = mapping.config(_config(source.path), dtypes[0], source.headers)
        table = mapping.weights(source.headers, config["num_hidden_layers"])
        shapes = {name: _stacked(name, [source.headers[part] for part in parts]) for name, parts in table.items()}
    except mapping.Unmapped as error:
        remedy = f"leave {context.stage} out of export.variants; newer releases load the variant pytorch"
        raise not_possible(context, str(error), source.path, remedy=remedy) from error
    (staging / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    written = _write(staging / WEIGHTS, source, table, shapes, reporter)
    reporter.progress(0.9, "reading the weights back")
    if fault := readback.difference(staging / WEIGHTS, config, source):
        raise Permanent(
            FaultCode.MERGE_NOT_EXACT, f"make the variant {context.stage}", f"what was written is not what was merged: {fault}",
            "check this machine's disk and memory, and try again", path=staging / WEIGHTS,
        )  # fmt: skip
    copy_tokenizer(Path(context.pin), Path(context.base) if context.base else None, staging)
    if (source.path / GENERATION).is_file():
        shutil.copyfile(source.path / GENERATION, staging / GENERATION)
    figures = {
        "architecture": config["architecture"], "dtype": config["dtype"], "tensors": len(table), "weight_bytes": written,
        "vocab_size": config["vocab_size"], "max_position_embeddings": config["max_position_embeddings"],
    }  # fmt: skip
    return StageOutput(figures=figures)


def _config(folder: Path) -> Json:
    """transformers' configuration with all its defaults."""
    from transformers import AutoConfig

    given: Json = AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()
    return given


def _stacked(name: str, parts: list[TensorInfo]) -> tuple[int, ...]:
    """The shape of tensors that lie one below the other. Raises Unmapped where they don't fit."""
    first = parts[0].shape
    if any(part.shape[1:] != first[1:] for part in parts):
        raise mapping.Unmapped(
            f"the parts of {name} have the shapes {', '.join(str(part.shape) for part in parts)}, which do not fit each other"
        )
    return (sum(part.shape[0] for part in parts), *first[1:])


def _write(
    path: Path, source: ModelFolder, table: Mapping[str, tuple[str, ...]], shapes: Mapping[str, tuple[int, ...]], reporter: Reporter
) -> int:
    """Write a safetensors file of the source's bytes; gives the bytes of all tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, parts in table.items():
        size = sum(source.headers[part].size for part in parts)
        header[name] = {"dtype": source.headers[parts[0]].dtype, "shape": list(shapes[name]), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for number, parts in enumerate(table.values()):
            reporter.progress(0.1 + 0.8 * number / len(table), "writing the weights")
            for part in parts:
                _copy(source.path / source.headers[part].file, source.headers[part], stream)
    return at


def _copy(path: Path, info: TensorInfo, stream: BinaryIO) -> None:
    with open(path, "rb") as given:
        given.seek(info.start)
        left = info.size
        while left:
            block = given.read(min(BLOCK, left))
            if not block:
                raise OSError(f"{os.fspath(path)} ends early")
            stream.write(block)
            left -= len(block)
