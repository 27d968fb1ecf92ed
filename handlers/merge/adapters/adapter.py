"""An adapter checkpoint on disk: its configuration, its tensors, and which adapters can't be merged at all.

Called by the merge. Tensors are read one at a time, so that a large adapter is never in memory as a whole; a `.bin` adapter is unpickled
with `weights_only=True`, which executes nothing. torch is imported only when a tensor is read.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.configs import adapter_config
from daemon.contract.models.safetensors import DTYPES, TensorInfo, is_name, read_header
from daemon.contract.values import Json
from handlers.merge.adapters.keys import without_prefixes
from handlers.merge.adapters.patterns import first_keys
from handlers.merge.weights.pickled import read_pickle
from handlers.models.files import read_json
from handlers.tensors.file_io import OpenFiles

if TYPE_CHECKING:
    import torch

OPERATION = "read the adapter"
SAFETENSORS = "adapter_model.safetensors"
BIN = "adapter_model.bin"
PEFTS_DEFAULT = 8
"""Of `r` and of `lora_alpha`, in PEFT's LoraConfig."""
REFUSED: dict[str, str] = {
    "alora_invocation_tokens": "an aLoRA adapter switches on at its invocation tokens, which merged weights can't do",
    "arrow_config": "an Arrow router chooses among adapters for every token, which merged weights can't do",
    "use_qalora": "a QALoRA adapter acts on pooled inputs of a quantized base and can't be merged into its weights",
    "layer_replication": "layer replication shares base weights among layers that would differ once merged",
}
"""adapter_config.json key → why such an adapter is not merged."""


@dataclass(frozen=True)
class Adapter:
    """One adapter: `config` is adapter_config.json, `shapes` maps each key of its weights to the tensor's shape."""

    folder: Path
    file: Path
    config: Json
    shapes: dict[str, tuple[int, ...]]
    headers: dict[str, TensorInfo]
    """Empty for a `.bin` adapter."""
    unpickled: dict[str, torch.Tensor]
    """Tensors of a `.bin` adapter; empty for safetensors."""

    @property
    def method(self) -> str:
        """PEFT's name of the method, in capitals."""
        return str(self.config.get("peft_type") or "").upper()

    def rank(self, module: str) -> int:
        """LoRA rank of a module, or of a parameter of experts: `r`, unless rank_pattern says otherwise."""
        return int(self.chosen("rank_pattern", module) or self.plain_rank)

    def scale(self, module: str) -> float:
        """Return the factor of B·A for a module: α/r (Hu et al. 2021), α/√r with use_rslora (Kalajdzievski 2023)."""
        alpha = self.chosen("alpha_pattern", module)
        return self.factor(self.plain_alpha if alpha is None else alpha, self.rank(module))

    @property
    def plain_scale(self) -> float:
        """That of a module which neither rank_pattern nor alpha_pattern names."""
        return self.factor(self.plain_alpha, self.plain_rank)

    @property
    def plain_rank(self) -> int:
        """Rank of such a module."""
        return int(self.config.get("r", PEFTS_DEFAULT))

    @property
    def plain_alpha(self) -> float:
        """α of such a module."""
        alpha: float = self.config.get("lora_alpha", PEFTS_DEFAULT)
        return alpha

    def factor(self, alpha: float, rank: int) -> float:
        """Return the factor of B·A for this α and this rank."""
        return float(alpha / math.sqrt(rank) if self.config.get("use_rslora") else alpha / rank)

    def by_parameter(self, module: str) -> bool:
        """Return whether target_parameters names the weight of the module: PEFT then adds the delta to the weight as it is stored."""
        weight = f".{module}.weight"
        return any(weight.endswith(f".{target}") for target in self.config.get("target_parameters") or ())

    def chosen(self, field: str, module: str) -> Any:
        """Return what rank_pattern or alpha_pattern says of a module or a parameter, by PEFT's rule; None where neither key names it."""
        patterns = self.config.get(field)
        if not patterns or self.method == "ADALORA":  # of an AdaLoRA they say which ranks are left, under other names
            return None
        keys = self._pattern_keys[field]
        if self.by_parameter(module):
            module = f"{module}.weight"
        if module not in keys:
            names = {module} if keys else {module, *self.modules}
            first = first_keys(patterns, names, field, self.folder)
            keys.update({name: first.get(name) for name in names})
        key = keys[module]
        return None if key is None else patterns[key]

    @functools.cached_property
    def _pattern_keys(self) -> dict[str, dict[str, str | None]]:
        """Field → module → the key that names it, for the modules that were asked for."""
        return {"rank_pattern": {}, "alpha_pattern": {}}

    @functools.cached_property
    def modules(self) -> frozenset[str]:
        """Paths of the modules for which it has factors, and of the parameters that target_parameters names in them."""
        own = {without_prefixes(key).partition(".lora_")[0].replace(".base_layer", "") for key in self.shapes if ".lora_" in key}
        leaves = {str(target).rpartition(".")[2] for target in self.config.get("target_parameters") or ()}
        return frozenset(own | {f"{module}.{leaf}" for module in own for leaf in leaves})

    @property
    def older_experts(self) -> bool:
        """Whether factors of stacked experts may be laid out as PEFT did it before 0.19: A over the outputs, B over the inputs."""
        version = re.match(r"0\.(\d+)\.", str(self.config.get("peft_version") or "0.0.0"))
        return bool(self.config.get("target_parameters")) and version is not None and int(version[1]) < 19

    @property
    def peft_version(self) -> str:
        """The PEFT that saved it, as far as it says so: releases before 0.18 do not."""
        return str(self.config.get("peft_version") or "before 0.18")

    @property
    def base_name(self) -> str:
        """The base that the adapter says it was trained on."""
        return str(self.config.get("base_model_name_or_path") or "unknown")

    def tensor(self, key: str, files: OpenFiles | None = None) -> torch.Tensor:
        """One tensor in fp32, read from the file now (`.bin`: taken from memory), by way of `files` where it is one of many."""
        return self.part(key, 0, math.prod(self.shapes[key]), files).view(self.shapes[key]).float()

    def part(self, key: str, first: int, count: int, files: OpenFiles | None = None) -> torch.Tensor:
        """`count` elements of a tensor from element `first` on, flat, as stored."""
        import torch

        if self.unpickled:
            return self.unpickled[key].reshape(-1)[first : first + count]
        info = self.headers[key]
        if info.dtype not in DTYPES:
            raise Permanent(
                FaultCode.ADAPTER_DTYPE, OPERATION, f"{key} has the unknown dtype {info.dtype}", "save it as float32", path=self.file
            )
        dtype: torch.dtype = getattr(torch, DTYPES[info.dtype][0])
        if not count:
            return torch.empty(0, dtype=dtype)
        data = bytearray(count * dtype.itemsize)
        with OpenFiles() if files is None else contextlib.nullcontext(files) as opened:
            opened.read(self.file, memoryview(data), info.start + first * dtype.itemsize)
        return torch.frombuffer(data, dtype=dtype)


