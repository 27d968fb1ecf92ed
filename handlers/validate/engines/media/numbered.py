"""What all engines of encoders of pictures and sounds share: they are asked by numbers. numpy alone."""

from __future__ import annotations

import re

import numpy as np

NUMBER = re.compile(r"\d+")


class NumberedMedia:
    """An encoder that is asked by token ids that are all the number of a picture or sound, as many as there are rows of its outputs."""

    segments = 1

    def encode(self, text: str) -> list[int]:
        """Give the number that a name of a picture or sound ends with, once for each row of outputs that it gets."""
        number = int(NUMBER.findall(text)[-1])
        output = self._outputs_of(number)[0]
        return [number] * (output.shape[0] if output.ndim == 2 else 1)

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `EncoderEngine.run`: all pictures or sounds in one batch, where their processor makes one."""
        numbers = [int(row[mask > 0][0]) for row, mask in zip(input_ids, attention_mask, strict=True)]
        try:
            return (self._outputs_of(*numbers),)
        except ValueError:
            if not numbers[1:]:
                raise
            outputs = {number: self._outputs_of(number)[0] for number in dict.fromkeys(numbers)}
            return (np.stack([outputs[number] for number in numbers]),)

    def _outputs_of(self, *numbers: int) -> np.ndarray:
        """Give (B, rows, V), or (B, V) where there is one answer; of two towers the picture's vector, then the text's."""
        raise NotImplementedError


def of_towers(pictures: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Give (B, 2, V) of two towers' vectors (B, V)."""
    return np.stack([pictures, texts], axis=1)


def as_rows(output: np.ndarray) -> np.ndarray:
    """Give (B, V) or (B, rows, V) of outputs that may be maps (B, V, height, width)."""
    return output if output.ndim < 4 else output.reshape(*output.shape[:2], -1).swapaxes(1, 2)
