"""The options of the section `[openvino]`: imported where a configuration is read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from daemon.contract.values import Frozen


class OpenVinoOptions(Frozen):
    """How OpenVINO's models are made smaller."""

    group_size: Literal[32, 64, 128] = 64
    """Weights that share a scale in openvino-int4: 32, 64 or 128. Smaller is more exact and larger on disk."""
    calibration_samples: int = Field(default=32, ge=0, le=512)
    """Texts with which openvino-int4 finds the scales of a language model. 0: the scales follow the weights alone, which is faster."""
