"""The engine of encoders of pictures and sounds. Imported only inside workers."""

from __future__ import annotations

import re

import numpy as np
import torch

from handlers.validate.engines.media.reading import ReadsMedia
from handlers.validate.engines.pytorch.torch_causal import TorchModel
from handlers.validate.engines.registry import EngineSpec

NUMBER = re.compile(r"\d+")
_OUTPUTS = ("logits", "last_hidden_state")


class MediaEncoder(ReadsMedia, TorchModel):
    """An encoder of pictures or sounds, with a head or without; see `EncoderEngine`.

    It is asked by token ids that are all the number of a picture or sound, as many as there are rows of its outputs.
    """

    segments = 1
    _rows: int | None = None

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self.vocabulary = self.input_vocabulary = self.context_length = None
        self.pad = 0

    def encode(self, text: str) -> list[int]:
        """Give the number that a name of a picture or sound ends with, once for each row of outputs that it gets."""
        number = int(NUMBER.findall(text)[-1])
        output = self._output(number)
        return [number] * (output.shape[0] if output.ndim == 2 else 1)

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `EncoderEngine.run`."""
        numbers = [int(row[mask > 0][0]) for row, mask in zip(input_ids, attention_mask, strict=True)]
        outputs = {number: self._output(number) for number in dict.fromkeys(numbers)}
        return (np.stack([outputs[number] for number in numbers]),)

    @torch.inference_mode()
    def _output(self, number: int) -> np.ndarray:
        """Give (rows, V), or (V,) where there is one answer; of two towers the picture's vector, then the text's."""
        inputs = self._prepared(number)
        with self._products():
            output = self._plain()(**inputs)
        if "image_embeds" in output and "text_embeds" in output:
            return torch.cat([output.image_embeds, output.text_embeds]).float().numpy()
        value: np.ndarray = next(output[name] for name in _OUTPUTS if name in output)[0].float().numpy()
        return value
