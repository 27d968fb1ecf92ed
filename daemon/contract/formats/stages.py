"""What one row of the plan says, and how its needs are estimated. Light: the daemon reads it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from typing import Literal

MIB = 1 << 20
LAYER_BY_LAYER = "layer-by-layer"
WITHOUT_TWIN = "without-twin"
"""The strategy of a stage whose model is too large for the memory: only one of its layers is held at a time."""
LAYERWISE_PROMPTS = 16
"""Prompts that are run together in that case, so that the layers are read once for all of them: their caches are in memory at once."""

LONG_WORK = 5 << 37
"""Tokens times parameters of the pass over the long text that each check makes: 2,048 tokens of a model of 0.34 billion parameters, or
1,024 of one of 0.67. That is about 18 s of processor time; measured: 5.5 s for 2,048 tokens of 0.1 billion."""
LONG_LEAST = 512
"""Tokens of it that a model of any size reads."""
LONG_SHORTEST = 16
"""Tokens below which no text is long."""
LONG_MOST = 8192
"""Tokens up to which it is made longer than the configuration asks, to get behind a window or an original length."""
LONG_MEMORY = 512 * MIB
LONG_SHARE = 0.2
"""Most bytes of its cache and of the outputs of a step, and most of them a byte of the weights in fp32."""


def long_tokens(parameters: int) -> int:
    """Tokens that a model of this size may read as one text, so that the time of its passes is bounded."""
    return max(LONG_LEAST, LONG_WORK // max(1, parameters))


@dataclass(frozen=True)
class ModelSize:
    """What the safetensors headers of a model say."""

    stored_bytes: int
    parameters: int

    @property
    def fp32_bytes(self) -> int:
        """Bytes of all parameters in fp32."""
        return 4 * self.parameters

    def written_in(self, dtype: str) -> ModelSize:
        """The model with all its parameters in `dtype` of `[merge]`; "base" leaves it as it is stored."""
        width = {"float32": 4, "bfloat16": 2, "float16": 2}.get(dtype)
        return self if width is None else replace(self, stored_bytes=width * self.parameters)


@dataclass(frozen=True)
class StageSpec:
    """One row of the plan.

    Memory is `memory_fixed + memory_fp32 × fp32 bytes` and at most `memory_long` more.
    Disk is `disk_fixed + disk_stored × stored bytes + disk_fp32 × fp32 bytes`.
    """

    name: str
    entry: str
    """`module:function` of what does the work, called as function(context, reporter)."""
    version: int
    """Raised whenever the stage's output changes for the same input."""
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    artifact: bool = False
    """Its output may be published as a variant."""
    about: str = ""
    memory_fixed: int = 256 * MIB
    memory_fp32: float = 0.0
    memory_long: int = 0
    """What the cache of a long text takes besides, of a model that is large enough to fill it."""
    disk_stored: float = 0.0
    disk_fp32: float = 0.0
    disk_fixed: int = 0
    resumable: bool = False
    """An interrupted attempt's staging folder is handed to the next one, which goes on in it."""
    layerwise: int = 0
    """It can run a language model layer by layer, by the strategy LAYER_BY_LAYER, with the same output, and takes memory for so many layers
    in fp32 then; 0 where it can't."""
    shortened: tuple[int, float] | None = None
    """`memory_fixed` and `memory_fp32` by the strategy WITHOUT_TWIN, which leaves a comparison out that there is too little memory for;
    None where nothing can be left out."""
    threads: int = 0
    """Threads that it can use; 0: any number."""
    checks: str = ""
    """The variant that it checks."""
    of_checkpoint: bool = False
    """It handles the checkpoint's own weights: its estimates go by their size, not by the base's."""
    alone: bool = False
    """It measures time: it starts when nothing else of ours runs, and nothing else starts beside it."""
    heavy: bool = True
    """Runs only inside the export windows of `[schedule]`."""
    settings: tuple[str, ...] = ()
    """Keys of the job's configuration (`export.opset`, …, `validation.samples` for `[validate]`) that its output depends on."""
    libraries: tuple[str, ...] = ()
    """Distributions whose version its output depends on."""
    light: bool = False
    """It loads none of them itself: what it starts, in the Python of the artifact's engine, may."""
    toolchain: str = ""
    """The toolchain whose Python it runs in ("optimum"); "" for the one that ckptd is installed in."""
    toolchain_if: tuple[tuple[str, str, str], ...] = ()
    """(key, value, toolchain): what it uses besides, where a key of its settings has that value. Without it the stage does what it can."""
    gpu: bool = False
    """It can use a GPU, where `limits.device` allows it. No other stage sees one: a library that finds a GPU takes memory of it, and puts
    models there by itself."""
    programs: tuple[str, ...] = ()
    """Programs of the box, of which it takes the first that is there; $NAME is the one that this environment variable names."""
    model_types: frozenset[str] = frozenset()
    """Values of `model_type` in config.json that it can be made of, so that a job refuses others before anything is loaded; empty where any
    will do, or config.json alone does not tell."""
    ropes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(value of `model_type`, scalings of rotary angles as `rope_type` in config.json names them, "default" for none) that it can be made
    of; of types that are not named, any."""
    not_types: tuple[tuple[str, str], ...] = ()
    """(value of `model_type`, why it can't be made of such a model), refused in the same way: what is known to fail."""
    text_only: bool = False
    """It can be made only of models that read text and nothing else, so that a job refuses others in the same way."""
    media_types: frozenset[str] = frozenset()
    """Where it is `text_only`: values of `model_type` of models of pictures or sound that it can be made of all the same."""
    kv_cache: str = ""
    """When it gives a decoder a cache of keys and values, so that a job refuses a model whose layers keep something else: "always", or the
    key of its settings that turns it on ("onnx.cache"); "" where it takes any, or is made of a stage that says it."""
    arithmetic: Literal["float", "integers", "blocks", "half"] = "float"
    """What its graphs multiply: fp32; integers whose sums are bounded; blocks of weights with activations that the runtime may round to
    int8; half precision. It decides what a check on one processor says of others (`daemon.contract.cpu.doubt`)."""

    @property
    def uses_torch(self) -> bool:
        """It, or a worker in the same Python, computes with PyTorch."""
        return not self.light and ("torch" in self.libraries or self.alone)

    def device(self, allowed: str) -> str:
        """What it may compute on, where the configuration allows `allowed`."""
        return allowed if self.gpu else "cpu"

    def program(self) -> str | None:
        """Path of the one of its `programs` that it takes; None where none is there."""
        named = (os.environ.get(name[1:], "") if name.startswith("$") else name for name in self.programs)
        return next((path for name in named if name and (path := shutil.which(name))), None)

    def memory(self, size: ModelSize) -> int:
        """Estimated peak resident memory, in bytes."""
        return int(self.memory_fixed + self.memory_fp32 * size.fp32_bytes + min(self.memory_long, LONG_SHARE * size.fp32_bytes))

    def disk(self, size: ModelSize) -> int:
        """Estimated bytes written."""
        return int(self.disk_fixed + self.disk_stored * size.stored_bytes + self.disk_fp32 * size.fp32_bytes)
