"""The formats `mlx`, `mlx-int8` and `mlx-int4`: for mlx-lm, LM Studio and what else runs MLX on Apple's processors."""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.declaration import MODEL_FILES, Format, Level, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import EIGHT_BITS, EXACT, FOUR_BITS, Thresholds

USAGE = Path(__file__).with_name("usage.md")
TRAITS: frozenset[Trait] = frozenset({"cache", "padding", "dynamic axes", "tokenizer"})
TOOLCHAIN = "mlx"
ELSEWHERE = "MLX's build for CPUs ran it on Linux in fp32, not an Apple GPU, which computes in the type of the stored weights"


def _variant(
    name: str, entry: str, about: str, size: float, thresholds: Thresholds, *, fallback: str | None = None, level: Level | None = None,
    memory: float,
) -> Variant:  # fmt: skip
    return Variant(
        name, f"handlers.mlx.stage:{entry}", 1, toolchain=TOOLCHAIN, about=about, text_only=True, needs=("pytorch",),
        memory_fixed=700 * MIB, memory_fp32=0.02, disk_fp32=size, disk_fixed=32 * MIB,
        form_of="mlx" if level else None, level=level, fallback=fallback,
        limits=Limits("mlx", weights=True, cache=1e-3, padding=1e-3, noise_share=0.01, toolchain=TOOLCHAIN, memory_fp32=memory),
        thresholds=thresholds, traits=TRAITS, usage=USAGE, library="mlx",
        deploys="at its targets", also_for=frozenset({"laptop"}), elsewhere=ELSEWHERE,
    )  # fmt: skip


FORMAT = Format(
    name="mlx",
    about="A folder for mlx-lm and LM Studio, which run language models on Apple's processors.",
    order=82,
    files={
        "model.safetensors": "weights", "model-*-of-*.safetensors": "weights", "model.safetensors.index.json": "weights", **MODEL_FILES,
        "config.json": "extended config",
    },
    runtimes=("mlx-lm", "LM Studio"),
    modules={"mlx": "mlx", "mlx_lm": "mlx-lm"},
    engines={"mlx": {"causal": "handlers.mlx.engine:MlxEngine"}},
    data_engines=frozenset({"mlx"}),
    variants=(
        _variant("mlx", "plain", "the weights as they are, in the folder that mlx-lm loads", 1.0, EXACT, memory=1.6),
        _variant("mlx-int8", "int8", "8-bit weights in groups of 64, in the folder that mlx-lm loads", 0.3,
                 EIGHT_BITS, fallback="mlx", level="int8-weight", memory=0.8),
        _variant("mlx-int4", "int4", "4-bit weights in groups of 64, in the folder that mlx-lm loads", 0.17,
                 FOUR_BITS, fallback="mlx-int8", level="int4", memory=0.6),
    ),
    notes=Path(__file__).with_name("notes.md"),
    families={
        "decoders": "run by mlx-lm and compared with the live model: prefill, cached decoding, batches of unequal lengths, greedy text",
        "encoder-decoders": "not possible: the export says so",
        "encoders and heads": "not possible: the export says so",
    },
)  # fmt: skip
