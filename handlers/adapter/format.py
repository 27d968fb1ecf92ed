"""The format `pytorch-adapter`: the verified adapter itself, not merged."""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.declaration import TOKENIZER_FILES, Format, Limits, Variant
from daemon.contract.formats.stages import MIB
from daemon.contract.formats.thresholds import Thresholds

_ENGINE = "handlers.adapter.engine"

FORMAT = Format(
    name="pytorch-adapter",
    about="Only the adapter, for PEFT and for servers that load many adapters over one base (vLLM, TGI, LoRAX).",
    order=15,
    files={
        "adapter_config.json": "config", "adapter_base.json": "document", "README.md": "document",
        "adapter_model.safetensors": "weights", **TOKENIZER_FILES,
    },
    runtimes=("PEFT", "vLLM", "TGI", "LoRAX"),
    engines={
        "adapter": {
            "causal": f"{_ENGINE}:AdapterEngine", "seq2seq": f"{_ENGINE}:AdapterSeq2Seq", "encoder": f"{_ENGINE}:AdapterEncoder",
            "media-encoder": f"{_ENGINE}:AdapterMediaEncoder", "media-seq2seq": f"{_ENGINE}:AdapterMediaSeq2Seq",
        },
        "adapter-layerwise": {"causal": "handlers.validate.engines.pytorch.layerwise:LayerwiseLive"},
    },
    variants=(
        Variant(
            "pytorch-adapter", "handlers.adapter.stage:run", 2,
            about="only the adapter, as safetensors, with the name and digest of its base",
            needs=("merge",), heavy=False, threads=1, memory_fixed=900 * MIB, disk_fixed=64 * MIB, disk_stored=0.1,
            settings=("merge.base",), libraries=("torch", "peft", "safetensors"),
            limits=Limits("adapter", pytorch=True, cache=1e-3, padding=1e-3, memory_fixed=1200 * MIB, memory_fp32=1.3, layerwise=True),
            # The same tensors on the same base by the same library: nothing is rounded, so nothing may differ.
            thresholds=Thresholds(agreement=0.999, kl=1e-5, error=1e-3),
            traits=frozenset({"cache", "padding"}),
            usage=Path(__file__).with_name("usage.md"),
            library="peft",
            deploys="over its base",
        ),
    ),
    families={
        "decoders": "loaded over the base by PEFT and compared with the live model: LoRA, rsLoRA, DoRA, patterns, saved modules, trained "
        "tokens, IA3, LoHa, VeRA",
        "encoder-decoders": "loaded over the base by PEFT and compared with the live model",
        "encoders and heads": "loaded over the base by PEFT and compared with the live model, including heads that the adapter brings",
    },
)  # fmt: skip
