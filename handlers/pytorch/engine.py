"""The engines of the smaller PyTorch forms: folders as transformers' own `from_pretrained` loads them. Imported only inside workers.

They compute in the dtype that the folder names, as its users do, and not in fp32 as the engines of the merged model: what half precision
and quantized layers do to the answers is what is checked. Kernels are the CPU's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from handlers.validate.engines.registry import EngineSpec
from handlers.validate.engines.torch_causal import POOLER, TorchEngine, TorchModel, load_model
from handlers.validate.engines.torch_tasks import TorchEncoder, TorchSeq2Seq


class _Stored(TorchModel):
    """A folder in its own dtype."""

    def _load(self, spec: EngineSpec) -> Any:
        return load_model(Path(spec.folder), spec.task, POOLER if spec.sentence else (), dtype="auto")


class StoredEngine(_Stored, TorchEngine):
    """A language model."""


class StoredSeq2Seq(_Stored, TorchSeq2Seq):
    """An encoder-decoder."""


class StoredEncoder(_Stored, TorchEncoder):
    """An encoder, with a head or without."""
