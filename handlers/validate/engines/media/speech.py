"""The engine of models that write what they hear. Imported only inside workers."""

from __future__ import annotations

import numpy as np
import torch

from handlers.validate.engines.media.numbered import NUMBER
from handlers.validate.engines.media.reading import ReadsMedia
from handlers.validate.engines.pytorch.torch_tasks import TorchSeq2Seq

_INPUTS = ("input_features", "input_values")


class TorchSpeech(ReadsMedia, TorchSeq2Seq):
    """An encoder of sounds with a decoder of text. A source is one token: the number of a sound."""

    def encode(self, text: str) -> list[int]:
        """Give the number that a name of a sound ends with."""
        return [int(NUMBER.findall(text)[-1])]

    def _encoded(self, input_ids: np.ndarray, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        encoder, encodings = self._plain().get_encoder(), []
        for row, real in zip(input_ids, mask.numpy(), strict=True):
            inputs = self._prepared(int(row[real > 0][0]))
            sound = {name: inputs[name] for name in _INPUTS if name in inputs}
            encodings.append(encoder(**sound).last_hidden_state)
        return torch.cat(encodings), None
