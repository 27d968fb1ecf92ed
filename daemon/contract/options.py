"""What a user can set that changes what a job makes: the options of export, ONNX, merge and validation, and all of them together.

Written into the job file as they are; `daemon.config.settings` reads them from config.toml, where each key is explained.
"""

from __future__ import annotations

import contextlib
import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ByteSize, Field, ValidationError, field_validator

from daemon.contract.values import Frozen, digest_of


class Thresholds(Frozen):
    """What an artifact must reach against the live model to be published."""

    agreement: float = Field(ge=0, le=1)
    """Smallest share of positions whose most likely token is the reference's."""
    kl: float = Field(ge=0)
    """Largest mean Kullback-Leibler divergence KL(reference ‖ artifact), in nats a token."""
    error: float = Field(ge=0)
    """Largest |Δlogit|, in units of the standard deviation of the reference's logits."""


class ExportOptions(Frozen):
    """`[export]`: what is made of a checkpoint."""

    variants: tuple[str, ...] = ("pytorch", "onnx", "onnx-int8")
    """Artifacts to publish; `ckptd formats` lists the names. Default: the three that every box can make."""
    quantization: Literal["", "none", "fp16", "int8", "int4"] = ""
    """"" leaves `variants` as it is; "none" drops the quantized ones; "int8" and the others add that form of each format chosen."""
    opset: int = Field(default=18, ge=18, le=23)
    """ONNX operator set. 18 is the lowest that the exporter really produces and what most runtimes take."""


def _as_layers(value: Any) -> Any:
    """What stands in an environment variable as `layers` has it: there a word comes as a list of one, and one number alone."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, list | tuple) and len(value) == 1 and value[0] in ("last", "all"):
        return value[0]
    return value


class OnnxOptions(Frozen):
    """`[onnx]`: how graphs are exported, optimized and quantized."""

    profile: Literal["auto", "conservative", "balanced", "aggressive"] = "auto"
    """Which ways to export are tried, and in which order. "auto" chooses by architecture, size and what worked before."""
    optimize: Literal["none", "basic", "extended", "all"] = "basic"
    """How far graphs are optimized; each step is kept only where the graph stays equal and does not get slower. "basic" keeps the
    standard's operators, "extended" brings in onnxruntime's own, "all" binds the graph to onnxruntime."""
    cache: bool = True
    """Give decoders a KV cache."""
    external_data: Literal["auto", "always"] = "auto"
    """Weights in files of their own: "auto" above 128 MB, since writing one file takes several copies of them in memory."""
    block_size: Literal[16, 32, 64, 128] = 32
    """Weights that share a scale in onnx-int4, onnx-int8-weight and onnx-genai-int4. Smaller is more exact and larger."""
    symmetric: bool = True
    """No zero points in these three: smaller, a little less exact."""
    algorithm: Literal["rtn", "hqq", "k-quant"] = "rtn"
    """How 4-bit values are chosen: rounding to nearest, half-quadratic (onnx-genai-int4 takes k-quant instead), or k-quant."""
    accuracy_level: Literal[-1, 0, 1, 2, 3, 4] = -1
    """What onnxruntime computes products of blocks in: 1 fp32 … 4 int8, which is fastest; -1 chooses by measurement."""
    calibration_samples: int = Field(default=32, ge=1, le=4096)
    """Texts that onnx-int8-static is calibrated with."""
    layers_per_graph: int = Field(default=0, ge=0)
    """Split a decoder into a chain of graphs with so many layers each; 0 makes one graph."""
    layers: Annotated[Literal["last", "all"] | tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_as_layers)] = "last"
    """Layers whose activations onnx-activations gives."""
    kinds: tuple[Literal["hidden_states", "attentions", "embeddings", "mlp"], ...] = ("hidden_states",)
    """What onnx-activations gives of them."""


class MergeOptions(Frozen):
    """`[merge]`: how an adapter is merged into its base."""

    dtype: Literal["base", "float32", "bfloat16", "float16"] = "base"
    """Of the merged weights, or of a full fine-tune's. "base" keeps each tensor's own, so that what the adapter leaves alone stays as it
    is, bit by bit."""
    max_shard_size: Annotated[
        Annotated[ByteSize, Field(ge=1 << 16)] | None, BeforeValidator(lambda value: None if value == "" else value)
    ] = None
    """Bytes of a weight file; None, or "" in the file, keeps the base's own division."""
    base: Literal["original", "dequantized", "dequantized-double"] = "original"
    """What an adapter is merged into whose base was loaded in 4 bits for training: the weights as they are stored, or as that
    training saw them, with or without double quantization. "original", since nothing in an adapter tells that it was so trained."""
    verify: Literal["sample", "full"] = "sample"
    """How much of the unchanged weights is compared with the base's: a sample of each tensor, or all, which reads both once more."""
    trust_remote_code: bool = False
    """Copy the Python files of a model's own code. They are never executed here, but whoever loads the model may execute them."""


