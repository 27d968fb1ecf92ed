"""The engine of encoders of pictures and sounds on PyTorch. Imported only inside workers."""

from __future__ import annotations

import numpy as np
import torch

from handlers.validate.engines.media.numbered import NumberedMedia, as_rows, of_towers
from handlers.validate.engines.media.reading import ReadsMedia
from handlers.validate.engines.pytorch.torch_causal import TorchModel
from handlers.validate.engines.registry import EngineSpec

_OUTPUTS = ("logits", "last_hidden_state")


class MediaEncoder(NumberedMedia, ReadsMedia, TorchModel):
    """An encoder of pictures or sounds, with a head or without; see `EncoderEngine`."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self.vocabulary = self.input_vocabulary = self.context_length = None
        self.pad = 0

    @torch.inference_mode()
    def _outputs_of(self, *numbers: int) -> np.ndarray:
        inputs = self._prepared(*numbers)
        with self._products():
            output = self._plain()(**inputs)
        if "image_embeds" in output and "text_embeds" in output:
            return of_towers(output.image_embeds.float().numpy(), output.text_embeds.float().numpy())
        return as_rows(next(output[name] for name in _OUTPUTS if name in output).float().numpy())
