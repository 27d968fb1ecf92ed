"""`[tensorrt]`: the options of TensorRT's formats. Light: the daemon reads it by way of their declaration.

The docstring of each key becomes its comment in config.toml.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from daemon.contract.values import Frozen

Capability = Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1"]


def _as_texts(value: Any) -> Any:
    """Numbers as the texts that they were written as: 8.9 in an environment variable, [8.9] in a file."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = (value,)
    if isinstance(value, list | tuple):
        return tuple(f"{item:.1f}" if isinstance(item, int | float) and not isinstance(item, bool) else item for item in value)
    return value


class TensorRtOptions(Frozen):
    """Which sizes and GPUs engines are built for."""

    max_batch: int = Field(default=4, ge=1, le=1024)
    """Largest number of texts at once that engines take."""
    max_tokens: int = Field(default=2048, ge=8)
    """Largest number of tokens of a text, prompt and answer together; at most what the model can address. Engines need memory for it."""
    optimal_tokens: int = Field(default=128, ge=1)
    """Tokens for which an engine is made fastest: of a prompt, and of a cache while it decodes."""
    newest_opset: int = Field(default=20, ge=18, le=25)
    """Newest operator set that the parser takes which will read the graphs: 20 for TensorRT 10, up to 25 for TensorRT 11."""
    compute_capabilities: Annotated[tuple[Capability, ...], BeforeValidator(_as_texts)] = ()
    """GPUs that tensorrt-rtx builds for, by compute capability: "7.5", "8.0", "8.6", "8.9", "12.0", "12.1". None: TensorRT-RTX's own
    choice, which is all of these but "7.5", and later ones. It has no engines for 9.0 and 10.0 (H100, B200): use TensorRT there."""
