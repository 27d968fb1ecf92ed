"""The engines of the smaller PyTorch forms: folders as transformers' own `from_pretrained` loads them. Imported only inside workers.

They compute in the dtype that the folder names, as its users do, and not in fp32 as the engines of the merged model: what half precision
and quantized layers do to the answers is what is checked. Kernels are the CPU's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from handlers.pytorch.weights.difference import difference
from handlers.validate.engines.media.encoders import MediaEncoder
from handlers.validate.engines.media.speech import TorchSpeech
from handlers.validate.engines.pytorch.folder import POOLER, load_model
from handlers.validate.engines.pytorch.torch_causal import TorchEngine, TorchModel
from handlers.validate.engines.pytorch.torch_tasks import TorchEncoder, TorchSeq2Seq
from handlers.validate.engines.registry import EngineSpec

_REPACKS = "support_avx512bf16_for_cpu"
"""What makes bitsandbytes' 4-bit layers repack their weights in the first pass on processors with AVX512-BF16, for a kernel that other
processors don't have and that refuses layers whose outputs 32 does not divide. A verdict must not depend on the machine."""


class _Stored(TorchModel):
    """A folder in its own dtype."""

    @staticmethod
    def weights_difference(spec: EngineSpec, merged: Path) -> str | None:
        """Why its weights are not those of the merged model, as a clause; None where they are. Nothing is loaded for it."""
        torch.set_num_threads(spec.threads)
        return difference(Path(spec.folder), merged)

    def _load(self, spec: EngineSpec) -> Any:
        model = load_model(Path(spec.folder), spec.task, POOLER if spec.sentence else (), dtype="auto")
        for module in model.modules():
            if hasattr(module, _REPACKS):
                setattr(module, _REPACKS, False)
        return model


class StoredEngine(_Stored, TorchEngine):
    """A language model."""


class StoredSeq2Seq(_Stored, TorchSeq2Seq):
    """An encoder-decoder."""


class StoredEncoder(_Stored, TorchEncoder):
    """An encoder, with a head or without."""


class StoredMediaEncoder(_Stored, MediaEncoder):
    """An encoder of pictures or sounds."""


class StoredSpeech(_Stored, TorchSpeech):
    """An encoder of sounds with a decoder of text."""
