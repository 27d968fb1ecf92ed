"""`[onnx]`: the options of the ONNX formats. Light: the daemon reads it by way of their declarations.

The docstring of each key becomes its comment in config.toml.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from daemon.contract.values import Frozen


def _as_layers(value: Any) -> Any:
    """What stands in an environment variable as `layers` has it: there a word comes as a list of one, and one number alone."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, list | tuple) and len(value) == 1 and value[0] in ("last", "all"):
        return value[0]
    return value


class OnnxOptions(Frozen):
    """How graphs are exported, optimized and quantized."""

    profile: Literal["auto", "conservative", "balanced", "aggressive"] = "auto"
    """Which ways to export are tried, and in which order: "conservative", "balanced", "aggressive", or "auto", which chooses by
    architecture, size and what worked before on this machine."""
    exporter: Literal["ckptd", "optimum"] = "ckptd"
    """Whose exporter is tried first: "ckptd", or "optimum", which runs in the toolchain optimum and writes opset 20 at most. The other one
    follows where the first one fails."""
    optimize: Literal["auto", "none", "basic", "extended", "all"] = "auto"
    """How far graphs are optimized; each step is kept only where the graph stays equal and does not get slower. "none"; "basic" keeps the
    standard's operators; "extended" brings in onnxruntime's own; "all" binds the graph to onnxruntime. "auto" is "basic", and gives graphs
    with quantized weights onnxruntime's operator for attention over a KV cache, which need not copy the cache for each token."""
    attention: Literal["products", "operator"] = "products"
    """How a decoder's attention over its cache is written in the standard's operators: "products" and a softmax; or, where export.opset is
    23 or newer, the "operator" Attention, which repeats no keys. A runtime must have it; OpenVINO 2026.4 misreads it where queries share
    keys."""
    templates: bool = True
    """Keep each architecture's graph without weights in the cache, and fill it for the next checkpoint instead of tracing that one too."""
    cache: bool = True
    """Give decoders a KV cache."""
    external_data: Literal["auto", "always"] = "auto"
    """Weights in files of their own: "always", or "auto", above 128 MB, since one file is written from several copies in memory."""
    block_size: Literal[16, 32, 64, 128] = 32
    """Weights that share a scale in onnx-int4, onnx-int8-weight and onnx-genai-int4: 16, 32, 64 or 128. Smaller is more exact and
    larger."""
    symmetric: bool = True
    """No zero points in these three: smaller, a little less exact."""
    algorithm: Literal["rtn", "hqq", "k-quant"] = "rtn"
    """How 4-bit values are chosen: "rtn" rounds to nearest; "hqq" (onnx-genai-int4 takes k-quant instead) and "k-quant" search, which takes
    longer."""
    accuracy_level: Literal[-1, 0, 1, 2, 3, 4] = -1
    """What onnxruntime computes products of blocks (4 and 8 bits) in: 1 is fp32, the same everywhere; 4 int8, which is fastest and differs
    a little between kinds of processors; -1 chooses by measurement."""
    kv_cache: Literal["float", "int8"] = "float"
    """What the graphs of quantized decoders keep past keys and values in: "float", which other programs expect too; or "int8": a quarter of
    the memory, and faster with long texts."""
    calibration_samples: int = Field(default=32, ge=1, le=4096)
    """Texts that onnx-int8-static and a KV cache of int8 are calibrated with."""
    layers_per_graph: int = Field(default=0, ge=0)
    """Split a decoder into a chain of graphs with so many layers each, for models too large for one graph. 0 makes one graph."""
    layers: Annotated[Literal["last", "all"] | tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_as_layers)] = "last"
    """Layers whose activations onnx-activations gives: "last", "all", or numbers, counted from 0."""
    kinds: tuple[Literal["hidden_states", "attentions", "embeddings", "mlp"], ...] = ("hidden_states",)
    """What onnx-activations gives of them: "hidden_states", "attentions", "embeddings", "mlp"."""
