"""The picture that a processor gave its model, as a picture again: what an engine with a preparation of its own is given to read.

So the same picture reaches both towers, and what is compared is the model. Resizing, which each library does by itself, is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from handlers.validate.engines.media.made_up import picture


def seen(processor: Any, inputs: Mapping[str, Any], number: int) -> np.ndarray:
    """Give picture `number` (H, W, 3) uint8 as the model gets it; as it was made up where the processor takes it apart into tiles."""
    prepares, pixels = getattr(processor, "image_processor", processor), np.asarray(inputs["pixel_values"].float())
    grid = inputs.get("image_grid_thw")
    if grid is not None:
        pixels = _from_patches(pixels, [int(size) for size in grid[0]], int(prepares.merge_size), int(prepares.patch_size))
    elif pixels.ndim == 4 and len(pixels) == 1:  # one picture: (1, 3, H, W)
        pixels = pixels[0]
    else:
        return picture(number)
    if getattr(prepares, "do_normalize", True):
        mean, deviation = (np.reshape(values, (3, 1, 1)) for values in (prepares.image_mean, prepares.image_std))
        pixels = pixels * deviation + mean
    if getattr(prepares, "do_rescale", True):
        pixels = pixels / prepares.rescale_factor
    return np.ascontiguousarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8).transpose(1, 2, 0))


def _from_patches(patches: np.ndarray, grid: list[int], merge: int, size: int) -> np.ndarray:
    """Undo what the processors of Qwen's models do (transformers 5.23, image_processing_qwen2_vl.py): patches (patches, channels × times ×
    height × width), those that are merged one after the other. Gives (3, H, W)."""
    _, rows, columns = grid
    shape = (rows // merge, columns // merge, merge, merge, 3, -1, size, size)
    whole = patches.reshape(shape)[:, :, :, :, :, 0].transpose(4, 0, 2, 5, 1, 3, 6)
    return whole.reshape(3, rows * size, columns * size)
