"""The formats `tensorrt…`: for NVIDIA's GPUs.

Nothing here needs a GPU but the variants `tensorrt` and `tensorrt-fp16`, and the check of engines.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.declaration import EXAMPLE_FILES, MODEL_FILES, Format, Level, Limits, Trait, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import EXACT, HALF

BUNDLE, ENGINES, LLM = (Path(__file__).with_name(name) for name in ("usage.md", "usage_engines.md", "usage_llm.md"))
TRAITS: frozenset[Trait] = frozenset({"cache", "padding", "dynamic axes", "tokenizer"})
TOOLCHAIN = "tensorrt-rtx"
SIZES = ("tensorrt.max_batch", "tensorrt.max_tokens", "tensorrt.optimal_tokens", "tensorrt.newest_opset")
ELSEWHERE = (
    "its graphs with onnxruntime on the CPU, and verify.py with it too; TensorRT itself is to be run on your GPU, by the same verify.py"
)


def _engines(name: str, about: str, source: str, of: str | None, *, toolchain: str = "", libraries: tuple[str, ...] = ()) -> Variant:
    """Engines of a bundle's graphs. They compute with 10 bits of mantissa at least, wherever they are checked."""
    half = of is not None
    level: Level | None = "fp16" if half else None
    limits = Limits("tensorrt", cache=0.02, padding=0.02, noise_share=1.5, toolchain=toolchain, gpu=True)
    return Variant(
        name, f"handlers.tensorrt.engines:{'rtx' if toolchain else 'classic'}", 2, toolchain=toolchain, libraries=libraries,
        gpu=not toolchain,
        about=about, needs=(source,), memory_fixed=1500 * MIB, memory_fp32=3.0, disk_fp32=1.2 if half else 1.4, disk_fixed=64 * MIB,
        settings=(*SIZES, "tensorrt.compute_capabilities"), form_of=of, level=level, fallback=of or source,
        arithmetic="half" if half else "float", limits=limits, thresholds=HALF, traits=TRAITS, usage=ENGINES,

        deploys="at its targets", also_for=frozenset({"nvidia"}),
        elsewhere="what the builder says of the engines, where there is no GPU that runs them; on one all of it",
    )  # fmt: skip


FORMAT = Format(
    name="tensorrt",
    about="For NVIDIA's GPUs: graphs with all that TensorRT needs to build and verify engines, engines themselves, TensorRT-LLM.",
    order=110,
    files={
        "*.onnx": "graphs", "*.onnx*data": "weights", "engines/built.json": "runtime",
        "engines/*": "graphs", "rank0.safetensors": "weights", "graphs.json": "runtime", "profiles.json": "runtime",
        "verify/cases.json": "example", "verify/example-*.npz": "example", "build.sh": "example", "build.py": "example",
        "verify.py": "example", "session.py": "example", **EXAMPLE_FILES, **MODEL_FILES,
        "config.json": "extended config",
    },
    runtimes=("TensorRT", "TensorRT-RTX", "TensorRT-LLM"),
    modules={"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt_rtx"},
    options="handlers.tensorrt.options:TensorRtOptions",
    section="tensorrt",
    engines={
        "tensorrt-bundle": {
            "causal": "handlers.tensorrt.engine:BundleCausal", "seq2seq": "handlers.tensorrt.engine:BundleSeq2Seq",
            "encoder": "handlers.tensorrt.engine:BundleEncoder",
        },
        "tensorrt": {
            "causal": "handlers.tensorrt.engine:DeviceCausal", "seq2seq": "handlers.tensorrt.engine:DeviceSeq2Seq",
            "encoder": "handlers.tensorrt.engine:DeviceEncoder",
        },
        "tensorrt-llm": {"causal": "handlers.tensorrt.llm.engine:TrtLlmEngine"},
    },
    variants=(
        Variant(
            "tensorrt-bundle", "handlers.tensorrt.stage:bundle", 2,
            about="ONNX graphs with profiles, scripts and examples, from which a machine with an NVIDIA GPU builds and verifies engines",
            needs=("onnx",), text_only=True, memory_fixed=800 * MIB, memory_fp32=2.5, disk_fp32=1.1, disk_fixed=64 * MIB, settings=SIZES,
            libraries=("onnx", "onnxruntime"),
            limits=Limits("tensorrt-bundle", timed=False, cache=1e-3, padding=1e-3, merged=1e-2), thresholds=EXACT,
            traits=TRAITS, usage=BUNDLE, deploys="at its targets", also_for=frozenset({"nvidia"}), elsewhere=ELSEWHERE,
        ),
        Variant(
            "tensorrt-bundle-fp16", "handlers.tensorrt.stage:bundle_fp16", 2, arithmetic="half",
            about="the same of the graphs in half precision, whose types TensorRT 11 and TensorRT-RTX take as they are",
            needs=("onnx-fp16",), text_only=True,
            memory_fixed=800 * MIB, memory_fp32=2.5, disk_fp32=0.6, disk_fixed=64 * MIB, settings=SIZES,
            libraries=("onnx", "onnxruntime"), form_of="tensorrt-bundle", level="fp16", fallback="tensorrt-bundle",
            limits=Limits("tensorrt-bundle", timed=False, cache=0.02, padding=0.02, noise_share=1.5), thresholds=HALF,
            traits=TRAITS, usage=BUNDLE, deploys="at its targets", also_for=frozenset({"nvidia"}), elsewhere=ELSEWHERE,
        ),
        _engines("tensorrt-rtx",
                 "engines for TensorRT-RTX, built on any machine for GPUs of compute capability 8.0, 8.6, 8.9, 12.0 and later",
                 "tensorrt-bundle", None, toolchain=TOOLCHAIN),
        _engines("tensorrt-rtx-fp16", "engines for TensorRT-RTX in half precision", "tensorrt-bundle-fp16", "tensorrt-rtx",
                 toolchain=TOOLCHAIN),
        _engines("tensorrt", "engines for TensorRT, built on this machine for its own GPU", "tensorrt-bundle", None,
                 libraries=("tensorrt",)),
        _engines("tensorrt-fp16", "engines for TensorRT in half precision, built on this machine for its own GPU",
                 "tensorrt-bundle-fp16", "tensorrt", libraries=("tensorrt",)),
        Variant(
            "tensorrt-llm", "handlers.tensorrt.llm.stage:run", 1,
            about="a checkpoint for the releases of TensorRT-LLM that build engines, of Llama, Qwen2 and Qwen3",
            needs=("pytorch",), text_only=True, model_types=frozenset({"internlm3", "iquestcoder", "llama", "qwen2", "qwen3"}),
            memory_fixed=600 * MIB, disk_stored=1.3, disk_fixed=16 * MIB, libraries=("torch", "transformers"),
            limits=Limits("tensorrt-llm", weights=True, timed=False, cache=1e-3, padding=1e-3, merged=1e-2), thresholds=EXACT,
            traits=frozenset({"cache", "padding", "tokenizer"}), usage=LLM, deploys="at its targets", also_for=frozenset({"nvidia"}),
            elsewhere="its files, read back to transformers' names and run there; TensorRT-LLM itself is not run",
        ),
    ),
    notes=Path(__file__).with_name("notes.md"),
    families={
        "decoders": "the graphs of a bundle run by onnxruntime and compared with the live model; engines are run on your GPU",
        "encoder-decoders": "the same: an encoder, decoders of the first step and the later ones",
        "encoders and heads": "the same, by the outputs of their task",
    },
)  # fmt: skip