class AdapterSource:
    """A source for a tensor of the adapter that replaces one of the base's, cast to the dtype in which it is written."""

    def __init__(self, adapter: Adapter, key: str, dtype: torch.dtype) -> None:
        self.name, self.shape, self.dtype = key, adapter.shapes[key], dtype
        self._adapter, self._width = adapter, math.prod(adapter.shapes[key][1:])

    def cast(self, dtype: torch.dtype) -> AdapterSource:
        """Return the same tensor for another dtype."""
        return AdapterSource(self._adapter, self.name, dtype)

    def rows(self, first: int, count: int, out: torch.Tensor) -> None:
        """Fill `out` with `count` rows from `first` on."""
        out.view(-1).copy_(self._adapter.part(self.name, first * self._width, count * self._width))


def _unpickle(path: Path) -> dict[str, torch.Tensor]:
    import torch

    table = read_pickle(path, OPERATION, "adapter", mapped=False)  # the trainer may share the file and write to it
    named = isinstance(table, dict) and all(isinstance(key, str) and is_name(key) for key in table)
    if not named or not all(isinstance(value, torch.Tensor) for value in table.values()):
        raise Permanent(
            FaultCode.NO_TENSORS, OPERATION, "the file is not a table of tensors", "save the adapter again with PEFT", path=path
        )
    tensors: dict[str, torch.Tensor] = table
    return tensors


def read_adapter(folder: Path) -> Adapter:
    """Return the adapter in `folder`. Permanent when its files are missing or unsound, or when its kind can't be merged."""
    path = folder / "adapter_config.json"
    config = read_json(path, OPERATION)
    adapter_config(config, path, OPERATION)
    for key, reason in REFUSED.items():
        if config.get(key):
            raise Permanent(
                FaultCode.ADAPTER_NOT_MERGEABLE, "merge the adapter", reason, "serve it with PEFT beside its base instead", path=folder
            )
    for name in (SAFETENSORS, BIN):
        path = folder / name
        if not path.is_file():
            continue
        headers = read_header(path) if name == SAFETENSORS else {}
        unpickled = _unpickle(path) if name == BIN else {}
        shapes = {key: info.shape for key, info in headers.items()} | {key: tuple(value.shape) for key, value in unpickled.items()}
        if not shapes:
            raise Permanent(FaultCode.NO_TENSORS, OPERATION, "it holds no tensor", "take another checkpoint", path=path)
        return Adapter(folder, path, config, shapes, headers, unpickled)
    raise Permanent(FaultCode.NO_ADAPTER, OPERATION, f"there is neither {SAFETENSORS} nor {BIN}", "take another checkpoint", path=folder)
