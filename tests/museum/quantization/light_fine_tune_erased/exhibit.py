"""4 bits that erase a light fine-tune."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged

EXHIBIT = Exhibit(
    bug="ARahim3/mlx-tune#15",
    name="4 bits that erase a light fine-tune",
    happened="A lightly trained adapter was merged and rounded to 4 bits again: the model had forgotten everything.",
    mutant="the 4-bit form of a lightly trained model has the base's numbers, as where rounding takes the delta away",
    hall="light",
    variant="onnx-int4",
    make=damaged(source="unmerged"),
    check="share of the fine-tuning",
    words=r"few bits",
)
