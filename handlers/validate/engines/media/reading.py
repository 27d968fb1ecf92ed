"""How a model of PyTorch reads pictures and sounds. Imported only inside workers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from handlers.models.tasks import BY_NAME
from handlers.validate.engines.media import as_seen, processors

ROWS = 96
"""Most positions of a prompt whose logits are kept."""


@dataclass(frozen=True)
class Answer:
    """What a language model makes of a picture or a sound."""

    logits: np.ndarray
    """(rows, V) float32 of evenly spaced positions of the prompt, the last among them."""
    tokens: list[int]
    """What its own `generate` writes after it, greedily."""
    ids: list[int]
    """The prompt."""
    places: list[int]
    """The positions, in the prompt."""
    mark: int | None
    """The token that stands for a part of a picture; None where there is none."""
    picture: np.ndarray | None
    """(H, W, 3) uint8; None for a sound."""


class ReadsMedia:
    """A model whose folder has a processor; to be mixed into a `TorchModel`."""

    _task: str
    _model: Any
    _tokenizer_folders: list[Path]
    _processor: Any = None

    if TYPE_CHECKING:

        def _plain(self) -> Any: ...

        def _products(self) -> AbstractContextManager[Any]: ...

    def _prepared(self, *numbers: int) -> dict[str, Any]:
        """Give the inputs made of pictures or sounds, as one batch, in the dtype that the model computes in."""
        media = BY_NAME[self._task].media
        assert media is not None
        if self._processor is None:
            self._processor = processors.load(self._tokenizer_folders, media)
        dtype = next(weight.dtype for weight in self._plain().parameters() if weight.dtype in _FLOATS)
        inputs = processors.prepared(self._processor, media, *numbers)
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}

    @torch.inference_mode()
    def read(self, number: int, tokens: int) -> Answer:
        """Run a prompt with a picture or a sound, and go on after it."""
        inputs = self._prepared(number)
        with self._products():
            logits = self._model(**inputs).logits[0].float().numpy()
            written = self._model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
        rows = sorted({round(place) for place in np.linspace(0, len(logits) - 1, min(ROWS, len(logits)))})
        ids, config = inputs["input_ids"][0].tolist(), self._plain().config
        mark = next((value for name in _MARKS if isinstance(value := getattr(config, name, None), int)), None)
        picture = as_seen.seen(self._processor, inputs, number) if "pixel_values" in inputs else None
        return Answer(logits[rows], written[0, len(ids) :].tolist(), ids, rows, mark, picture)


_MARKS = ("image_token_id", "image_token_index")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