DEFAULT_THRESHOLDS: dict[str, Thresholds] = {
    "pytorch": Thresholds(agreement=0.97, kl=0.001, error=0.25),
    "onnx": Thresholds(agreement=0.97, kl=0.001, error=0.25),
    "onnx-int8": Thresholds(agreement=0.85, kl=0.05, error=2.0),
    "onnx-fp16": Thresholds(agreement=0.96, kl=0.002, error=0.3),
    "onnx-int8-static": Thresholds(agreement=0.85, kl=0.05, error=2.0),
    "onnx-int8-weight": Thresholds(agreement=0.95, kl=0.005, error=0.5),
    "onnx-int4": Thresholds(agreement=0.8, kl=0.1, error=3.0),
    "onnx-activations": Thresholds(agreement=0.97, kl=0.001, error=0.25),
    "onnx-activations-fp16": Thresholds(agreement=0.97, kl=0.001, error=0.25),
    "onnx-activations-int8": Thresholds(agreement=0.85, kl=0.05, error=2.0),
    "onnx-genai-fp32": Thresholds(agreement=0.97, kl=0.001, error=0.25),
    "onnx-genai-fp16": Thresholds(agreement=0.96, kl=0.002, error=0.3),
    "onnx-genai-int4": Thresholds(agreement=0.8, kl=0.1, error=3.0),
}


class ValidateOptions(Frozen):
    """`[validate]`: how artifacts are compared with the live model."""

    samples: int = Field(default=6, ge=1, le=256)
    """Prompts compared. Six give a few hundred positions in seconds on a small model."""
    new_tokens: int = Field(default=24, ge=1, le=1024)
    """Tokens decoded greedily for each prompt."""
    prompts: str = ""
    """UTF-8 text file with one prompt a line; "" uses the built-in ones. Give lines of the run's own data for a truer verdict."""
    speed_tokens: int = Field(default=64, ge=0, le=4096)
    """Tokens decoded to measure speed, in turns with PyTorch. 0 leaves speed out."""
    bases: bool = False
    """Compare the adapter on the base as it is stored, and after nf4, by the likelihood of the prompts. For language models whose base
    is not stored quantized; always done where `merge.base` is not "original". Two more passes over the prompts."""
    thresholds: dict[str, Thresholds] = Field(default_factory=lambda: dict(DEFAULT_THRESHOLDS))
    """Limits by variant; a variant or a limit that is not named keeps its default."""

    @field_validator("thresholds", mode="before")
    @classmethod
    def _over_the_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        merged: dict[str, Any] = dict(DEFAULT_THRESHOLDS)
        for name, limits in value.items():
            known = DEFAULT_THRESHOLDS.get(name)
            merged[name] = {**known.model_dump(), **limits} if known and isinstance(limits, dict) else limits
        return merged


class Work(Frozen):
    """The effective configuration of a job: everything a user can set that changes its output."""

    export: ExportOptions
    validation: ValidateOptions
    merge: MergeOptions = MergeOptions()
    onnx: OnnxOptions = OnnxOptions()

    @property
    def digest(self) -> str:
        """Resume key of the configuration. Made of what differs from the defaults, so that a new option changes no job's key."""
        return digest_of(self.model_dump(mode="json", exclude_defaults=True))

    @classmethod
    def recovered(cls, text: str) -> Work:
        """The configuration in a JSON text; of one that another version wrote, the sections that this one understands."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            sections: dict[str, Any] = {
                "export": ExportOptions(),
                "validation": ValidateOptions(),
                "merge": MergeOptions(),
                "onnx": OnnxOptions(),
            }
            for name, default in sections.items():
                with contextlib.suppress(ValidationError, ValueError, KeyError, TypeError):
                    sections[name] = type(default).model_validate(json.loads(text)[name])
            return cls(**sections)
