"""A LoRA adapter as a GGUF file, which llama.cpp and Ollama put over the GGUF file of its base.

llama.cpp adds `adapter.lora.alpha / rank · B·A` to a weight, and knows neither rsLoRA nor patterns. So each module's own factor is written
into its B, as far as alpha / rank is not that factor already. What is more than factors of linear weights is refused. Source:
llama.cpp's src/llama-adapter.cpp.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.child.variants import NotPossible
from handlers.gguf.file import architectures
from handlers.gguf.file.architectures import Architecture
from handlers.gguf.file.weights import STORED, Weights, read
from handlers.merge.adapters.adapter import Adapter, read_adapter
from handlers.merge.adapters.keys import Factors, parse
from handlers.models.folder import ModelFolder

FILE = "adapter.gguf"


def write(folder: Path, base: ModelFolder, path: Path, title: str) -> dict[str, Any]:
    """Write the adapter of a folder; gives figures. Raises NotPossible."""
    adapter, config = read_adapter(folder), architectures.config_of(base)
    architecture = architectures.find(config)
    if config.get("quantization_config"):
        raise NotPossible("its base is stored in a quantized form, which no GGUF file of the base would have")
    factors = _plain(adapter, base)
    names = gguf.get_tensor_name_map(architecture.kind, architectures.layers(config))
    # An alpha of 0 means 1 to llama.cpp, and nothing at all to PEFT.
    alpha = adapter.plain_scale * int(adapter.config.get("r", 8)) or 1.0
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[architecture.kind])
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    writer.add_name(title)
    written: list[np.ndarray] = []
    for pair in factors:
        name, a, b = _pair(adapter, pair, base, names, architecture, alpha)
        for part, values in (("lora_a", a), ("lora_b", b)):
            writer.add_tensor(f"{name}.{part}", np.ascontiguousarray(values))
            written.append(values)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"modules": len(factors), "alpha": alpha, "weights": {"F32": int(sum(values.size for values in written))}}


def _plain(adapter: Adapter, base: ModelFolder) -> list[Factors]:
    """Its pairs of factors, where it has nothing else."""
    if adapter.method != "LORA":
        raise NotPossible(f"llama.cpp knows LoRA alone, and this is {adapter.method}")
    if adapter.config.get("use_dora"):
        raise NotPossible("llama.cpp does not know DoRA")
    keys = parse(adapter.shapes)
    # PEFT saves the base's own embeddings along with factors of them, or of lm_head.
    changed = [name for name, key in keys.base.items() if not _same(adapter, key, name, base)]
    if more := [*keys.saved, *keys.tokens, *changed]:
        raise NotPossible(f"llama.cpp adds factors alone, and the adapter also brings {sorted(more)[0]}")
    for factors in keys.factors.values():
        if factors.roles.keys() != {"A", "B"} or factors.nested:
            raise NotPossible(f"what it does to {factors.module} is more than a product of two factors")
    return list(keys.factors.values())


def _pair(
    adapter: Adapter, factors: Factors, base: ModelFolder, names: Any, architecture: Architecture, alpha: float
) -> tuple[str, np.ndarray, np.ndarray]:
    """Name of the weight, A (rank × inputs) and B (outputs × rank) with the module's factor in it, fp32."""
    weight = f"{factors.module}.weight"
    name: str | None = names.get_name(weight, try_suffixes=(".weight",)) if weight in base.headers else None
    if name is None:
        raise NotPossible(f"llama.cpp has no weight for its module {factors.module}")
    if len(base.headers[weight].shape) != 2 or ".experts." in factors.module:
        raise NotPossible(f"llama.cpp's weight for its module {factors.module} is no plain matrix")
    a, b = (_read(adapter, factors.roles[role]) for role in "AB")
    if name == "output.weight" and base.config.get("tie_word_embeddings"):
        raise NotPossible("its base has one weight for the embeddings and for lm_head, and the adapter changes lm_head alone")
    b = b * np.float32(adapter.scale(factors.module) * len(a) / alpha)
    part = architectures.part_of(weight, base.config, architecture)
    if part.change is not None and part.whole and not (architecture.transposed and weight.endswith(architecture.transposed)):
        b = part.change(b)  # rows change places; the inputs do not
    return name, a, b


def _same(adapter: Adapter, key: str, name: str, base: ModelFolder) -> bool:
    return name in base.headers and adapter.shapes[key] == base.headers[name].shape and np.array_equal(
        _read(adapter, key), Weights(base).rows(name)
    )  # fmt: skip


def _read(adapter: Adapter, key: str) -> np.ndarray:
    """One tensor of the adapter in fp32."""
    info = adapter.headers.get(key)
    if info is None or info.dtype not in STORED:
        raise Permanent(
            FaultCode.ADAPTER_DTYPE, "write the adapter as GGUF", f"{key} is not stored as safetensors in fp32, fp16 or bf16",
            "save the adapter again with safetensors", path=adapter.file,
        )  # fmt: skip
    return read(adapter.file, info)
