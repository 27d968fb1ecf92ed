"""The formats `executorch…`: for apps on Android and iOS, and for small devices.

`executorch-8da4w` is the name that PyTorch's documentation has for 8-bit dynamic activations and 4-bit weights.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.declaration import EXAMPLE_FILES, MODEL_FILES, Format, Level, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import EIGHT_BITS, EXACT, FOUR_BITS, Thresholds

USAGE = Path(__file__).with_name("usage.md")
TRAITS: frozenset[Trait] = frozenset({"cache", "padding", "tokenizer"})
TOOLCHAIN = "executorch"
_ENGINE = "handlers.executorch.engine"
NO_PHONE = (
    "by ExecuTorch's runtime and XNNPACK on this computer's CPU, from Python; it was not run on a phone, and no other backend"
    " (Core ML, QNN, Vulkan, a neural processor) was tried"
)


def _variant(
    form: str, about: str, size: float, thresholds: Thresholds, *, level: Level | None = None, fallback: str | None = None,
    settings: tuple[str, ...] = (),
) -> Variant:  # fmt: skip
    exact = level is None
    return Variant(
        f"executorch-{form}" if form else "executorch", f"handlers.executorch.stage:{form.replace('8da4w', 'int4') or 'plain'}", 1,
        toolchain=TOOLCHAIN, about=about, needs=("static-programs",), memory_fixed=1200 * MIB, memory_fp32=4.5, disk_fp32=size,
        disk_fixed=16 * MIB, form_of=None if exact else "executorch", level=level, fallback=fallback, settings=settings,
        arithmetic="float" if exact else "blocks",
        limits=Limits(
            "executorch", cache=1e-3 if exact else 1e-2, padding=1e-3 if exact else 1e-2, merged=1e-2 if exact else None,
            noise_share=0.0 if exact else 0.25, toolchain=TOOLCHAIN, memory_fp32=2 * size,
        ),
        thresholds=thresholds, traits=TRAITS, usage=USAGE, library="executorch",
        also_for=frozenset({"android", "ios", "edge"}), elsewhere=NO_PHONE,
    )  # fmt: skip


FORMAT = Format(
    name="executorch",
    about="Programs for ExecuTorch, PyTorch's runtime for Android, iOS and small devices, with XNNPACK; the KV cache lies inside.",
    order=90,
    files={
        "*.pte": "graphs", "*.ptd": "weights", "graphs.json": "runtime", "opener.py": "example", "feeding.py": "example",
        "session.py": "example", **EXAMPLE_FILES, **MODEL_FILES,
    },
    runtimes=("ExecuTorch",),
    modules={"executorch": "executorch", "torchao": "torchao"},
    options="handlers.executorch.options:ExecuTorchOptions",
    section="executorch",
    engines={
        "executorch": {
            "causal": f"{_ENGINE}:ExecuTorchCausal", "seq2seq": f"{_ENGINE}:ExecuTorchSeq2Seq", "encoder": f"{_ENGINE}:ExecuTorchEncoder",
        },
    },
    data_engines=frozenset({"executorch"}),
    variants=(
        _variant("8da4w", "ExecuTorch's programs with 4-bit weights in groups and 8-bit activations; tables and the head in 8 bits", 0.3,
                 FOUR_BITS, level="int4", fallback="executorch-int8",
                 settings=("executorch.group_size",)),
        _variant("int8", "ExecuTorch's programs with 8-bit weights, a scale a row, and 8-bit activations", 0.4,
                 EIGHT_BITS, level="int8", fallback="executorch"),
        _variant("", "ExecuTorch's programs in fp32", 1.4, EXACT),
    ),
    notes=Path(__file__).with_name("notes.md"),
    families={
        "decoders": "run by ExecuTorch with XNNPACK and compared with the live model: prefill in pieces, cached decoding, rows of unequal"
        " lengths, greedy text; a program also by ExecuTorch's own runner for language models",
        "encoder-decoders": "run by ExecuTorch with XNNPACK and compared with the live model: an encoder, and a decoder with its cache",
        "encoders and heads": "run by ExecuTorch with XNNPACK and compared with the live model, by the outputs of their task",
    },
)  # fmt: skip
